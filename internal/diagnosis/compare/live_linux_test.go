package compare_test

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// programs are the rules of the recorded pods, and others with all that the model has.
func programs(t *testing.T) map[string]ruleset.Ruleset {
	t.Helper()
	all := map[string]ruleset.Ruleset{}
	for dir, d := range map[string]dialect.Dialect{"fates": istio.New(), "fates/linkerd": linkerd.New(), "fates/consul": consul.New()} {
		for name, c := range dialecttest.Recorded(t, "../../../testdata/"+dir) {
			if rs, _, err := c.Rules(d); err == nil && rs != (ruleset.Ruleset{}) && !c.Refused {
				all[dir+"/"+name] = rs
			}
		}
	}
	r := redirect.Default()
	r.Mode, r.DropInvalid = redirect.ModeTProxy, true
	r.Proxy.TunnelPort = 15008
	r.Proxy.GIDs = nil
	prefix := netip.MustParsePrefix
	r.DNS = redirect.DNS{Servers: redirect.Prefixes(prefix("10.96.0.10/32"), prefix("fd00:96::10/128")), Port: 15053}
	r.Inbound.ExcludePorts = redirect.Ports(22, 15090)
	r.Outbound.ExcludePorts = redirect.PortRanges(ruleset.PortRange{First: 27017, Last: 27019}, ruleset.Port(3306))
	r.Outbound.ExcludeCIDRs = redirect.Prefixes(prefix("198.51.100.10/32"), prefix("10.1.0.0/17"), prefix("10.4.0.0/14"))
	r.Outbound.CIDRs = redirect.Prefixes(prefix("10.0.0.0/9"), prefix("2001:db8::/33"))
	r.Outbound.Exclude = []redirect.Exclusion{{Ports: redirect.AllPorts(), UIDs: []redirect.IDRange{{First: 1000, Last: 2000}}, CIDRs: redirect.AllPrefixes()}}
	r.ExcludeInterfaces, r.VirtualInterfaces = []string{"net1"}, []string{"virt0"}
	r.Outbound.OwnerGroups = []uint32{5, 6}
	all["rich"] = r.MustRuleset()
	marked := redirect.Default()
	marked.Proxy.UIDs, marked.Proxy.GIDs, marked.Proxy.Mark = nil, nil, redirect.Mark{Value: 0x539, Mask: 0xfff}
	marked.Names.InboundMark, marked.Names.MarkMask = 0x111, 0xfff
	all["marked"] = marked.MustRuleset()
	require.Greater(t, len(all), 20)
	return all
}

func output(t *testing.T, ns *netnsexec.NetNS, stdin, program string, args ...string) string {
	t.Helper()
	netnstest.Require(t, netnstest.Binary(program))
	var out bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	require.NoError(t, ns.Run(cmd), "%s\n%s", &out, stdin)
	return out.String()
}

// look returns a namespace's live rules, as they are and after an agent has sent them.
func look(t *testing.T, ns *netnsexec.NetNS) map[string]ruleset.Live {
	t.Helper()
	live, err := apply.Live(t.Context(), ns, apply.Options{Runner: ns.Sandbox()})
	require.NoError(t, err)
	text, err := json.Marshal(live)
	require.NoError(t, err)
	var sent ruleset.Live
	require.NoError(t, json.Unmarshal(text, &sent))
	return map[string]ruleset.Live{"netlink": live, "JSON": sent}
}

// TestSavedNative: the rules that the kernel has are read back as those that were written.
func TestSavedNative(t *testing.T) {
	for name, rs := range programs(t) {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendNftables, Runner: ns.Sandbox()})
			require.NoError(t, err)
			_, err = b.Apply(t.Context(), rs)
			require.NoError(t, err)
			all := look(t, ns)
			a, err := all["netlink"].Ruleset(rs)
			require.NoError(t, err)
			for from, live := range all {
				other, err := live.Ruleset(rs)
				require.NoError(t, err, from)
				for _, f := range ruleset.Families {
					assert.Equal(t, a.Family(f).String(), other.Family(f).String(), from)
				}
			}
			report, err := compare.Compare(t.Context(), rs, a, compare.Options{PodAddrs: dialecttest.Addrs()})
			require.NoError(t, err)
			assert.Empty(t, report.Differences)
		})
	}
}

// TestSavedPolicies: a chain that drops by its policy is no chain without rules.
func TestSavedPolicies(t *testing.T) {
	for _, tc := range []struct{ program, input, want string }{
		{"nft", "table inet x { chain c { type filter hook output priority 0; policy drop; }; }", "it drops by its policy"},
		{"iptables-nft-restore", "*filter\n:OUTPUT DROP [0:0]\nCOMMIT\n", "policy drop (policies other than accept are not known)"},
	} {
		ns := netnstest.New(t)
		args := []string{}
		if tc.program == "nft" {
			args = []string{"-f", "-"}
		}
		output(t, ns, tc.input, tc.program, args...)
		_, err := look(t, ns)["JSON"].Ruleset(ruleset.Ruleset{})
		require.ErrorContains(t, err, tc.want)
	}
}

// TestSavedForeign: what the model does not have is refused.
func TestSavedForeign(t *testing.T) {
	for _, rule := range []string{
		`iifname . oifname { "lo" . "eth0" } return`, `meta l4proto tcp @th,0,8 0x35 return`, `ip ttl 64 return`,
		`ip saddr . tcp dport { 10.0.0.1 . 80 } return`, `tcp dport vmap { 80 : return }`, `tcp flags syn return`, `log group 1 return`,
		`meta l4proto tcp redirect to :80-90`, `meta l4proto tcp ip daddr 10.0.0.1 dnat ip to 10.0.0.2-10.0.0.3`, `meta mark set meta mark | 1`,
		`ip saddr & 0.0.0.255 == 0.0.0.1 return`, `meta l4proto tcp tcp dport & 1 == 1 return`, `meta l4proto udp udp length 8 return`,
		`meta l4proto icmp icmp type echo-request return`, `fib daddr type broadcast return`, `ct status dnat return`, `meta skuid < 5 return`,
		`meta cgroup 5 return`, `socket transparent 1 return`, `ip dscp 1 return`, `meta mark and 0xff < 5 return`, `ct direction reply return`,
		`meta nfproto != ipv4 return`, `meta l4proto != tcp return`, `ip saddr 10.0.0.0/8 return; quota over 5 bytes drop`, `meta random 5 return`,
		`ct mark set meta mark & 0xff`, `ct original ip saddr 10.0.0.1 return`, `meta length > 5 return`, `ip daddr != { 10.0.0.1, 10.0.0.2 } return`,
	} {
		ns := netnstest.New(t)
		output(t, ns, "table inet x { chain c { type nat hook output priority -100; "+rule+"; }; }", "nft", "-f", "-")
		for from, live := range look(t, ns) {
			_, err := live.Ruleset(ruleset.Ruleset{})
			var foreign *ruleset.ForeignError
			assert.ErrorAs(t, err, &foreign, "%s: %s", from, rule)
		}
	}
}

// native is a program that another mesh has written to nftables directly.
const native = `table inet istio-proxy-nat { # handle 3
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		meta l4proto tcp counter packets 12 bytes 720 jump istio-inbound
	}
	chain output {
		type nat hook output priority -100; policy accept;
		counter packets 3 bytes 180 jump istio-output
	}
	chain istio-inbound {
		tcp dport 15008 counter packets 0 bytes 0 return
		tcp dport { 15020, 15021, 15090 } counter packets 0 bytes 0 return
		meta l4proto tcp counter packets 0 bytes 0 jump istio-in-redirect
	}
	chain istio-redirect {
		meta l4proto tcp counter packets 0 bytes 0 redirect to :15001
	}
	chain istio-in-redirect {
		meta l4proto tcp counter packets 0 bytes 0 redirect to :15006
	}
	chain istio-output {
		meta l4proto { tcp, udp } th dport 15020 counter packets 0 bytes 0 return
		ip saddr 127.0.0.6 oifname "lo" counter packets 0 bytes 0 return
		ip6 saddr ::6 oifname "lo" counter packets 0 bytes 0 return
		oifname "lo" ip daddr != 127.0.0.1 tcp dport != 15008 meta skuid 1337 counter packets 0 bytes 0 jump istio-in-redirect comment "a # {call} to itself"
		oifname "lo" ip6 daddr != ::1 tcp dport != 15008 skuid 1337 counter packets 0 bytes 0 jump istio-in-redirect
		oifname "lo" meta skuid != 1337 counter packets 0 bytes 0 return
		meta skuid 1337 counter packets 0 bytes 0 return
		oifname "lo" ip daddr != 127.0.0.1 tcp dport != 15008 meta skgid 1337 counter packets 0 bytes 0 jump istio-in-redirect
		oifname "lo" ip6 daddr != ::1 tcp dport != 15008 meta skgid 1337 counter packets 0 bytes 0 jump istio-in-redirect
		oifname "lo" meta skgid != 1337 counter packets 0 bytes 0 return
		meta skgid 1337 counter packets 0 bytes 0 return
		ip daddr 127.0.0.1 counter packets 0 bytes 0 return
		ip6 daddr ::1 counter packets 0 bytes 0 return
		counter packets 0 bytes 0 jump istio-redirect
	}
}
table inet istio-proxy-mangle {
	chain prerouting {
		type filter hook prerouting priority mangle; policy accept;
	}
}
`

// istioRules are ours for a pod of the same mesh.
func istioRules() ruleset.Ruleset {
	r := istio.DefaultRedirect()
	r.IPv6 = redirect.FamilyCapture
	r.Outbound.ExcludePorts = redirect.Ports(15020)
	r.Inbound.ExcludePorts = redirect.Ports(15020, 15021, 15090)
	return r.MustRuleset()
}

// TestSavedPeer: the live rules of a program that writes to nftables directly are compared with ours.
func TestSavedPeer(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	report := run(t, written(t, native, istioRules()), istioRules())
	assert.Empty(t, report.Differences)
	assert.Greater(t, report.Packets, 500)

	for from, to := range map[string]string{
		"tcp dport 15008 counter packets 0 bytes 0 return": "tcp dport 15009 return",
		"15020, 15021, 15090":                              "15020-15021, 15090, 8080",
		"127.0.0.6":                                        "127.0.0.7",
		"redirect to :15001":                               "redirect to :15002",
		"th dport 15020":                                   "th dport 15019",
		`oifname "lo" meta skuid`:                          `oifname != "lo" meta skuid`,
	} {
		require.Contains(t, native, from)
		read := written(t, strings.Replace(native, from, to, 1), istioRules())
		assert.NotEmpty(t, run(t, read, istioRules()).Differences, to)
	}
}

// written is the program of live rules that nft has written.
func written(t *testing.T, text string, beside ruleset.Ruleset) ruleset.Ruleset {
	t.Helper()
	ns := netnstest.New(t)
	output(t, ns, text, "nft", "-f", "-")
	rs, err := look(t, ns)["netlink"].Ruleset(beside)
	require.NoError(t, err)
	return rs
}

// TestSavedWildcards: nftables' wildcard of interfaces is iptables'.
func TestSavedWildcards(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	program, err := parse("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -i br+ -p tcp -j REDIRECT --to-ports 15001\nCOMMIT\n", ruleset.Ruleset{})
	require.NoError(t, err)
	for name, same := range map[string]bool{"br*": true, "br": false} {
		read := written(t, `table ip x { chain prerouting { type nat hook prerouting priority dstnat; iifname "`+name+`" meta l4proto tcp redirect to :15001; }; }`, ruleset.Ruleset{})
		report, err := compare.Compare(t.Context(), program, read, compare.Options{})
		require.NoError(t, err)
		assert.Equal(t, same, len(report.Differences) == 0, name)
	}
}

// TestSavedSeveral: what two programs have written is not one text.
func TestSavedSeveral(t *testing.T) {
	_, err := ruleset.Live{{Backend: ruleset.BackendIptablesNFT}, {Backend: ruleset.BackendNftables}}.Ruleset(ruleset.Ruleset{})
	require.ErrorContains(t, err, "iptables-nft and nftables")
}
