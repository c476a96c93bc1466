package envoy

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const portDirect = 15080

// BenchmarkOutbound makes each request twice, through the same Envoy to the same server: addressed directly, at a port of
// its own, and redirected. Only the ratio and the difference of the two compare between machines.
//
//	go -C e2e test -run '^$' -bench Outbound -benchtime 3000x ./envoy
func BenchmarkOutbound(b *testing.B) {
	for _, backend := range backends {
		shape := istioShape("REDIRECT")
		server, vip := netip.AddrPortFrom(serviceIP[0], portHTTP), netip.MustParseAddrPort("10.96.9.9:80")
		shape.Direct = map[uint16]netip.AddrPort{portDirect: server}
		shape.Services[vip] = server
		b.Run(string(backend), func(b *testing.B) {
			p := newPod(b, backend, istioPod("REDIRECT"), shape)
			direct := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), portDirect)
			b.Run("keep-alive", func(b *testing.B) {
				client, _ := p.fromApp.client(b, nil)
				p.both(b, direct, vip, func(dst netip.AddrPort) error {
					resp, err := client.Get("http://" + dst.String() + "/") //nolint:noctx // ends with the client's timeout
					if err != nil {
						return err
					}
					defer func() { _ = resp.Body.Close() }()
					if resp.StatusCode != http.StatusOK {
						return errNoAnswer
					}
					return nil
				})
			})
			b.Run("connection each", func(b *testing.B) {
				p.both(b, direct, vip, func(dst netip.AddrPort) error {
					_, err := once(b.Context(), p.fromApp, dst)
					return err
				})
			})
		})
	}
}

// both makes requests to both destinations in turn, and reports medians in microseconds and requests per second.
func (p *pod) both(b *testing.B, direct, redirected netip.AddrPort, request func(netip.AddrPort) error) {
	var took [2][]time.Duration
	for range 50 { // connections, buffers
		require.NoError(b, request(direct))
		require.NoError(b, request(redirected))
	}
	for b.Loop() {
		for i, dst := range []netip.AddrPort{direct, redirected} {
			start := time.Now()
			if err := request(dst); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	var median, rate [2]float64
	for i, times := range took {
		var sum time.Duration
		for _, d := range times {
			sum += d
		}
		rate[i] = float64(len(times)) / sum.Seconds()
		slices.Sort(times)
		median[i] = float64(times[len(times)/2].Nanoseconds()) / 1000
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median[0], "direct-µs")
	b.ReportMetric(median[1]-median[0], "added-µs")
	b.ReportMetric(median[1]/median[0], "ratio")
	b.ReportMetric(rate[0], "direct-req/s")
	b.ReportMetric(rate[1], "redirected-req/s")
}
