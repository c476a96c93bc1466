package redirect_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/rulesettest"
)

func prefixSet(list ...string) redirect.PrefixSet {
	var p []netip.Prefix
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return redirect.Prefixes(p...)
}

// marked is a proxy that is known by the mark of its packets.
func marked() redirect.Redirect {
	r := redirect.Default()
	r.Proxy.UIDs = nil
	r.Proxy.Mark = redirect.Mark{Value: 0x539, Mask: 0xfff}
	r.Proxy.TunnelPort = 15008
	r.Loopback = redirect.LoopbackPass
	r.Names.InboundMark, r.Names.MarkMask, r.Names.RouteTable, r.Names.RoutePriority = 0x111, 0xfff, 100, 32764
	return r
}

// rulesOf returns the rules of a chain of the IPv4 program, those of raw aside.
func rulesOf(t *testing.T, r redirect.Redirect, chain string) string {
	t.Helper()
	rs, err := r.Ruleset()
	require.NoError(t, err)
	var lines []string
	for _, c := range rs.IPv4.Chains {
		if c.Name != chain || c.Table == ruleset.Raw {
			continue
		}
		for _, r := range c.Rules {
			lines = append(lines, r.Text(ruleset.IPv4))
		}
	}
	return strings.Join(lines, "\n")
}

const defaultOutput = `! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 1337 -j MESH_IN_REDIRECT
-o lo -m owner ! --uid-owner 1337 -j RETURN
-m owner --uid-owner 1337 -j RETURN
-d 127.0.0.1/32 -j RETURN
-j MESH_REDIRECT`

func TestGrownFields(t *testing.T) {
	dns := func(r *redirect.Redirect, d redirect.DNS) {
		r.DNS = d
	}
	tests := []struct {
		name   string
		change func(*redirect.Redirect)
		chain  string
		want   string
	}{
		{"as before", func(*redirect.Redirect) {}, "MESH_OUTPUT", defaultOutput},
		{"exclude an address", func(r *redirect.Redirect) {
			r.Outbound.Exclude = []redirect.Exclusion{{Ports: redirect.AllPorts(), CIDRs: prefixSet("10.0.0.0/8", "fd00::/8")}}
		}, "MESH_OUTPUT", "-d 10.0.0.0/8 -j RETURN\n" + defaultOutput},
		{"exclude ports of users", func(r *redirect.Redirect) {
			r.Outbound.Exclude = []redirect.Exclusion{{
				Protocol: redirect.UDP, Ports: redirect.Ports(53, 8125), CIDRs: redirect.AllPrefixes(),
				UIDs: []redirect.IDRange{redirect.IDRange{First: 5, Last: 5}, {First: 1000, Last: 2000}},
			}}
		}, "MESH_OUTPUT", "-p udp -m multiport --dports 53,8125 -m owner --uid-owner 5 -j RETURN\n" +
			"-p udp -m multiport --dports 53,8125 -m owner --uid-owner 1000-2000 -j RETURN\n" + defaultOutput},
		{"exclude sources", func(r *redirect.Redirect) {
			r.Inbound.ExcludeSources = prefixSet("192.168.0.0/16", "fd00::/8")
		}, "MESH_INBOUND", "-s 192.168.0.0/16 -j RETURN\n-p tcp -j MESH_IN_REDIRECT"},
		{"exclude sources of listed ports", func(r *redirect.Redirect) {
			r.Inbound.Ports = redirect.Ports(80)
			r.Inbound.ExcludeSources = prefixSet("192.168.0.0/16")
		}, "MESH_INBOUND", "-s 192.168.0.0/16 -j RETURN\n-p tcp -m tcp --dport 80 -j MESH_IN_REDIRECT"},
		{"loopback pass", func(r *redirect.Redirect) {
			r.Loopback = redirect.LoopbackPass
		}, "MESH_OUTPUT", `-m owner --uid-owner 1337 -j RETURN
-o lo -j RETURN
-d 127.0.0.1/32 -j RETURN
-j MESH_REDIRECT`},
		{"loopback capture", func(r *redirect.Redirect) {
			r.Loopback = redirect.LoopbackCapture
		}, "MESH_OUTPUT", `-m owner --uid-owner 1337 -j RETURN
-d 127.0.0.1/32 -j RETURN
-j MESH_REDIRECT`},
		{"look-ups of everyone go elsewhere", func(r *redirect.Redirect) {
			r.Loopback = redirect.LoopbackCapture
			dns(r, redirect.DNS{Servers: prefixSet("127.0.0.1/32"), To: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8600")}, Everyone: true})
		}, "MESH_OUTPUT", `-j MESH_OUTPUT_DNS
-m owner --uid-owner 1337 -j RETURN
-d 127.0.0.1/32 -j RETURN
-j MESH_REDIRECT`},
		{"where look-ups go", func(r *redirect.Redirect) {
			dns(r, redirect.DNS{Servers: redirect.AllPrefixes(), To: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.10:0"), netip.MustParseAddrPort("[fd00::10]:8600")}})
		}, "MESH_OUTPUT_DNS", `-p tcp -m tcp --dport 53 -j DNAT --to-destination 10.0.0.10
-p udp -m udp --dport 53 -j DNAT --to-destination 10.0.0.10`},
		{"look-ups over UDP only", func(r *redirect.Redirect) {
			dns(r, redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053, UDPOnly: true})
		}, "MESH_OUTPUT", `! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 1337 -j MESH_IN_REDIRECT
-o lo -p tcp -m tcp ! --dport 53 -m owner ! --uid-owner 1337 -j RETURN
-m owner --uid-owner 1337 -j RETURN
-j MESH_OUTPUT_DNS
-p tcp -m tcp --dport 53 -j RETURN
-d 127.0.0.1/32 -j RETURN
-j MESH_REDIRECT`},
		{"look-ups over TCP as outbound connections", func(r *redirect.Redirect) {
			dns(r, redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053, UDPOnly: true, TCPOutbound: true})
		}, "MESH_OUTPUT", `! -d 127.0.0.1/32 -o lo -p tcp -m owner --uid-owner 1337 -j MESH_IN_REDIRECT
-o lo -p tcp -m tcp ! --dport 53 -m owner ! --uid-owner 1337 -j RETURN
-m owner --uid-owner 1337 -j RETURN
-j MESH_OUTPUT_DNS
-d 127.0.0.1/32 -j RETURN
-j MESH_REDIRECT`},
		{"virtual network", func(r *redirect.Redirect) {
			dns(r, redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053})
			r.VirtualNetworks = []redirect.VirtualNetwork{
				{Interface: "docker0", Local: netip.MustParsePrefix("172.17.0.0/16")},
				{Interface: "docker0", Local: netip.MustParsePrefix("fd00::/64")},
			}
		}, "MESH_PREROUTING", `-i docker0 -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053
! -d 172.17.0.0/16 -i docker0 -p tcp -j MESH_REDIRECT
-p tcp -j MESH_INBOUND`},
		{"log", func(r *redirect.Redirect) { r.Log = redirect.Log{Enabled: true, Level: 7} }, "MESH_OUTPUT",
			`-j LOG --log-prefix "MESH_OUTPUT: " --log-level 7` + "\n" + defaultOutput},
		{"proxy by mark, outbound", func(r *redirect.Redirect) { *r = marked() }, "MESH_OUTPUT",
			`-m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
-p tcp -m mark --mark 0x111/0xfff -j RETURN
-o lo -j RETURN
-m mark --mark 0x539/0xfff -j RETURN
-d 127.0.0.1/32 -j RETURN
-j MESH_REDIRECT`},
		{"proxy by mark, replies", func(r *redirect.Redirect) { *r = marked() }, "MESH_PREROUTING",
			"-m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff\n-p tcp -j MESH_INBOUND"},
		{"proxy by mark, replies where nothing inbound is captured", func(r *redirect.Redirect) { *r = marked(); r.Inbound = redirect.Inbound{Ports: redirect.NoPorts()} },
			"MESH_PREROUTING", "-m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff"},
		{"proxy by mark, inbound", func(r *redirect.Redirect) { *r = marked() }, "MESH_INBOUND",
			`-p tcp -m tcp --dport 15008 -j RETURN
-m mark --mark 0x539/0xfff -j RETURN
! -d 127.0.0.1/32 -p tcp -j MESH_IN_REDIRECT`},
		{"final, outbound", func(r *redirect.Redirect) {
			*r = marked()
			r.FinalPass = true
			r.Outbound.Exclude = []redirect.Exclusion{{Protocol: redirect.TCP, Ports: redirect.AllPorts(), CIDRs: prefixSet("192.0.2.1/32")}}
			r.Outbound.ExcludeCIDRs, r.Outbound.ExcludePorts = prefixSet("10.0.0.0/8"), redirect.Ports(22)
			r.Outbound.ExcludeOwnerGroups, r.ExcludeInterfaces = []uint32{7}, []string{"net1"}
		}, "MESH_OUTPUT", `-m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
-o net1 -j ACCEPT
-p tcp -m tcp --dport 22 -j ACCEPT
-p udp -m udp --dport 22 -j ACCEPT
-d 192.0.2.1/32 -p tcp -j ACCEPT
-p tcp -m mark --mark 0x111/0xfff -j ACCEPT
! -d 127.0.0.1/32 -o lo -j ACCEPT
-m mark --mark 0x539/0xfff -j RETURN
-m owner --gid-owner 7 -j ACCEPT
-d 127.0.0.1/32 -j RETURN
-d 10.0.0.0/8 -j ACCEPT
-j MESH_REDIRECT`},
		{"final, inbound", func(r *redirect.Redirect) {
			*r = marked()
			r.FinalPass = true
			r.Inbound.ExcludeSources, r.Inbound.ExcludePorts = prefixSet("192.0.2.1/32"), redirect.Ports(22)
		}, "MESH_INBOUND", `-s 192.0.2.1/32 -j ACCEPT
-p tcp -m tcp --dport 15008 -j RETURN
-p tcp -m tcp --dport 22 -j ACCEPT
-m mark --mark 0x539/0xfff -j RETURN
! -d 127.0.0.1/32 -p tcp -j MESH_IN_REDIRECT`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := redirect.Default()
			tt.change(&r)
			assert.Equal(t, tt.want, rulesOf(t, r, tt.chain))

			// The value, and its text, survive a round trip.
			b, err := json.Marshal(r)
			require.NoError(t, err)
			var back redirect.Redirect
			require.NoError(t, json.Unmarshal(b, &back))
			assert.True(t, back.MustRuleset().Equal(r.MustRuleset()), "%s", b)
			assert.True(t, r.Clone().MustRuleset().Equal(r.MustRuleset()))
			for _, f := range ruleset.Families {
				p := r.MustRuleset().Family(f)
				saved, err := ruleset.Parse(f, p.String())
				require.NoError(t, err)
				assert.Empty(t, p.Diff(saved))
			}
		})
	}
}

// TestLocalhost: what counts as localhost is left alone on the way out, whoever sends it, and TPROXY does not take it. The rest of
// the loopback range is any other destination.
func TestLocalhost(t *testing.T) {
	own := "-o lo -p tcp -m tcp ! --dport 15008 -m owner --uid-owner 1337 "
	for _, tt := range []struct{ localhost, want, rest string }{
		{"", "127.0.0.1/32", "127.9.0.1"},
		{"127.0.0.1/32", "127.0.0.1/32", "127.0.0.2"},
		{"127.0.0.1/8", "127.0.0.0/8", ""},
		{"127.3.0.0/16", "127.3.0.0/16", "127.0.0.1"},
	} {
		r := redirect.Default()
		r.Mode = redirect.ModeTProxy
		r.Proxy.TunnelPort = 15008
		if tt.localhost != "" {
			r.Localhost = netip.MustParsePrefix(tt.localhost)
		}
		require.NoError(t, r.Validate())
		rs := r.MustRuleset()
		nat, mangle := rs.IPv4.String(), rs.IPv6.String()
		assert.Contains(t, nat, "-d "+tt.want+" -j RETURN")
		assert.Contains(t, nat, "! -d "+tt.want+" "+own)
		assert.Contains(t, nat, "! -d "+tt.want+" -p tcp -j TPROXY")
		assert.Contains(t, mangle, "-d ::1/128 -j RETURN", "IPv6 has one such address")

		lines := "out tcp uid 1000 -> " + netip.MustParsePrefix(tt.want).Addr().String() + ":80 => pass\n"
		r.Loopback = redirect.LoopbackCapture // without the rule that passes all that stays within the pod
		if tt.rest != "" {
			lines += "out tcp uid 1000 -> " + tt.rest + ":80 => redirect 15001\n"
		}
		rulesettest.New(t, r.MustRuleset(), "10.244.1.5").Table(lines)
	}
}

func TestGrownFieldsRefused(t *testing.T) {
	exclude := func(e redirect.Exclusion) func(*redirect.Redirect) {
		return func(r *redirect.Redirect) { r.Outbound.Exclude = []redirect.Exclusion{e} }
	}
	all := redirect.AllPrefixes()
	tests := []struct {
		field  string
		change func(*redirect.Redirect)
	}{
		{"loopback", func(r *redirect.Redirect) { r.Loopback = "bounce" }},
		{"localhost", func(r *redirect.Redirect) { r.Localhost = netip.MustParsePrefix("127.0.0.0/7") }},
		{"localhost", func(r *redirect.Redirect) { r.Localhost = netip.MustParsePrefix("10.0.0.0/8") }},
		{"localhost", func(r *redirect.Redirect) { r.Localhost = netip.MustParsePrefix("::1/128") }},
		{"log.level", func(r *redirect.Redirect) { r.Log.Level = 8 }},
		{"inbound.excludeSources", func(r *redirect.Redirect) { r.Inbound.ExcludeSources = all }},
		{"inbound.probeSources", func(r *redirect.Redirect) { r.Inbound.ProbeSources = all }},
		{"outbound.exclude[0].ports", exclude(redirect.Exclusion{CIDRs: prefixSet("10.0.0.0/8")})},
		{"outbound.exclude[0].cidrs", exclude(redirect.Exclusion{Protocol: redirect.TCP, Ports: redirect.AllPorts()})},
		{"outbound.exclude[0].ports", exclude(redirect.Exclusion{Ports: redirect.Ports(80), CIDRs: all})},
		{"outbound.exclude[0]", exclude(redirect.Exclusion{Ports: redirect.AllPorts(), CIDRs: all})},
		{"outbound.exclude[0].protocol", exclude(redirect.Exclusion{Protocol: "sctp", Ports: redirect.AllPorts(), CIDRs: all})},
		{"outbound.exclude[0].uids", exclude(redirect.Exclusion{Ports: redirect.AllPorts(), CIDRs: all, UIDs: []redirect.IDRange{{First: 2, Last: 1}}})},
		{"dns.port", func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: all} }},
		{"dns.to", func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: all, Port: 1, To: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:53")}}
		}},
		{"dns.to", func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: all, To: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:53"), netip.MustParseAddrPort("10.0.0.2:53")}}
		}},
		{"dns.to", func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: all, To: []netip.AddrPort{{}}} }},
		{"dns.tcpOutbound", func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: all, Port: 15053, TCPOutbound: true} }},
		{"dns.everyone", func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: all, Port: 15053, Everyone: true} }},
		{"virtualNetworks[0].interface", func(r *redirect.Redirect) {
			r.VirtualNetworks = []redirect.VirtualNetwork{{Interface: "-j", Local: netip.MustParsePrefix("10.0.0.0/8")}}
		}},
		{"virtualNetworks[1]", func(r *redirect.Redirect) {
			n := redirect.VirtualNetwork{Interface: "a", Local: netip.MustParsePrefix("10.0.0.0/8")}
			r.VirtualNetworks = []redirect.VirtualNetwork{n, n}
		}},
		{"proxy.mark", func(r *redirect.Redirect) { r.Proxy.Mark = redirect.Mark{Value: 1} }},
		{"proxy.mark", func(r *redirect.Redirect) { *r = marked(); r.Proxy.Mark.Value = 0x1539 }},
		{"proxy.mark", func(r *redirect.Redirect) { *r = marked(); r.Mode = redirect.ModeTProxy }},
		{"names.inboundMark", func(r *redirect.Redirect) { *r = marked(); r.Names.InboundMark = 0x1111 }},
		{"names.inboundMark", func(r *redirect.Redirect) { *r = marked(); r.Names.InboundMark = 0x539 }},
		{"names.routeTable", func(r *redirect.Redirect) { *r = marked(); r.Names.RouteTable = 254 }},
	}
	for _, tt := range tests {
		r := redirect.Default()
		tt.change(&r)
		assert.ErrorContains(t, r.Validate(), "redirect: "+tt.field+": ")
	}
}

// What a proxy known by its mark sends passes, and the application's replies
// come back to it whoever the client was.
func TestProxyByMark(t *testing.T) {
	r := marked()
	r.Inbound.ProbeSources, r.Inbound.ProbePorts = prefixSet("169.254.7.127/32"), redirect.Ports(8080)
	rules := rulesettest.New(t, r.MustRuleset(), "10.244.1.5")
	rules.Table(`
		out tcp uid 1337 -> 10.0.0.1:80                      => redirect 15001
		out tcp -> 10.0.0.1:80 mark 0x539                    => pass
		out tcp -> 10.0.0.1:80 mark 0xabc539                 => pass
		out tcp from 192.0.2.7 -> 10.244.1.5:8080 mark 0x539 => pass
		in  tcp from 192.0.2.7 -> 10.244.1.5:8080            => redirect 15006
		in  tcp from 169.254.7.127 -> 10.244.1.5:8080        => pass
		in  tcp from 169.254.7.127 -> 10.244.1.5:8081        => redirect 15006
		in  tcp from 192.0.2.7 -> 10.244.1.5:15008           => pass
	`)
}

// What the proxy's mark is for holds in a family that is discarded, too: the
// proxy and its tunnel are let through there, so the answers must reach it.
func TestProxyByMarkInDroppedFamily(t *testing.T) {
	r := marked()
	r.IPv4 = redirect.FamilyDrop
	rs := r.MustRuleset()
	assert.Contains(t, rulesOf(t, r, "MESH_PREROUTING"), "-m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff\n")
	assert.Contains(t, rulesOf(t, r, "MESH_OUTPUT"), "-m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark")
	require.NotNil(t, rs.IPv4.Routing)
	assert.EqualValues(t, 100, rs.IPv4.Routing.Table)
	rules := rulesettest.New(t, rs, "10.244.1.5")
	rules.Table(`
		in  tcp from 192.0.2.7 -> 10.244.1.5:15008 => pass
		in  tcp from 192.0.2.7 -> 10.244.1.5:8080  => drop
		out tcp -> 10.0.0.1:80                     => drop
		out tcp -> 10.0.0.1:80 mark 0x539          => pass
	`)
}

func TestIDRange(t *testing.T) {
	for s, want := range map[string]redirect.IDRange{"0": {}, "1000": redirect.IDRange{First: 1000, Last: 1000}, "1000-2000": {First: 1000, Last: 2000}} {
		got, err := redirect.ParseIDRange(s)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		assert.Equal(t, s, got.String())
	}
	for _, s := range []string{"", "-1", "1-", "2-1", "4294967295", "root", "1,2", "1 "} {
		_, err := redirect.ParseIDRange(s)
		assert.Error(t, err, s)
	}
}
