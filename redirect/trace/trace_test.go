package trace_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// program reads rules, one a line: "TABLE CHAIN" and the rule as iptables-save
// prints it. "route MARK" adds policy routing.
func program(tb testing.TB, f ruleset.Family, text string) ruleset.Ruleset {
	tb.Helper()
	p := &ruleset.FamilyRuleset{Family: f}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if line == "route" {
			p.Routing = &ruleset.Routing{Mark: 0x539, Table: 133}
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		require.Len(tb, fields, 3, line)
		table, err := ruleset.ParseTable(fields[0])
		require.NoError(tb, err)
		rule, err := ruleset.ParseRule(f, fields[2])
		require.NoError(tb, err)
		if p.Chain(table, fields[1]) == nil {
			p.Chains = append(p.Chains, ruleset.Chain{Table: table, Name: fields[1]})
		}
		c := p.Chain(table, fields[1])
		c.Rules = append(c.Rules, rule)
	}
	var rs ruleset.Ruleset
	rs.Set(p)
	return rs
}

func packet(tb testing.TB, text string) trace.Packet {
	tb.Helper()
	p, err := trace.ParsePacket(text)
	require.NoError(tb, err)
	p.PodAddrs = []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}
	return p
}

// Each match alone, and its negation where it has one, against a packet that
// it takes and one that it does not.
func TestMatches(t *testing.T) {
	tests := []struct {
		where, match string
		yes, no      string
		negation     string // how the match reads negated; empty when it cannot be
	}{
		{"mangle OUTPUT", "-s 10.244.0.0/16", "out tcp from 10.244.9.9 -> 10.0.0.1:80", "out tcp from 10.245.0.1 -> 10.0.0.1:80", "! -s 10.244.0.0/16"},
		{"mangle OUTPUT", "-s 10.244.1.5/32", "out tcp -> 10.0.0.1:80", "out tcp -> 10.244.1.6:80 from 127.0.0.1", "! -s 10.244.1.5/32"},
		{"mangle OUTPUT", "-s 127.0.0.1/32", "out tcp -> 127.0.0.1:80", "out tcp -> 10.0.0.1:80", "! -s 127.0.0.1/32"},
		{"mangle OUTPUT", "-d 10.0.0.0/31", "out tcp -> 10.0.0.1:80", "out tcp -> 10.0.0.2:80", "! -d 10.0.0.0/31"},
		{"mangle PREROUTING", "-i net1", "in tcp -> 10.244.1.5:80 in net1", "in tcp -> 10.244.1.5:80", "! -i net1"},
		{"mangle PREROUTING", "-i eth0", "in tcp -> 10.244.1.5:80", "in tcp -> 10.244.1.5:80 in eth01", "! -i eth0"},
		{"mangle OUTPUT", "-o lo", "out tcp -> 10.244.1.5:80", "out tcp -> 10.0.0.1:80", "! -o lo"},
		{"mangle OUTPUT", "-o lo", "out tcp -> 127.9.9.9:80 out eth0", "out tcp -> 10.0.0.1:80 out net1", "! -o lo"},
		{"mangle OUTPUT", "-p tcp", "out tcp -> 10.0.0.1:80", "out udp -> 10.0.0.1:80", ""},
		{"mangle OUTPUT", "-p 1", "out 1 -> 10.0.0.1:0", "out tcp -> 10.0.0.1:80", ""},
		{"mangle OUTPUT", "-p tcp -m tcp --dport 80", "out tcp -> 10.0.0.1:80", "out tcp -> 10.0.0.1:81", "-p tcp -m tcp ! --dport 80"},
		{"mangle OUTPUT", "-p tcp -m tcp --dport 80:90", "out tcp -> 10.0.0.1:90", "out tcp -> 10.0.0.1:91", "-p tcp -m tcp ! --dport 80:90"},
		{"mangle OUTPUT", "-p udp -m udp --sport 53", "out udp -> 10.0.0.1:80 from 10.0.0.9:53", "out udp -> 10.0.0.1:53", "-p udp -m udp ! --sport 53"},
		{"mangle OUTPUT", "-p tcp -m multiport --dports 22,80:90", "out tcp -> 10.0.0.1:22", "out tcp -> 10.0.0.1:23", "-p tcp -m multiport ! --dports 22,80:90"},
		{"mangle OUTPUT", "-p tcp -m multiport --sports 22,80:90", "out tcp from 10.0.0.9:85 -> 10.0.0.1:1", "out tcp from 10.0.0.9:21 -> 10.0.0.1:1", "-p tcp -m multiport ! --sports 22,80:90"},
		{"mangle OUTPUT", "-m conntrack --ctstate NEW", "out tcp -> 10.0.0.1:80", "out tcp -> 10.0.0.1:80 state established", ""},
		{"mangle OUTPUT", "-m conntrack --ctstate INVALID", "out tcp -> 10.0.0.1:80 state invalid", "out tcp -> 10.0.0.1:80", ""},
		{"mangle OUTPUT", "-m conntrack --ctstate RELATED,ESTABLISHED", "out tcp -> 10.0.0.1:80 state related", "out tcp -> 10.0.0.1:80 state untracked", ""},
		{"raw OUTPUT", "-m conntrack --ctstate INVALID", "out tcp -> 10.0.0.1:80 state new", "out tcp -> 10.0.0.1:80 state untracked", ""},
		{"mangle OUTPUT", "-m mark --mark 0x539", "out tcp -> 10.0.0.1:80 mark 1337", "out tcp -> 10.0.0.1:80", "-m mark ! --mark 0x539"},
		{"mangle OUTPUT", "-m mark --mark 0x1/0xff", "out tcp -> 10.0.0.1:80 mark 0xf01", "out tcp -> 10.0.0.1:80 mark 0x103", "-m mark ! --mark 0x1/0xff"},
		{"mangle OUTPUT", "-m connmark --mark 0x5", "out tcp -> 10.0.0.1:80 connmark 5", "out tcp -> 10.0.0.1:80 mark 5", "-m connmark ! --mark 0x5"},
		{"mangle OUTPUT", "-m owner --uid-owner 1337", "out tcp uid 1337 -> 10.0.0.1:80", "out tcp gid 1337 -> 10.0.0.1:80", "-m owner ! --uid-owner 1337"},
		{"mangle OUTPUT", "-m owner --gid-owner 1337", "out tcp gid 1337 -> 10.0.0.1:80", "out tcp uid 1337 -> 10.0.0.1:80", "-m owner ! --gid-owner 1337"},
		{"mangle OUTPUT", "-m owner --uid-owner 5-7", "out tcp uid 7 -> 10.0.0.1:80", "out tcp uid 8 -> 10.0.0.1:80", "-m owner ! --uid-owner 5-7"},
	}
	for _, tt := range tests {
		t.Run(tt.match, func(t *testing.T) {
			verdict := func(match, text string) trace.Verdict {
				r, err := trace.Trace(program(t, ruleset.IPv4, tt.where+" "+match+" -j DROP"), packet(t, text))
				require.NoError(t, err)
				return r.Verdict
			}
			assert.Equal(t, trace.Drop, verdict(tt.match, tt.yes), tt.yes)
			assert.Equal(t, trace.Pass, verdict(tt.match, tt.no), tt.no)
			if tt.negation != "" {
				assert.Equal(t, trace.Pass, verdict(tt.negation, tt.yes), "negated, "+tt.yes)
				assert.Equal(t, trace.Drop, verdict(tt.negation, tt.no), "negated, "+tt.no)
			}
		})
	}
}

// A connection's mark is no match, negated or not, for a packet without one.
func TestInvalidPacketHasNoConnectionMark(t *testing.T) {
	for _, match := range []string{"--mark 0x0", "! --mark 0x1"} {
		r, err := trace.Trace(program(t, ruleset.IPv4, "mangle OUTPUT -m connmark "+match+" -j DROP"),
			packet(t, "out tcp -> 10.0.0.1:80 state invalid"))
		require.NoError(t, err)
		assert.Equal(t, trace.Pass, r.Verdict, match)
	}
}

func TestWalks(t *testing.T) {
	tests := []struct {
		name, rules, packet string
		verdict             string
		path                string
	}{
		{"no rules", "", "out tcp -> 10.0.0.1:80", "pass", ""},
		{"redirect", "nat OUTPUT -p tcp -j REDIRECT --to-ports 15001", "out tcp -> 10.0.0.1:80", "redirect 15001", "nat/OUTPUT:1"},
		{
			"return of a chain goes on behind the jump", `
			nat OUTPUT -j A
			nat OUTPUT -p tcp -j REDIRECT --to-ports 2
			nat A -j RETURN
			nat A -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80", "redirect 2", "nat/OUTPUT:1 nat/A:1 nat/OUTPUT:2",
		},
		{
			"the end of a chain does too, two deep", `
			nat OUTPUT -j A
			nat OUTPUT -p tcp -j REDIRECT --to-ports 3
			nat A -j B
			nat A -p udp -j REDIRECT --to-ports 1
			nat B -p udp -j REDIRECT --to-ports 2`,
			"out tcp -> 10.0.0.1:80", "redirect 3", "nat/OUTPUT:1 nat/A:1 nat/OUTPUT:2",
		},
		{
			"return of a built-in chain ends the table", `
			nat OUTPUT -j RETURN
			nat OUTPUT -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80", "pass", "nat/OUTPUT:1",
		},
		{
			"accept in a chain ends the table, not the hook", `
			mangle OUTPUT -j A
			mangle OUTPUT -j DROP
			mangle A -j ACCEPT
			nat OUTPUT -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80", "redirect 1", "mangle/OUTPUT:1 mangle/A:1 nat/OUTPUT:1",
		},
		{"drop wins over a redirect before it", `
			nat OUTPUT -p tcp -j REDIRECT --to-ports 1
			filter OUTPUT -p tcp -m tcp --dport 1 -j DROP`,
			"out tcp -> 10.0.0.1:80", "drop", "nat/OUTPUT:1 filter/OUTPUT:1"},
		{"a rule without target only counts", `
			nat OUTPUT -p tcp
			nat OUTPUT -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80", "redirect 1", "nat/OUTPUT:1 nat/OUTPUT:2"},

		// The destination is decided once.
		{"nat PREROUTING does not see again what nat OUTPUT redirected", `
			nat OUTPUT -p tcp -j REDIRECT --to-ports 1
			nat PREROUTING -p tcp -j REDIRECT --to-ports 2`,
			"out tcp -> 10.0.0.1:80", "redirect 1", "nat/OUTPUT:1"},
		{"nor what it let pass, though no rule was there", `
			nat PREROUTING -p tcp -j REDIRECT --to-ports 2`,
			"out tcp -> 10.244.1.5:80", "pass", ""},
		{"later packets meet no nat rule", `nat OUTPUT -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80 state established", "pass", ""},
		{"nor do invalid ones", `nat OUTPUT -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80 state invalid", "pass", ""},
		{"related ones do", `nat OUTPUT -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80 state related", "redirect 1", "nat/OUTPUT:1"},

		// What a redirected packet looks like afterwards.
		{"in OUTPUT it goes to localhost, by lo", `
			nat OUTPUT -p tcp -j REDIRECT --to-ports 1
			mangle POSTROUTING -o lo -m owner --uid-owner 0
			mangle PREROUTING -d 127.0.0.1/32 -i lo -p tcp -m tcp --dport 1
			mangle INPUT -i lo`,
			"out tcp -> 10.0.0.1:80", "redirect 1", "nat/OUTPUT:1 mangle/POSTROUTING:1 mangle/PREROUTING:1 mangle/INPUT:1"},
		{"rules of OUTPUT see the interface from before it", `
			nat OUTPUT -p tcp -j REDIRECT --to-ports 1
			filter OUTPUT -o lo -j DROP
			filter OUTPUT -o eth0`,
			"out tcp -> 10.0.0.1:80", "redirect 1", "nat/OUTPUT:1 filter/OUTPUT:2"},
		{"in PREROUTING it goes to the pod", `
			nat PREROUTING -p tcp -j REDIRECT --to-ports 1
			filter INPUT -p tcp -m tcp --dport 1`,
			"in tcp -> 9.9.9.9:80", "redirect 1", "nat/PREROUTING:1 filter/INPUT:1"},
		{"DNAT keeps the port when it names none", `nat OUTPUT -p tcp -j DNAT --to-destination 10.0.0.9:0`,
			"out tcp -> 10.0.0.1:80", "redirect 10.0.0.9:80", "nat/OUTPUT:1"},
		{"DNAT to localhost leaves by lo", `
			nat OUTPUT -p udp -j DNAT --to-destination 127.0.0.1:8600
			mangle PREROUTING -d 127.0.0.1/32 -i lo`,
			"out udp -> 10.0.0.1:53", "redirect 127.0.0.1:8600", "nat/OUTPUT:1 mangle/PREROUTING:1"},

		// Ways that arrive or only pass through.
		{"a packet not for the pod is forwarded", `
			filter INPUT -j DROP
			filter FORWARD -i virt0 -o eth0
			mangle POSTROUTING -o eth0`,
			"in tcp -> 9.9.9.9:80 in virt0", "pass", "filter/FORWARD:1 mangle/POSTROUTING:1"},

		// Marks.
		{"a mark set in mangle is seen in nat", `
			mangle OUTPUT -j MARK --set-xmark 0x5/0xffffffff
			nat OUTPUT -p tcp -m mark --mark 0x5 -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80", "redirect 1", "mangle/OUTPUT:1 nat/OUTPUT:1"},
		{"marks come and go with the connection", `
			mangle OUTPUT -j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff
			mangle OUTPUT -j MARK --set-xmark 0x0/0xffffffff
			mangle OUTPUT -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
			mangle OUTPUT -m mark --mark 0x7 -m connmark --mark 0x7 -j DROP`,
			"out tcp -> 10.0.0.1:80 mark 7", "drop", "mangle/OUTPUT:1 mangle/OUTPUT:2 mangle/OUTPUT:3 mangle/OUTPUT:4"},
		{"a connection's mark is set in the mask's bits", `
			mangle OUTPUT -j CONNMARK --set-xmark 0x300/0xf00
			mangle OUTPUT -m connmark --mark 0x305 -j DROP`,
			"out tcp -> 10.0.0.1:80 connmark 0x205", "drop", "mangle/OUTPUT:1 mangle/OUTPUT:2"},
		{"a log goes on", `
			nat OUTPUT -j LOG --log-prefix "a: "
			nat OUTPUT -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80", "redirect 1", "nat/OUTPUT:1 nat/OUTPUT:2"},
		{"a mark set on the way out is routed by, and stays on lo", `
			route
			mangle OUTPUT -j MARK --set-xmark 0x539/0xffffffff
			nat OUTPUT -o lo -p tcp -j REDIRECT --to-ports 1
			mangle PREROUTING -i lo -m mark --mark 0x539`,
			"out tcp -> 10.0.0.1:80", "pass", "mangle/OUTPUT:1 mangle/PREROUTING:1"},
		{"a socket's mark is routed by from the start", `
			route
			nat OUTPUT -o lo -p tcp -j REDIRECT --to-ports 1`,
			"out tcp -> 10.0.0.1:80 mark 1337", "redirect 1", "nat/OUTPUT:1"},

		// TPROXY.
		{"tproxy of what is for the pod", `mangle PREROUTING -p tcp -j TPROXY --on-port 15006 --on-ip 0.0.0.0 --tproxy-mark 0x539/0xffffffff`,
			"in tcp -> 10.244.1.5:80", "tproxy 15006", "mangle/PREROUTING:1"},
		{"tproxy of what is not needs the policy route", `
			route
			mangle PREROUTING -p tcp -j TPROXY --on-port 15006 --on-ip 0.0.0.0 --tproxy-mark 0x539/0xffffffff
			mangle INPUT -m mark --mark 0x539`,
			"in tcp -> 9.9.9.9:80", "tproxy 15006", "mangle/PREROUTING:1 mangle/INPUT:1"},
		{"and is lost without", `mangle PREROUTING -p tcp -j TPROXY --on-port 15006 --on-ip 0.0.0.0 --tproxy-mark 0x539/0xffffffff`,
			"in tcp -> 9.9.9.9:80", "drop", "mangle/PREROUTING:1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := trace.Trace(program(t, ruleset.IPv4, tt.rules), packet(t, tt.packet))
			require.NoError(t, err)
			assert.Equal(t, tt.verdict, r.String())
			assert.Equal(t, tt.path, strings.Join(r.Path, " "), r.Explain())
			assert.NotEmpty(t, r.Reason)
			assert.Equal(t, len(r.Path), len(r.Steps))
		})
	}
}

// Addresses that the program gives to lo are the pod's own.
func TestLoopbackAddrs(t *testing.T) {
	rs := program(t, ruleset.IPv6, `
		nat OUTPUT -s ::6/128 -o lo -j RETURN
		nat OUTPUT -p tcp -j REDIRECT --to-ports 1`)
	rs.IPv6.LoopbackAddrs = []netip.Addr{netip.MustParseAddr("::6")}
	for text, want := range map[string]string{
		"out tcp from ::6 -> [fd00:10:244::5]:80": "pass",
		"out tcp -> [fd00:10:244::5]:80":          "redirect 1",
		"out tcp -> [::6]:80":                     "pass",
	} {
		r, err := trace.Trace(rs, packet(t, text))
		require.NoError(t, err)
		assert.Equal(t, want, r.String(), text)
	}
}

// The first CT rule chooses a connection's zone; rules on lo come too late.
func TestZones(t *testing.T) {
	rs := program(t, ruleset.IPv6, `
		raw PREROUTING -p udp -j CT --zone 3
		raw OUTPUT -p udp -m udp --dport 53 -j CT --zone 1
		raw OUTPUT -m conntrack --ctstate NEW -p udp
		raw OUTPUT -p udp -j CT --zone 2`)
	for text, want := range map[string]uint16{
		"out udp -> [fd00:96::10]:53":                 1,
		"out udp -> [fd00:96::10]:54":                 2,
		"out udp -> [fd00:10:244::5]:53":              1,
		"in udp -> [fd00:10:244::5]:53":               3,
		"out tcp -> [fd00:96::10]:53":                 0,
		"out udp -> [fd00:96::10]:53 state invalid":   0,
		"out udp -> [fd00:96::10]:53 state untracked": 0,
	} {
		r, err := trace.Trace(rs, packet(t, text))
		require.NoError(t, err)
		assert.Equal(t, want, r.Zone, text)
	}
}

func TestReasons(t *testing.T) {
	r := redirect.Default()
	r.IPv6 = redirect.FamilyPass
	r.Mode = redirect.ModeTProxy
	rs := r.MustRuleset()
	for text, want := range map[string]string{
		"out tcp uid 1000 -> 10.0.0.1:443":      "outbound connection: redirected to port 15001",
		"out tcp uid 1337 -> 10.0.0.1:443":      "proxy to the outside: passes",
		"out tcp uid 1000 -> 10.244.1.5:80":     "application to its own pod: passes",
		"in tcp -> 10.244.1.5:80":               "inbound connection: handed to the transparent listener on port 15006",
		"in udp -> 10.244.1.5:80":               "no rule is for it: passes",
		"in tcp -> [fd00:10:244::5]:80":         "ipv6 has no rules: passes",
		"out tcp -> 10.0.0.1:443 state invalid": "no rule is for it: passes",
	} {
		got, err := trace.Trace(rs, packet(t, text))
		require.NoError(t, err)
		assert.Equal(t, want, got.Reason, "%s\n%s", text, got.Explain())
	}
	got, err := trace.Trace(program(t, ruleset.IPv4, "filter OUTPUT -p tcp -j DROP"), packet(t, "out tcp -> 10.0.0.1:1"))
	require.NoError(t, err)
	assert.Equal(t, `rule filter/OUTPUT:1 ("-p tcp -j DROP"): dropped`, got.Reason)
	got, err = trace.Trace(program(t, ruleset.IPv4, ""), packet(t, "out tcp -> 10.0.0.1:1 state established"))
	require.NoError(t, err)
	assert.Equal(t, "its connection was decided by an earlier packet: passes", got.Reason)
}
