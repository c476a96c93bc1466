package acme_test

import (
	"testing"

	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/examples/mesh/acme"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestKernel sends real packets in network namespaces, under each backend. It needs root.
func TestKernel(t *testing.T) {
	proxy := netnstest.Options{ProxyUID: 7001, ProxyGID: 7001, ProxyTCP: []uint16{7001, 7002, 7003}, ProxyUDP: []uint16{7053}}
	dialecttest.Fates(t, mesh, proxy, dialecttest.Case{
		Pod: pod(map[string]string{acme.SkipPorts: "3306", acme.CaptureDNS: "true"}),
		Fates: map[string]string{
			"pod tcp 1000/1000 -> 10.96.5.5:80":        "proxy:7001 orig=10.96.5.5:80",
			"pod tcp 1000/1000 -> [fd00:96::5]:80":     "proxy:7001 orig=[fd00:96::5]:80",
			"pod tcp 1000/1000 -> 172.16.3.3:3306":     "out:3306 orig=172.16.3.3:3306",
			"pod tcp 1000/1000 -> 10.244.1.5:8080":     "app:8080 orig=10.244.1.5:8080",
			"pod tcp 7001/7001 -> 10.96.5.5:80":        "out:80 orig=10.96.5.5:80",
			"pod udp 1000/1000 -> 10.96.0.10:53":       "proxy:7053/udp",
			"pod udp 1000/1000 -> 198.51.100.10:8125":  "out:8125/udp",
			"pod udp 1000/1000 -> [2001:db8::10]:8125": "out:8125/udp",
			"out tcp 0/0 -> 10.244.1.5:8080":           "proxy:7002 orig=10.244.1.5:8080",
			"out tcp 0/0 -> 10.244.1.5:7003":           "proxy:7003 orig=10.244.1.5:7003",
			"out tcp 0/0 -> [fd00:10:244::5]:8080":     "proxy:7002 orig=[fd00:10:244::5]:8080",
		},
	})
}
