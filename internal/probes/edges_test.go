//go:build linux

package probes_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/hostroottest"
	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// withoutNFT is a host whose kernel has no nftables for us.
type withoutNFT struct{ *netnsexec.NetNS }

func (withoutNFT) Socket(int, int, int) (int, error) { return -1, unix.EPROTONOSUPPORT }

// TestKernelWithoutNftables: auto takes iptables and ipset there, and what asks for nftables is told why not.
func TestKernelWithoutNftables(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	before := w.state(t)
	o := probes.Options{NetNS: withoutNFT{w.host}, IPv4: source4, IPv6: source6, Backend: ruleset.BackendNftables}
	s, err := probes.New(o)
	require.NoError(t, err)
	_, err = s.Ensure(t.Context())
	require.ErrorIs(t, err, apply.ErrNoBackend)
	assert.Equal(t, before, w.state(t))

	o.Backend = ruleset.BackendAuto
	s, err = probes.New(o)
	require.NoError(t, err)
	require.NoError(t, s.Put(uid, podAddr))
	assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
	assert.Contains(t, w.state(t), "ipset meshcni-probes-v6 1")

	o.Path = t.TempDir()
	s, err = probes.New(o)
	require.NoError(t, err)
	_, err = s.Ensure(t.Context())
	assert.ErrorIs(t, err, apply.ErrNoBackend, "nor iptables")
}

// TestIPv6Off: where IPv6 is only switched off, its rules do no harm and its pods are no error.
func TestIPv6Off(t *testing.T) {
	netnstest.Require(t, needs...)
	for _, backend := range backends {
		w := newWorld(t)
		w.capture(t)
		require.NoError(t, w.host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0) }))
		s := w.set(t, backend)
		require.NoError(t, s.Put(uid, podAddr), backend)
		assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort), backend)
		entries, err := s.Entries()
		require.NoError(t, err)
		assert.Len(t, entries, 2)
	}
}

// TestForeignSet: a set of our name that is of another kind is nobody's to change.
func TestForeignSet(t *testing.T) {
	netnstest.Require(t, append(needs, netnstest.Binary("iptables-nft-restore"))...)
	w := newWorld(t)
	foreignSet(t, w, "meshcni-probes-v4")
	before := w.state(t)
	_, err := w.set(t, ruleset.BackendIptablesNFT).Ensure(t.Context())
	require.ErrorContains(t, err, "ipset meshcni-probes-v4 is there and not ours")
	assert.Equal(t, before, w.state(t))
}

// TestConcurrent: two processes that change the set at once, and a third program that changes other rules, lose nothing.
func TestConcurrent(t *testing.T) {
	netnstest.Require(t, needs...)
	for _, backend := range backends {
		t.Run(string(backend), func(t *testing.T) {
			w := newWorld(t)
			sets := []*probes.Set{w.set(t, backend), w.set(t, backend)}
			for _, s := range sets {
				_, err := s.Ensure(t.Context())
				require.NoError(t, err)
			}
			var wg sync.WaitGroup
			errs := make([]error, 8)
			for i := range errs {
				wg.Go(func() {
					s := sets[i%2]
					for j := range 40 {
						pod := types.UID(fmt.Sprintf("pod-%d-%d", i, j))
						err := s.Put(pod, []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i), byte(j)})})
						if j%4 != 0 {
							err = errors.Join(err, s.Delete(pod))
						}
						errs[i] = errors.Join(errs[i], err)
					}
				})
			}
			for range 20 {
				do(t, w.host, "nft", "add table inet busy; delete table inet busy")
			}
			wg.Wait()
			require.NoError(t, errors.Join(errs...))
			entries, err := sets[0].Entries()
			require.NoError(t, err)
			assert.Len(t, entries, 80)
			for a, pod := range entries {
				b := a.As4()
				assert.Equal(t, types.UID(fmt.Sprintf("pod-%d-%d", b[2], b[3])), pod)
			}
		})
	}
}

// TestHostRoot: a container without iptables uses its host's programs, of whichever variant the host has, and its lock.
func TestHostRoot(t *testing.T) {
	netnstest.Require(t, needs...)
	for variant, want := range map[string]ruleset.Backend{"nft": ruleset.BackendIptablesNFT, "legacy": ruleset.BackendIptablesLegacy} {
		programs := hostroottest.Iptables(variant)
		programs["cat"] = "cat"
		dir := hostroottest.New(t, programs)
		w := newWorld(t)
		w.capture(t)
		s, err := probes.New(probes.Options{NetNS: w.host, IPv4: source4, IPv6: source6, Backend: ruleset.BackendIptables, Root: hostroottest.Process(t, dir)})
		require.NoError(t, err)
		require.NoError(t, s.Put(uid, podAddr))
		result, err := s.Ensure(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []any{want, false}, []any{result.Backend, result.Repaired})
		assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
		require.NoError(t, s.Remove(t.Context()))
		assert.NotContains(t, w.state(t), "MESHCNI")
	}
}

// TestDocumented: the package comment shows the table that nft lists.
func TestDocumented(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	require.NoError(t, w.set(t, ruleset.BackendNftables).Put(uid, podAddr))
	var shown strings.Builder
	source, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	for line := range strings.Lines(string(source)) {
		if text, indented := strings.CutPrefix(line, "//\t"); indented && (shown.Len() > 0 || strings.HasPrefix(text, "table ")) {
			shown.WriteString(text)
		} else if line == "//\n" && shown.Len() > 0 {
			shown.WriteString("\n")
		} else if shown.Len() > 0 {
			break
		}
	}
	assert.Equal(t, do(t, w.host, "nft", "-s", "list", "table", "inet", "meshcni-probes"), strings.TrimRight(shown.String(), "\n")+"\n")
}

// BenchmarkPut is what one pod of a full node costs, and BenchmarkEnsure a round of a drift loop.
func BenchmarkPut(b *testing.B) {
	bench(b, func(s *probes.Set) error {
		return errors.Join(s.Put("one-more", []netip.Addr{netip.MustParseAddr("10.3.0.1")}), s.Delete("one-more"))
	})
}

func BenchmarkEnsure(b *testing.B) {
	bench(b, func(s *probes.Set) error {
		_, err := s.Ensure(b.Context())
		return err
	})
}

func bench(b *testing.B, fn func(*probes.Set) error) {
	netnstest.Require(b, needs...)
	for _, backend := range backends {
		b.Run(string(backend), func(b *testing.B) {
			s, err := probes.New(probes.Options{NetNS: netnstest.New(b), IPv4: source4, IPv6: source6, Backend: backend})
			require.NoError(b, err)
			want := probes.Entries{}
			for i := range 110 {
				want[netip.AddrFrom4([4]byte{10, 2, 0, byte(i)})] = types.UID(fmt.Sprintf("pod-%d", i))
			}
			_, err = s.Sync(b.Context(), want)
			require.NoError(b, err)
			for b.Loop() {
				require.NoError(b, fn(s))
			}
		})
	}
}
