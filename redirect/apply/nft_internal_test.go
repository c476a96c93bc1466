//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestNFTUnsupported: each way of a kernel to say that it does not know a thing
// is told apart from a failure, and names the thing.
func TestNFTUnsupported(t *testing.T) {
	rule := func(r ruleset.Rule) nftStep {
		return nftStep{what: "add rule", chain: &nft.Chain{Name: "c"}, rule: &nft.Rule{Rule: r}}
	}
	action := func(a ruleset.Action) nftStep { return rule(ruleset.Rule{Target: ruleset.Target{Action: a}}) }
	chain := nftStep{what: "add chain", chain: &nft.Chain{Type: "nat"}}
	for _, tc := range []struct {
		step    nftStep
		errno   error
		feature string // empty: an ordinary failure
	}{
		{nftStep{what: "add table"}, unix.EAFNOSUPPORT, "nf_tables for family inet"},
		{chain, unix.EOPNOTSUPP, "inet nat chain"},
		{chain, unix.ENOENT, "inet nat chain"},
		{chain, unix.EPERM, ""},
		{action(ruleset.ActionRedirect), unix.ENOENT, "redirect statement"},
		{action(ruleset.ActionDNAT), unix.ENOENT, "dnat statement"},
		{action(ruleset.ActionTProxy), unix.ENOENT, "tproxy statement"},
		{action(ruleset.ActionZone), unix.EOPNOTSUPP, "ct zone statement"},
		{action(ruleset.ActionSaveMark), unix.ENOENT, "ct mark statement"},
		{action(ruleset.ActionSetConnMark), unix.ENOENT, "ct mark statement"},
		{action(ruleset.ActionLog), unix.ENOENT, "log statement"},
		{rule(ruleset.Rule{States: ruleset.StateInvalid}), unix.ENOENT, "ct expression"},
		{action(ruleset.ActionJump), unix.ENOENT, ""},
		{action(ruleset.ActionRedirect), unix.EBUSY, ""},
	} {
		err := classify(&stepError{tc.step, &nfnetlink.BatchError{Errno: tc.errno}})
		assert.ErrorIs(t, err, tc.errno)
		var unsupported *unsupportedError
		assert.Equal(t, tc.feature != "", errors.As(err, &unsupported), err)
		assert.Equal(t, tc.feature != "", errors.Is(err, ErrNoBackend), err)
		if unsupported != nil {
			assert.Equal(t, tc.feature, unsupported.Feature)
			assert.NotEmpty(t, unsupported.Need)
		}
	}
	err := classify(fmt.Errorf("list: %w", unix.EINVAL))
	assert.EqualError(t, err, "the kernel has no usable nf_tables (needs CONFIG_NF_TABLES): list: invalid argument")
	assert.NoError(t, classify(nil))
}

// TestNFTStartsAgain: a batch made from what is no longer so is refused by the
// kernel, and the call begins anew from what is.
func TestNFTStartsAgain(t *testing.T) {
	ns := netnstest.New(t)
	n := newNFTables(ns)
	rs := redirect.Default().MustRuleset()
	attempts := 0
	err := n.session(t.Context(), func(s *nftSession) error {
		attempts++
		live, err := s.readLive(rs.Owner())
		if err != nil {
			return err
		}
		if attempts == 1 { // somebody else is faster
			if _, err := n.Apply(t.Context(), rs); err != nil {
				return err
			}
		}
		return s.write(nft.Lower(rs), live)
	})
	require.NoError(t, err)
	assert.Equal(t, 2, attempts)
	diffs, err := n.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, diffs)

	// But not for ever.
	ctx, cancel := context.WithCancel(t.Context())
	err = n.session(ctx, func(*nftSession) error {
		cancel()
		return nfnetlink.ErrInterrupted
	})
	require.ErrorIs(t, err, nfnetlink.ErrInterrupted)
	require.ErrorIs(t, err, context.Canceled)
}

// FuzzNFTParsers: what the kernel sends is not trusted to be whole.
func FuzzNFTParsers(f *testing.F) {
	var w nfnetlink.Writer
	for _, c := range nft.Lower(redirect.Default().MustRuleset()).Chains {
		for i := range c.Rules {
			writeExprs(&w, &c.Rules[i])
		}
	}
	f.Add(w.B)
	f.Fuzz(func(_ *testing.T, b []byte) {
		canonical(b, func(string) string { return "" })
		jumpOf(b)
		describe(&liveRule{exprs: b})
		m := nfnetlink.Message{Attrs: b}
		parseChain(m)
		(&liveSet{}).parseElements(m)
		_, _ = m.Errno(), m.Reason()
	})
}

// TestCanonicalElements: whether a set is one of intervals is not what it holds.
func TestCanonicalElements(t *testing.T) {
	ports := func(ranges ...ruleset.PortRange) nft.Set { return nft.Set{Ports: ranges} }
	first, last, rest := ruleset.Port(80), ruleset.Port(65535), ruleset.PortRange{First: 65000, Last: 65535}
	single := canonicalElements([]setElement{{key: nfnetlink.BE16(80)}, {key: nfnetlink.BE16(65000)}, {key: nfnetlink.BE16(65535)}})
	asTree := []setElement{{key: nfnetlink.BE16(0), end: true}, {key: nfnetlink.BE16(65535)}, {key: nfnetlink.BE16(65001), end: true}, {key: nfnetlink.BE16(65000)}, {key: nfnetlink.BE16(80)}, {key: nfnetlink.BE16(81), end: true}}
	assert.Equal(t, single, canonicalElements(asTree))

	a, b := ports(first, rest), ports(first, ruleset.Port(65000))
	assert.NotEqual(t, canonicalElements(setElements(&a)), canonicalElements(setElements(&b)), "an interval to the end is none of one port")
	b = ports(ruleset.PortRange{First: 80, Last: 81}, last)
	a = ports(first, last)
	assert.NotEqual(t, canonicalElements(setElements(&a)), canonicalElements(setElements(&b)))
}
