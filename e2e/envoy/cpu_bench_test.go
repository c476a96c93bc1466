package envoy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// way is one way for a connection to go.
type way struct {
	name string
	pod  *pod
	from caller
	to   netip.AddrPort
	all  []float64 // of each block, in microseconds a connection
	ours []float64 // Envoy's part of it
}

// BenchmarkCPU makes connections with one request each, in blocks of a hundred for each way in turn, and reports the processor time of
// one: of Envoy and of both ends, with what the kernel does for them. It is a median; compare the ratios.
//
//	go -C e2e test -run '^$' -bench CPU -benchtime 20x ./envoy
func BenchmarkCPU(b *testing.B) {
	server, vip := netip.AddrPortFrom(serviceIP[0], portHTTP), netip.MustParseAddrPort("10.96.9.9:80")
	made := func(backend ruleset.Backend, mode string) *pod {
		shape := istioShape(mode)
		shape.Direct, shape.Services[vip] = map[uint16]netip.AddrPort{portDirect: server}, server
		return newPod(b, backend, istioPod(mode), shape)
	}
	native, transparent := made(ruleset.BackendNftables, "REDIRECT"), made(ruleset.BackendNftables, "TPROXY")
	in := netip.AddrPortFrom(podIP[0], portHTTP)
	ways := []*way{
		{name: "out-passing", pod: native, from: native.fromApp, to: netip.AddrPortFrom(excluded[0], portHTTP)},
		{name: "out-direct", pod: native, from: native.fromApp, to: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), portDirect)},
		{name: "out-nftables", pod: native, from: native.fromApp, to: vip},
		{name: "in-passing", pod: native, from: native.fromOut, to: netip.AddrPortFrom(podIP[0], portExcluded)},
		{name: "in-redirect", pod: native, from: native.fromOut, to: in},
		{name: "in-tproxy", pod: transparent, from: transparent.fromOut, to: in},
	}
	for _, backend := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		p := made(backend, "REDIRECT")
		ways = append(ways, &way{name: "out-" + string(backend), pod: p, from: p.fromApp, to: vip})
	}
	for _, w := range ways {
		w.block(b)
		w.all, w.ours = nil, nil
	}
	for b.Loop() {
		for _, w := range ways {
			w.block(b)
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, w := range ways {
		b.ReportMetric(median(w.all), w.name+"-µs")
		if !strings.HasSuffix(w.name, "-passing") {
			b.ReportMetric(median(w.ours), w.name+"-envoy-µs")
		}
	}
}

func (w *way) block(b *testing.B) {
	b.Helper()
	const connections = 100
	envoy, own := w.used(b)
	for range connections {
		_, answer, err := ask(b.Context(), w.from, w.to)
		require.NoError(b, err)
		require.True(b, strings.HasPrefix(answer, "HTTP/1.1 200"), answer)
	}
	envoyAfter, ownAfter := w.used(b)
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / connections }
	w.ours = append(w.ours, each(envoyAfter-envoy))
	w.all = append(w.all, each(envoyAfter-envoy+ownAfter-own))
}

// used is the processor time of Envoy, and of this process, which has the client and the server.
func (w *way) used(b *testing.B) (envoy, own time.Duration) {
	b.Helper()
	envoy, err := w.pod.proxy.CPU()
	require.NoError(b, err)
	var now unix.Timespec
	require.NoError(b, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now))
	return envoy, time.Duration(now.Nano())
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
