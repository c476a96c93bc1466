package consul_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// proxy is how the proxy of the recordings listens.
var proxy = netnstest.Options{
	ProxyUID: consul.ProxyUID, ProxyGID: consul.ProxyUID,
	ProxyTCP: []uint16{20000, 15001, 8600, 15008, 15020}, ProxyUDP: []uint16{8600},
}

// TestFates: packets end up where they do under Consul's own plugin.
func TestFates(t *testing.T) {
	cases := dialecttest.Recorded(t, "../../testdata/fates/consul")
	require.Len(t, cases, 3)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { dialecttest.Fates(t, consul.New("kube-system"), proxy, c) })
	}
}

// TestFatesOfLookups compares with the rules that Consul's program makes for
// pods that use Consul's DNS, written by hand.
func TestFatesOfLookups(t *testing.T) {
	rest := `-A OUTPUT -p tcp -j CONSUL_PROXY_OUTPUT
-A PREROUTING -p tcp -j CONSUL_PROXY_INBOUND
-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 5995 -j RETURN
-A CONSUL_PROXY_OUTPUT -d 127.0.0.1/32 -j RETURN
-A CONSUL_PROXY_OUTPUT -p tcp -j REDIRECT --to-ports 15001
-A CONSUL_PROXY_INBOUND -p tcp -j REDIRECT --to-ports 20000
COMMIT
`
	head := "*nat\n:CONSUL_PROXY_OUTPUT - [0:0]\n:CONSUL_PROXY_INBOUND - [0:0]\n"
	plan := netnstest.Plan{ProxyUID: 5995, ProxyGID: 5995, Inbound: []uint16{20000, 15001, 15020}}
	probes := netnstest.Probes(plan)
	local := netnstest.Probes(plan)
	for _, name := range []string{
		"pod udp 1000/1000 -> 127.0.0.1:53", "pod tcp 1000/1000 -> 127.0.0.1:53", "pod udp 5995/5995 -> 127.0.0.1:53",
	} {
		p, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		local = append(local, p)
	}
	t.Run("a service", func(t *testing.T) {
		c := dialecttest.Case{Pod: meshed(`{"ProxyUserID":"5995","ProxyInboundPort":20000,"ConsulDNSIP":"198.51.100.10"}`, "false")}
		own := head + `-A OUTPUT -p udp -m udp --dport 53 -j DNAT --to-destination 198.51.100.10
-A OUTPUT -p tcp -m tcp --dport 53 -j DNAT --to-destination 198.51.100.10
` + rest
		dialecttest.Equivalent(t, consul.New(), proxy, c, map[ruleset.Family]string{ruleset.IPv4: own}, probes)
	})
	t.Run("the proxy", func(t *testing.T) {
		c := dialecttest.Case{Pod: meshed(`{"ProxyUserID":"5995","ProxyInboundPort":20000,"ConsulDNSPort":8600}`, "false")}
		own := head + `-A OUTPUT -d 127.0.0.1/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.1:8600
-A OUTPUT -d 127.0.0.1/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.1:8600
` + rest
		dialecttest.Equivalent(t, consul.New(), proxy, c, map[ruleset.Family]string{ruleset.IPv4: own}, local)
	})
}

// TestFatesOfOtherPods compares with Consul's rules, written by hand, for
// settings that no recording has, with dual stack.
func TestFatesOfOtherPods(t *testing.T) {
	plan := netnstest.Plan{ProxyUID: 5995, ProxyGID: 5995, Inbound: []uint16{20000, 15001, 15020}}
	probes := netnstest.Probes(plan)
	for _, name := range []string{"pod udp 1000/1000 -> [::1]:53", "pod tcp 5995/5995 -> [::1]:53", "pod udp 1000/1000 -> 127.0.0.1:53"} {
		p, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		probes = append(probes, p)
	}
	program := func(f ruleset.Family, cidr, lookUps string) string {
		localhost := map[ruleset.Family]string{ruleset.IPv4: "127.0.0.1/32", ruleset.IPv6: "::1/128"}[f]
		return "*nat\n:CONSUL_PROXY_OUTPUT - [0:0]\n:CONSUL_PROXY_INBOUND - [0:0]\n" + lookUps + `-A OUTPUT -p tcp -j CONSUL_PROXY_OUTPUT
-A PREROUTING -p tcp -j CONSUL_PROXY_INBOUND
-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 2000-2001 -j RETURN
-A CONSUL_PROXY_OUTPUT -d ` + cidr + ` -j RETURN
-A CONSUL_PROXY_OUTPUT -p tcp -m tcp --dport 3306 -j RETURN
-A CONSUL_PROXY_OUTPUT -m owner --uid-owner 5995 -j RETURN
-A CONSUL_PROXY_OUTPUT -d ` + localhost + ` -j RETURN
-A CONSUL_PROXY_OUTPUT -p tcp -j REDIRECT --to-ports 15001
-A CONSUL_PROXY_INBOUND -p tcp -m tcp --dport 8080 -j RETURN
-A CONSUL_PROXY_INBOUND -p tcp -m tcp --dport 22:443 -j RETURN
-A CONSUL_PROXY_INBOUND -p tcp -j REDIRECT --to-ports 20000
COMMIT
`
	}
	c := dialecttest.Case{Pod: meshed(`{"ProxyUserID":"5995","ProxyInboundPort":20000,"ConsulDNSPort":8600,"ExcludeInboundPorts":["8080","22:443"],
		"ExcludeOutboundPorts":["3306"],"ExcludeOutboundCIDRs":["10.96.0.0/16","fd00:96::/64"],"ExcludeUIDs":["2000-2001"]}`, "true")}
	dialecttest.Equivalent(t, consul.New(), proxy, c, map[ruleset.Family]string{
		ruleset.IPv4: program(ruleset.IPv4, "10.96.0.0/16", ""),
		ruleset.IPv6: program(ruleset.IPv6, "fd00:96::/64", "-A OUTPUT -d ::1/128 -p udp -m udp --dport 53 -j DNAT --to-destination [::1]:8600\n"+
			"-A OUTPUT -d ::1/128 -p tcp -m tcp --dport 53 -j DNAT --to-destination [::1]:8600\n"),
	}, probes)
}
