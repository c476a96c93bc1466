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

	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
)

// withoutNFT is a host whose kernel has no nftables for us.
type withoutNFT struct{ *netnsexec.NetNS }

func (withoutNFT) Socket(int, int, int) (int, error) { return -1, unix.EPROTONOSUPPORT }

// TestKernelWithoutNftables: nothing can be exempt there, which is an error, and nothing is to be removed.
func TestKernelWithoutNftables(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	before := w.state(t)
	s, err := probes.New(probes.Options{NetNS: withoutNFT{w.host}, IPv4: source4, IPv6: source6})
	require.NoError(t, err)
	_, err = s.TakeOver(t.Context())
	require.ErrorIs(t, err, apply.ErrNoBackend)
	require.ErrorContains(t, err, "nftables with inet nat (Linux 5.2)")
	require.NoError(t, s.Remove(t.Context()))
	assert.Equal(t, before, w.state(t))
}

// TestIPv6Off: where IPv6 is only switched off, its rules do no harm and its pods are no error.
func TestIPv6Off(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	require.NoError(t, w.host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0) }))
	s := w.set(t)
	require.NoError(t, s.Put(uid, podAddr))
	assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
	entries, err := s.Entries()
	require.NoError(t, err)
	assert.Len(t, entries, 2)
}

// TestConcurrent: two processes that change the set at once, and a third program that changes other rules, lose nothing.
func TestConcurrent(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	sets := []*probes.Set{w.set(t), w.set(t)}
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
}

// TestDocumented: the package comment shows the table that nft lists.
func TestDocumented(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	require.NoError(t, w.set(t).Put(uid, podAddr))
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
	s, err := probes.New(probes.Options{NetNS: netnstest.New(b), IPv4: source4, IPv6: source6})
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
}
