package trace_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

const mark, connMark = 0x539, 0x111

// byMark is a redirection to a proxy that is known by its mark, as a node's proxy is.
func byMark() redirect.Redirect {
	r := redirect.Default()
	r.Proxy.UIDs = nil
	r.Proxy.Mark = redirect.Mark{Value: mark, Mask: 0xfff}
	r.Names.InboundMark, r.Names.MarkMask = connMark, 0xfff
	return withDNS(r)
}

// sidecar is a redirection to a pod's own proxy, in Istio's shape.
func sidecar() redirect.Redirect {
	r := redirect.Default()
	r.Proxy.GIDs, r.Proxy.PassSources = []uint32{1337}, []netip.Addr{netip.MustParseAddr("127.0.0.6")}
	return withDNS(r)
}

func withDNS(r redirect.Redirect) redirect.Redirect {
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	return r
}

func tproxy() redirect.Redirect {
	r := redirect.Default()
	r.Mode = redirect.ModeTProxy
	return withDNS(r)
}

// listeners are those of the pod of a redirection.
func listeners(r redirect.Redirect) []trace.Listener {
	proxy := trace.Listener{Mark: r.Proxy.Mark.Value, UID: 1337, GID: 1337, Onward: &trace.Onward{Mark: r.Proxy.Mark.Value}}
	outbound, inbound, dns := proxy, proxy, proxy
	outbound.Port, inbound.Port, dns.Port = r.Proxy.OutboundPort, r.Proxy.InboundPort, 15053
	inbound.Transparent = true
	switch {
	case r.Mode == redirect.ModeTProxy:
		// As the proxy's own user it would be redirected in OUTPUT as a call to its own pod's service.
		inbound.UID, inbound.GID = 0, 0
		inbound.Onward = &trace.Onward{AsClient: true, Mark: r.Names.InboundMark}
	case r.Proxy.Mark.IsZero():
		inbound.Onward = &trace.Onward{Src: netip.MustParseAddr("127.0.0.6")}
	default:
		inbound.Onward = &trace.Onward{AsClient: true, Mark: r.Proxy.Mark.Value}
	}
	return []trace.Listener{outbound, inbound, dns, {UID: 1000, GID: 1000}}
}

func connect(tb testing.TB, rs ruleset.Ruleset, r redirect.Redirect, first string) trace.Conversation {
	tb.Helper()
	got, err := trace.TraceConnection(rs, trace.Connection{First: packet(tb, first), Listeners: listeners(r)})
	require.NoError(tb, err)
	return got
}

func TestConnections(t *testing.T) {
	modes := map[string]redirect.Redirect{"redirect": sidecar(), "tproxy": tproxy(), "by mark": byMark()}
	tests := []struct {
		mode, first        string
		want               string
		serverSees, onward string // peer -> local
	}{
		{"redirect", "out tcp uid 1000 -> 10.96.5.5:80", "established (15001)", "10.244.1.5:40000 -> 127.0.0.1:15001", "10.244.1.5:40001 -> 10.96.5.5:80"},
		{"redirect", "out tcp uid 1000 -> [fd00:96::5]:80", "established (15001)", "[fd00:10:244::5]:40000 -> [::1]:15001", "[fd00:10:244::5]:40001 -> [fd00:96::5]:80"},
		{"redirect", "out tcp uid 1337 -> 10.96.5.5:80", "established", "10.244.1.5:40000 -> 10.96.5.5:80", ""},
		{"redirect", "out tcp uid 1000 -> 10.244.1.5:8080", "established (8080)", "10.244.1.5:40000 -> 10.244.1.5:8080", ""},
		{"redirect", "out tcp uid 1337 -> 10.244.1.5:8080", "established (15006)", "10.244.1.5:40000 -> 127.0.0.1:15006", "127.0.0.6:40001 -> 10.244.1.5:8080"},
		{"redirect", "in tcp from 10.0.0.9 -> 10.244.1.5:8080", "established (15006)", "10.0.0.9:40000 -> 10.244.1.5:15006", "127.0.0.6:40001 -> 10.244.1.5:8080"},
		{"redirect", "out udp uid 1000 -> 10.96.0.10:53", "established (15053)", "10.244.1.5:40000 -> 127.0.0.1:15053", "10.244.1.5:40001 -> 10.96.0.10:53"},
		{"redirect", "out udp uid 1000 -> 198.51.100.10:8125", "established", "10.244.1.5:40000 -> 198.51.100.10:8125", ""},
		{"redirect", "in udp from 10.0.0.9 -> 10.244.1.5:5000", "established (5000)", "10.0.0.9:40000 -> 10.244.1.5:5000", ""},
		{"redirect", "in udp from 10.99.0.2 -> 198.51.100.10:8125 in virt0", "established", "10.99.0.2:40000 -> 198.51.100.10:8125", ""},
		{"tproxy", "in tcp from 10.0.0.9 -> 10.244.1.5:8080", "established (15006)", "10.0.0.9:40000 -> 10.244.1.5:8080", "10.0.0.9:40001 -> 10.244.1.5:8080"},
		{"tproxy", "in tcp from 2001:db8::9 -> [fd00:10:244::5]:8080", "established (15006)", "[2001:db8::9]:40000 -> [fd00:10:244::5]:8080", "[2001:db8::9]:40001 -> [fd00:10:244::5]:8080"},
		{"tproxy", "out tcp uid 1000 -> 10.96.5.5:80", "established (15001)", "10.244.1.5:40000 -> 127.0.0.1:15001", "10.244.1.5:40001 -> 10.96.5.5:80"},
		{"tproxy", "out tcp uid 1000 -> 10.244.1.5:8080", "established (8080)", "10.244.1.5:40000 -> 10.244.1.5:8080", ""},
		{"by mark", "in tcp from 10.0.0.9 -> 10.244.1.5:8080", "established (15006)", "10.0.0.9:40000 -> 10.244.1.5:15006", "10.0.0.9:40001 -> 10.244.1.5:8080"},
		{"by mark", "out tcp uid 1000 -> 10.96.5.5:80", "established (15001)", "10.244.1.5:40000 -> 127.0.0.1:15001", "10.244.1.5:40001 -> 10.96.5.5:80"},
		{"by mark", "out udp uid 1000 -> 10.96.0.10:53", "established (15053)", "10.244.1.5:40000 -> 127.0.0.1:15053", "10.244.1.5:40001 -> 10.96.0.10:53"},
	}
	for _, tt := range tests {
		t.Run(tt.mode+"/"+tt.first, func(t *testing.T) {
			r := modes[tt.mode]
			got := connect(t, r.MustRuleset(), r, tt.first)
			assert.Equal(t, tt.want, got.String(), got.Explain())
			assert.Len(t, got.Packets, 4, got.Explain())
			assert.Equal(t, got.Client.Peer, packet(t, tt.first).Dst)
			sees := func(e trace.Endpoint) string { return e.Peer.String() + " -> " + e.Local.String() }
			assert.Equal(t, tt.serverSees, sees(got.Server), got.Explain())
			if tt.onward != "" {
				require.NotNil(t, got.Onward)
				onward := got.Onward
				for onward.Onward != nil {
					onward = onward.Onward
				}
				assert.Equal(t, tt.onward, sees(onward.Server), got.Explain())
			} else {
				assert.Nil(t, got.Onward)
			}
			_, err := json.Marshal(got)
			require.NoError(t, err)
		})
	}
}

// without takes rules out of a ruleset.
func without(rs ruleset.Ruleset, lost func(ruleset.Table, ruleset.Rule) bool) ruleset.Ruleset {
	var out ruleset.Ruleset
	for _, f := range ruleset.Families {
		p := *rs.Family(f)
		p.Chains = slices.Clone(p.Chains)
		for i, c := range p.Chains {
			p.Chains[i].Rules = slices.DeleteFunc(slices.Clone(c.Rules), func(r ruleset.Rule) bool { return lost(c.Table, r) })
		}
		out.Set(&p)
	}
	return out
}

// A rule by which answers find their way is not met by first packets, and a connection fails without it.
func TestLostRules(t *testing.T) {
	action := func(a ruleset.Action) func(ruleset.Table, ruleset.Rule) bool {
		return func(_ ruleset.Table, r ruleset.Rule) bool { return r.Target.Action == a }
	}
	comment := func(text string) func(ruleset.Table, ruleset.Rule) bool {
		return func(_ ruleset.Table, r ruleset.Rule) bool { return r.Comment == text }
	}
	tests := []struct {
		name     string
		redirect redirect.Redirect
		lost     func(ruleset.Table, ruleset.Rule) bool
		first    string
		verdict  trace.ConnectionVerdict
		reason   string
	}{
		{"by mark: connection is not marked", byMark(), action(ruleset.ActionSetConnMark), "in tcp from 10.0.0.9 -> 10.244.1.5:8080", trace.AnswerLost, "leaves by eth0"},
		{"by mark: mark is not restored", byMark(), action(ruleset.ActionRestoreMark), "in tcp from 10.0.0.9 -> 10.244.1.5:8080", trace.AnswerLost, "leaves by eth0"},
		{"by mark: the tunnel", byMark(), action(ruleset.ActionRestoreMark), "out tcp mark 0x539 from 198.51.100.10 -> 10.244.1.5:8080", trace.AnswerLost, "leaves by eth0"},
		{"tproxy: mark is not saved", tproxy(), action(ruleset.ActionSaveMark), "in tcp from 10.0.0.9 -> 10.244.1.5:8080", trace.AnswerLost, "leaves by eth0"},
		{"tproxy: mark is not restored", tproxy(), action(ruleset.ActionRestoreMark), "in tcp from 10.0.0.9 -> 10.244.1.5:8080", trace.AnswerLost, "leaves by eth0"},
		{"dns: question without zone", withDNS(redirect.Default()), comment("application's question"), "out udp uid 1000 -> 10.96.0.10:53", trace.WrongPeer, "arrives from 127.0.0.1:15053"},
		{"dns: answer without zone", withDNS(redirect.Default()), comment("proxy's answer to the application"), "out udp uid 1000 -> 10.96.0.10:53", trace.WrongPeer, "arrives from 127.0.0.1:15053"},
		{"redirect: the proxy is captured", redirect.Default(), comment("proxy to the outside"), "out tcp uid 1000 -> 10.96.5.5:80", trace.Loop, "port 15001"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			whole := tt.redirect.MustRuleset()
			assert.Equal(t, trace.Established, connect(t, whole, tt.redirect, tt.first).Verdict)
			less := without(whole, tt.lost)
			require.NotEqual(t, whole.String(), less.String())
			got := connect(t, less, tt.redirect, tt.first)
			assert.Equal(t, tt.verdict, got.Verdict, got.Explain())
			assert.Contains(t, got.Reason, tt.reason, got.Explain())

			a, err := trace.Trace(whole, packet(t, tt.first))
			require.NoError(t, err)
			b, err := trace.Trace(less, packet(t, tt.first))
			require.NoError(t, err)
			assert.Equal(t, a.String(), b.String(), "the first packet does not tell")
		})
	}
}

// Without the policy route a restored mark is only a mark.
func TestLostRoute(t *testing.T) {
	for name, r := range map[string]redirect.Redirect{"tproxy": tproxy(), "by mark": byMark()} {
		t.Run(name, func(t *testing.T) {
			rs := without(r.MustRuleset(), func(ruleset.Table, ruleset.Rule) bool { return false })
			rs.IPv4.Routing = nil
			got := connect(t, rs, r, "in tcp from 10.0.0.9 -> 10.244.1.5:8080")
			assert.Equal(t, trace.AnswerLost, got.Verdict, got.Explain())
		})
	}
}

// An earlier connection of the same addresses and ports is in the way of a later one, unless a zone keeps them apart.
func TestEarlierConnections(t *testing.T) {
	whole := withDNS(redirect.Default()).MustRuleset()
	for name, tt := range map[string]struct {
		rs   ruleset.Ruleset
		want string
	}{
		"zones":    {whole, "established"},
		"no zones": {without(whole, func(t ruleset.Table, _ ruleset.Rule) bool { return t == ruleset.Raw }), "established (15053)"},
		"the proxy's question is in the application's zone": {without(whole, func(_ ruleset.Table, r ruleset.Rule) bool { return r.Comment == "proxy's question" }), "established (15053)"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &trace.Tracker{Rules: tt.rs}
			silent := []trace.Listener{{Port: 15053, UID: 1337}}
			first, err := pod.Connect(trace.Connection{First: packet(t, "out udp uid 1000 from 10.244.1.5:5353 -> 10.96.0.10:53"), Listeners: silent})
			require.NoError(t, err)
			assert.Equal(t, "established (15053)", first.String())
			second, err := pod.Connect(trace.Connection{First: packet(t, "out udp uid 1337 from 10.244.1.5:5353 -> 10.96.0.10:53"), Listeners: silent})
			require.NoError(t, err)
			assert.Equal(t, tt.want, second.String(), second.Explain())
		})
	}
}

func TestConnectionsThatFail(t *testing.T) {
	listening := []trace.Listener{{Port: 80}, {Port: 15006, Proto: ruleset.TCP}}
	for name, tt := range map[string]struct {
		rules, first string
		verdict      trace.ConnectionVerdict
		reason       string
	}{
		"dropped":                             {"filter INPUT -p tcp -j DROP", "in tcp from 10.0.0.9 -> 10.244.1.5:80", trace.Dropped, "dropped"},
		"nobody listens":                      {"", "in tcp from 10.0.0.9 -> 10.244.1.5:81", trace.Refused, "tcp port 81"},
		"not transparent":                     {"mangle PREROUTING -p tcp -j TPROXY --on-port 15006 --on-ip 0.0.0.0 --tproxy-mark 0x539/0xffffffff", "in tcp from 10.0.0.9 -> 10.244.1.5:80", trace.Dropped, "not transparent"},
		"no transparent listener":             {"mangle PREROUTING -p udp -j TPROXY --on-port 15006 --on-ip 0.0.0.0 --tproxy-mark 0x539/0xffffffff", "in udp from 10.0.0.9 -> 10.244.1.5:80", trace.Dropped, "nobody listens on port 15006"},
		"answer is dropped":                   {"filter OUTPUT -m conntrack --ctstate ESTABLISHED -j DROP", "in tcp from 10.0.0.9 -> 10.244.1.5:80", trace.AnswerLost, "filter/OUTPUT:1"},
		"later packet is dropped":             {"filter INPUT -m conntrack --ctstate ESTABLISHED -j DROP", "in tcp from 10.0.0.9 -> 10.244.1.5:80", trace.Lost, "filter/INPUT:1"},
		"answer is kept here":                 {"route\nmangle OUTPUT -j MARK --set-xmark 0x539/0xffffffff", "in tcp from 10.0.0.9 -> 10.244.1.5:80", trace.AnswerLost, "policy route"},
		"answer to who is behind is kept":     {"route\nmangle PREROUTING -m conntrack --ctstate ESTABLISHED -j MARK --set-xmark 0x539/0xffffffff", "in tcp from 10.99.0.2 -> 9.9.9.9:80 in virt0", trace.AnswerLost, "policy route"},
		"client's later packets go elsewhere": {"mangle OUTPUT -m conntrack --ctstate ESTABLISHED -j MARK --set-xmark 0x539/0xffffffff\nroute", "out tcp -> 9.9.9.9:80", trace.Lost, "policy route keeps it in the pod"},
		"loopback does not leave":             {"nat OUTPUT -p udp -j DNAT --to-destination 10.0.0.9:53", "out udp -> 127.0.0.1:53", trace.Dropped, "sends nothing from 127.0.0.1"},
		"loopback does not come in":           {"", "in udp from 10.0.0.9 -> 127.0.0.1:53", trace.Dropped, "loopback"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := trace.TraceConnection(program(t, ruleset.IPv4, tt.rules), trace.Connection{First: packet(t, tt.first), Listeners: listening})
			require.NoError(t, err)
			assert.Equal(t, tt.verdict, got.Verdict, got.Explain())
			assert.Contains(t, got.Reason, tt.reason, got.Explain())
		})
	}
}

func TestImpossibleConnections(t *testing.T) {
	for want, first := range map[string]string{
		"not tcp or udp":      "out 1 -> 10.0.0.1:80",
		"no destination port": "out tcp -> 10.0.0.1:0",
		"has no source":       "in tcp -> 10.244.1.5:80",
	} {
		_, err := trace.TraceConnection(ruleset.Ruleset{}, trace.Connection{First: packet(t, first)})
		assert.ErrorContains(t, err, want)
	}
}
