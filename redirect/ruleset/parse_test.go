package ruleset_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestParseRule: text in iptables-save's words, and what it is printed as.
func TestParseRule(t *testing.T) {
	for _, c := range []struct {
		in   string
		want string // "" means the same text
		v6   bool
	}{
		{in: "-j ACCEPT"},
		{in: "-j MESH_OUTPUT"},
		{in: ""}, // matches all, only counts
		{in: "-s 10.0.0.0/8 ! -d 127.0.0.1/32 -i eth0 ! -o lo -p tcp -j RETURN"},
		{in: "-d 10.0.0.1 -j RETURN", want: "-d 10.0.0.1/32 -j RETURN"},
		{in: "-d 10.1.2.3/8 -j RETURN", want: "-d 10.0.0.0/8 -j RETURN"},
		{in: "-d 0.0.0.0/0 -j RETURN", want: "-j RETURN"},
		{in: "-s fd00::/8 ! -d ::1/128 -j RETURN", v6: true},
		{in: "-p 6 -j RETURN", want: "-p tcp -j RETURN"},
		{in: "-p all -j RETURN", want: "-j RETURN"},
		{in: "-p 132 -j RETURN"},
		{in: "-p tcp -m tcp --dport 80 -j RETURN"},
		{in: "-p tcp -m tcp ! --dport 80:90 -j RETURN"},
		{in: "-p udp -m udp --sport 53 --dport 53 -j RETURN"},
		{in: "-p tcp -m tcp --dport 0:65535 -j RETURN", want: "-p tcp -j RETURN"}, // which iptables-legacy-save prints so
		{in: "-p tcp -m tcp -j RETURN", want: "-p tcp -j RETURN"},
		{in: "-p tcp -m multiport --dports 80,443,8000:8100 -j RETURN"},
		{in: "-p tcp -m multiport ! --dports 53,15008 -j RETURN"},
		{in: "-p tcp -m addrtype ! --dst-type LOCAL -j RETURN"},
		{in: "-m addrtype --dst-type LOCAL -m addrtype ! --src-type LOCAL -j RETURN", want: "-m addrtype ! --src-type LOCAL --dst-type LOCAL -j RETURN"},
		{in: "-m conntrack --ctstate INVALID -j DROP"},
		{in: "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN", want: "-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"},
		{in: "-m mark --mark 0x539 -j RETURN"},
		{in: "-m mark --mark 1337 -j RETURN", want: "-m mark --mark 0x539 -j RETURN"},
		{in: "-m mark ! --mark 0x539/0xfff -j RETURN"},
		{in: "-m mark --mark 0x539/0xffffffff -j RETURN", want: "-m mark --mark 0x539 -j RETURN"},
		{in: "-m connmark --mark 0x539 -m mark --mark 0x1 -j RETURN", want: "-m mark --mark 0x1 -m connmark --mark 0x539 -j RETURN"},
		{in: "-m owner --uid-owner 1337 -j RETURN"},
		{in: "-m owner ! --gid-owner 1000-2000 -m owner ! --uid-owner 0 -j RETURN"},
		{in: "-p tcp -j REDIRECT --to-ports 15001"},
		{in: "-p udp -j DNAT --to-destination 127.0.0.1:8600"},
		{in: "-p tcp -j TPROXY --on-port 15006 --on-ip 0.0.0.0 --tproxy-mark 0x539/0xffffffff"},
		{in: "-p tcp -j TPROXY --on-port 15006 --on-ip :: --tproxy-mark 0x539/0xffffffff", v6: true},
		{in: "-j MARK --set-xmark 0x539/0xffffffff"},
		{in: "-j CONNMARK --save-mark --nfmask 0xffffffff --ctmask 0xffffffff"},
		{in: "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff"},
		{in: "-j CT --zone 2"},
		{in: `-j "MESH_OUTPUT"`, want: "-j MESH_OUTPUT"},
		{in: "  -p   tcp  -j  RETURN ", want: "-p tcp -j RETURN"},
	} {
		t.Run(c.in, func(t *testing.T) {
			f, want := ruleset.IPv4, c.want
			if c.v6 {
				f = ruleset.IPv6
			}
			if want == "" {
				want = c.in
			}
			r, err := ruleset.ParseRule(f, c.in)
			require.NoError(t, err)
			assert.Equal(t, want, r.Text(f))
			again, err := ruleset.ParseRule(f, r.Text(f))
			require.NoError(t, err)
			assert.True(t, r.Equal(again))
		})
	}
}

// TestTargetsOfIptables: no target that this host's iptables has is taken for a chain to jump to.
func TestTargetsOfIptables(t *testing.T) {
	files, err := filepath.Glob("/usr/lib*/*/xtables/lib*_*.so")
	require.NoError(t, err)
	found := 0
	for _, file := range files {
		kind, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".so"), "_")
		if name != strings.ToUpper(name) || !slices.Contains([]string{"libxt", "libipt", "libip6t"}, kind) {
			continue // a match, or of a bridge
		}
		found++
		if r, err := ruleset.ParseRule(ruleset.IPv4, "-p tcp -j "+name); err == nil {
			assert.NotEqual(t, ruleset.ActionJump, r.Target.Action, name)
		} else {
			require.ErrorIs(t, err, ruleset.ErrForeign, name)
		}
		live, err := ruleset.Parse(ruleset.IPv4, "*nat\n-A OUTPUT -m statistic -j "+name+"\nCOMMIT\n")
		require.NoError(t, err)
		assert.Empty(t, live[0].Rules[0].JumpTo, name)
	}
	if found == 0 {
		t.Log("no extensions of iptables are here")
	}
}

// TestForeignRules: what is outside the model is said to be, never guessed at.
func TestForeignRules(t *testing.T) {
	for _, text := range []string{
		"-m comment --comment hello -j RETURN",
		"-m set --match-set blocked src -j DROP",
		"-m statistic --mode random --probability 0.5 -j RETURN",
		"-j SNAT --to-source 10.0.0.1",
		"-j REJECT",
		"-p tcp -j MASQUERADE",
		"-m statistic -j NOTRACK", // foreign twice
		"-j QUEUE",
		"-j TARPIT",
		"-j OUTPUT",
		"-j REDIRECT", // to the same port
		"-j REDIRECT --to-ports 80-90",
		"-j REDIRECT --to-ports 80 --random",
		"-j MESH_X --option",
		"-g MESH_X",
		"-f -j DROP",
		"-i + -j RETURN",
		"-d 10.0.0.0/255.0.255.0 -j RETURN",
		"-d fd00::/8 -j RETURN", // in IPv4's tables
		"! -p tcp -j RETURN",
		"-p tcp -m tcp --tcp-flags SYN,RST SYN -j RETURN",
		"-p tcp -m tcp --dport 80 --dport 81 -j RETURN",
		"--dport 80 -j RETURN", // of no protocol
		"-p icmp -j RETURN",
		"-m addrtype --dst-type BROADCAST -j RETURN",
		"-m addrtype --dst-type LOCAL --limit-iface-in -j RETURN",
		"-m conntrack ! --ctstate NEW -j RETURN",
		"-m conntrack --ctstate SNAT -j RETURN",
		"-m mark --mark 0x1/0x0 -j RETURN",
		"-m mark -j RETURN",
		"-m connmark -p tcp --mark 0x1 -j RETURN",
		"-m owner --socket-exists -j RETURN",
		"-m owner --uid-owner root -j RETURN",
		"-j MARK --set-xmark 0x1/0xff",
		"-j MARK --and-mark 0xff",
		"-j CONNMARK --save-mark --nfmask 0xff --ctmask 0xff",
		"-j CT --helper ftp",
		"-j CT --zone 70000",
		"-j TPROXY --on-port 15006 --on-ip 10.0.0.1 --tproxy-mark 0x1/0xffffffff",
		"-j DNAT --to-destination 10.0.0.1:80-90",
		"-j LOG --log-prefix \"a\x7f\" --log-level 7", // not to be printed
	} {
		t.Run(text, func(t *testing.T) {
			_, err := ruleset.ParseRule(ruleset.IPv4, text)
			require.ErrorIs(t, err, ruleset.ErrForeign)
			assert.ErrorContains(t, err, "rule ")

			saved, err := ruleset.Parse(ruleset.IPv4, "*nat\n-A OUTPUT "+text+"\nCOMMIT\n")
			require.NoError(t, err, "a foreign rule is no error in a whole output")
			require.Len(t, saved[0].Rules, 1)
			r := saved[0].Rules[0]
			assert.Equal(t, text, r.Text, "kept as found")
			assert.False(t, r.Plain())
			if !strings.Contains(text, "--comment") {
				assert.Empty(t, r.Rules)
			}
		})
	}
}

func TestParse(t *testing.T) {
	const text = `# Generated by iptables-save v1.8.9 (nf_tables)
*security
:INPUT ACCEPT [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [12:720]
:OUTPUT DROP [0:0]
:KUBE-MARK - [0:0]
[3:180] -A OUTPUT -p tcp -j KUBE-MARK
-A KUBE-MARK -m comment --comment "say \"hi\"" -j MARK --or-mark 0x4000
COMMIT
# Completed
`
	saved, err := ruleset.Parse(ruleset.IPv4, text)
	require.NoError(t, err)
	require.Len(t, saved, 4)
	assert.Equal(t, "security", saved[0].Table, "tables that we never use are kept too")
	nat := saved[1:]
	assert.Equal(t, "drop", nat[1].Policy)
	assert.Empty(t, nat[2].Policy)
	assert.Equal(t, "-p tcp -j KUBE-MARK", nat[1].Rules[0].Text, "without counters")
	assert.True(t, nat[1].Rules[0].Plain())
	assert.Equal(t, `-m comment --comment "say \"hi\"" -j MARK --or-mark 0x4000`, nat[2].Rules[0].Text, "as found, quotes included")
	assert.False(t, nat[2].Rules[0].Plain())
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"*nat\n*raw\nCOMMIT\n":               "line 2: table nat has no COMMIT",
		"*nat\n":                             "table nat has no COMMIT",
		"-A OUTPUT -j ACCEPT\n":              `line 1: "-A OUTPUT -j ACCEPT" outside a table`,
		"COMMIT\n":                           "line 1",
		"*nat\nhello\nCOMMIT\n":              `line 2: "hello" is neither chain, rule nor COMMIT`,
		"*nat\n:OUTPUT\nCOMMIT\n":            "line 2: chain",
		"*nat\n-I OUTPUT -j X\nCOMMIT\n":     "line 2",
		"\n\n*nat\n-A O \"-j X\nCOMMIT\n":    "line 4: rule",
		"*nat\n-A OUTPUT ! ! -j X\nCOMMIT\n": "line 2: rule",
		"<html>\n":                           "line 1",
	} {
		saved, err := ruleset.Parse(ruleset.IPv4, text)
		assert.ErrorContains(t, err, want, "%q", text)
		assert.ErrorContains(t, err, "parse saved rules: ", "%q", text)
		assert.Nil(t, saved)
	}
	saved, err := ruleset.Parse(ruleset.IPv6, "")
	require.NoError(t, err)
	assert.Empty(t, saved, "no tables is an answer, too")
}

func TestProgramJSONRefuses(t *testing.T) {
	for _, in := range []string{
		`{"family":"ipv5"}`,
		`{"family":"ipv4","chains":[{"table":"security","name":"X"}]}`,
		`{"family":"ipv4","chains":[{"table":"nat","name":"X","rules":[{"rule":"-g Y"}]}]}`,
		`[]`,
	} {
		var p ruleset.FamilyRuleset
		assert.Error(t, json.Unmarshal([]byte(in), &p), in)
	}
}

func TestNames(t *testing.T) {
	for _, f := range ruleset.Families {
		b, err := f.MarshalText()
		require.NoError(t, err)
		var g ruleset.Family
		require.NoError(t, g.UnmarshalText(b))
		assert.Equal(t, f, g)
	}
	for _, table := range ruleset.Tables {
		parsed, err := ruleset.ParseTable(table.String())
		require.NoError(t, err)
		assert.Equal(t, table, parsed)
	}
	assert.Equal(t, "family(0)", ruleset.Family(0).String())
	assert.Equal(t, "table(9)", ruleset.Table(9).String())
	assert.Equal(t, "132", ruleset.Proto(132).String())
}

// FuzzParse: whatever iptables-save says, what is understood is understood
// whole, and what is not is kept as it stood.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"*nat\n:OUTPUT ACCEPT [0:0]\n:MESH_OUTPUT - [0:0]\n-A OUTPUT -j MESH_OUTPUT\n-A MESH_OUTPUT -p tcp -m multiport ! --dports 1,2:3 -j RETURN\nCOMMIT\n",
		"*mangle\n[1:2] -A PREROUTING -m mark ! --mark 0x1/0xf -m connmark --mark 2 -j CONNMARK --save-mark\nCOMMIT\n",
		"*raw\n-A X -m comment --comment \"a \\\" b\" -j CT --zone 1\nCOMMIT\n",
		"*nat\n-A X ! -s 10.0.0.0/8 -m owner ! --uid-owner 1-2 -j DNAT --to-destination [::1]:53\nCOMMIT\n",
		"*nat\n-A X -s 10.0.0.0/8,11.1.0.0/16 -p tcp -m multiport --dports 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33:40 -j RETURN\nCOMMIT\n",
		"# nothing\n", "*nat\nCOMMIT\n*nat\nCOMMIT\n",
		"*nat\n:MESH_OUTPUT\t-j ACCEPT [0:0]\n:MESH_ x - [0:0]\n-A MESH_OUTPUT\t-j\tACCEPT\n-A OUTPUT -j MESH_ x\nCOMMIT\n",
		"*nat\n-A OUTPUT \"-j\"\t\"MESH_X\"\n-A OUTPUT -o \"a\tb\" -j MESH_X\n-A MESH_X -m comment --comment \"a\n-A OUTPUT -j MESH_X\nCOMMIT\" -j RETURN\nCOMMIT\n",
		"*nat\n-A OUTPUT -j MESH_X\n-A MESH_X -j LOG --log-prefix \"a \\\" ' \" --log-level 7\n-A MESH_X -j DNAT --to-destination \"fe80::1%a b\"\nCOMMIT\n",
	} {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, text string, v6 bool) {
		family := ruleset.IPv4
		if v6 {
			family = ruleset.IPv6
		}
		saved, err := ruleset.Parse(family, text)
		if err != nil {
			require.Nil(t, saved)
			return
		}
		owner := ruleset.Ownership{Prefix: "MESH_", Marks: []uint32{1}, Zones: []uint16{1}}
		program := &ruleset.FamilyRuleset{Family: family, Owner: owner}
		for _, c := range saved {
			for _, r := range c.Rules {
				if !r.Plain() {
					_, err := ruleset.ParseRule(family, r.Text)
					require.ErrorIs(t, err, ruleset.ErrForeign)
					continue
				}
				rule := r.Rules[0]
				again, err := ruleset.ParseRule(family, rule.Full(family))
				require.NoError(t, err, "%q is printed as %q", r.Text, rule.Full(family))
				require.True(t, rule.Equal(again), "%q is printed as %q", r.Text, rule.Full(family))
			}
		}
		requireOwn(t, owner, family, program.Transition(saved))
		for _, from := range []ruleset.LiveChains{nil, parse(t, family, small("-j RETURN").String())} {
			back, _ := owner.Rollback(from, saved)
			requireOwn(t, owner, family, back)
			back, _ = owner.Rollback(saved, from)
			requireOwn(t, owner, family, back)
		}
		// Nothing of the owner's there means nothing to remove, and the reverse.
		require.Equal(t, len(program.Diff(saved)) > 0, program.Transition(saved) != "", "%v", program.Diff(saved))
	})
}
