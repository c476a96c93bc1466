package compare_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/redirect"
)

// TestSetsAreCompared: a list that is one rule is compared by each of its prefixes, with the rules that iptables has in its place too.
func TestSetsAreCompared(t *testing.T) {
	with := func(n int) redirect.Redirect {
		r := ours()
		var list []netip.Prefix
		for i := range n {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(2 * i)}), 32))
		}
		r.Outbound.ExcludeCIDRs = redirect.Prefixes(list...)
		return r
	}
	all, fewer := with(40).MustRuleset(), with(39).MustRuleset()
	report := run(t, all, fewer)
	if assert.NotEmpty(t, report.Differences) {
		assert.Equal(t, "203.0.113.78", report.Differences[0].Packet.Dst.Addr().String())
	}
	plain, err := all.Iptables()
	assert.NoError(t, err)
	assert.NotEqual(t, plain.IPv4.NumRules(), all.IPv4.NumRules())
	assert.Empty(t, run(t, all, plain).Differences)
	saved, err := parse(all.IPv4.String(), all)
	assert.NoError(t, err)
	assert.Empty(t, run(t, all, saved).Differences)
}
