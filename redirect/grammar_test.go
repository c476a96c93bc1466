package redirect_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var anything = redirect.Grammar{All: true, Ranges: true}

func TestParsePorts(t *testing.T) {
	for _, c := range []struct {
		in      string
		grammar redirect.Grammar
		want    string // PortSet.String
		err     string
	}{
		{in: "", want: "none"},
		{in: "  ", want: "none"},
		{in: "80", want: "80"},
		{in: "0", want: "0"},
		{in: "65535", want: "65535"},
		{in: "80,443", want: "80,443"},
		{in: " 80 , 443 ", want: "80,443"},
		{in: "\t80\n", want: "80"},
		{in: "443,80,443", want: "80,443"},
		{in: "080", want: "80"},
		{in: "80,81,82", want: "80-82"},
		{in: "82,80,81,80", want: "80-82"},
		{in: "81,80", want: "80,81"}, // two read better so

		{in: "80,", err: "empty element"},
		{in: ",80", err: "empty element"},
		{in: "80,,81", err: "empty element"},
		{in: "80, ,81", err: "empty element"},
		{in: ",", err: "empty element"},
		{in: "65536", err: `"65536" is not a port`},
		{in: "99999999999999999999", err: "is not a port"},
		{in: "-1", err: `"-1" is not a port`},
		{in: "+80", err: `"+80" is not a port`},
		{in: "http", err: `"http" is not a port`},
		{in: "80 81", err: "is not a port"},
		{in: "0x50", err: "is not a port"},
		{in: "8_0", err: "is not a port"},
		{in: "８０", err: "is not a port"}, // full-width digits
		{in: "80;81", err: "is not a port"},
		{in: "80.0", err: "is not a port"},

		{in: "*", err: `"*" is not a port`},
		{in: "*", grammar: redirect.Grammar{All: true}, want: "*"},
		{in: " *", grammar: redirect.Grammar{All: true}, err: `"*" is not a port`},
		{in: "*,80", grammar: redirect.Grammar{All: true}, err: `"*" is not a port`},

		{in: "80-90", err: `"80-90" is not a port`},
		{in: "80-90", grammar: redirect.Grammar{Ranges: true}, want: "80-90"},
		{in: "80-80", grammar: redirect.Grammar{Ranges: true}, want: "80"},
		{in: "80-90,85-100,101", grammar: redirect.Grammar{Ranges: true}, want: "80-101"},
		{in: "0-65535", grammar: redirect.Grammar{Ranges: true}, want: "0-65535"},
		{in: "90-80", grammar: redirect.Grammar{Ranges: true}, err: "ends before it begins"},
		{in: "80-", grammar: redirect.Grammar{Ranges: true}, err: "empty element"},
		{in: "-80", grammar: redirect.Grammar{Ranges: true}, err: "empty element"},
		{in: "-", grammar: redirect.Grammar{Ranges: true}, err: "empty element"},
		{in: "1-2-3", grammar: redirect.Grammar{Ranges: true}, err: "is not a port"},
		{in: "80 - 90", grammar: redirect.Grammar{Ranges: true}, err: "is not a port"},
		{in: "80-65536", grammar: redirect.Grammar{Ranges: true}, err: "is not a port"},
	} {
		t.Run(c.in, func(t *testing.T) {
			s, err := redirect.ParsePorts(c.in, c.grammar)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				assert.True(t, s.Empty(), "a set beside an error")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, s.String())
		})
	}
}

func TestParsePrefixes(t *testing.T) {
	for _, c := range []struct {
		in      string
		grammar redirect.Grammar
		want    string
		err     string
	}{
		{in: "", want: "none"},
		{in: "10.0.0.0/8", want: "10.0.0.0/8"},
		{in: "10.1.2.3/8", want: "10.0.0.0/8"}, // host bits are cleared
		{in: "10.0.0.0/8,fd00::/8,10.0.0.0/8", want: "10.0.0.0/8,fd00::/8"},
		{in: "172.16.0.0/12,10.0.0.0/8", want: "172.16.0.0/12,10.0.0.0/8"}, // in the order written
		{in: "0.0.0.0/0,::/0", want: "0.0.0.0/0,::/0"},
		{in: "1.2.3.4/32,2001:DB8::1/128", want: "1.2.3.4/32,2001:db8::1/128"},

		{in: " ", err: `" " is not a CIDR prefix`},
		{in: "10.0.0.0", err: `"10.0.0.0" is not a CIDR prefix`},
		{in: "10.0.0.0/8,", err: `"" is not a CIDR prefix`},
		{in: "10.0.0.0/8, 11.0.0.0/8", err: `" 11.0.0.0/8" is not a CIDR prefix`},
		{in: "10.0.0.0/33", err: "is not a CIDR prefix"},
		{in: "10.0.0.0/-1", err: "is not a CIDR prefix"},
		{in: "10.0.0.0/255.0.0.0", err: "is not a CIDR prefix"},
		{in: "10.0.0/24", err: "is not a CIDR prefix"},
		{in: "010.0.0.0/8", err: "is not a CIDR prefix"}, // octal to some, decimal to others
		{in: "fe80::1%eth0/64", err: "is not a CIDR prefix"},
		{in: "::/129", err: "is not a CIDR prefix"},
		{in: "internal", err: "is not a CIDR prefix"},

		{in: "*", err: `"*" is not a CIDR prefix`},
		{in: "*", grammar: redirect.Grammar{All: true}, want: "*"},
		{in: "*,10.0.0.0/8", grammar: redirect.Grammar{All: true}, err: `"*" is not a CIDR prefix`},

		{in: "10.0.0.1,fd00::1,10.0.0.0/8", grammar: redirect.Grammar{Addresses: true}, want: "10.0.0.1/32,fd00::1/128,10.0.0.0/8"},
		{in: "10.0.0.1, fd00::1", grammar: redirect.Grammar{Addresses: true}, err: `" fd00::1" is neither an address nor a CIDR prefix`},
		{in: "fe80::1%eth0", grammar: redirect.Grammar{Addresses: true}, err: "is neither an address nor"},
		{in: " 10.0.0.0/8 ,11.0.0.0/8", grammar: redirect.Grammar{Spaces: true}, want: "10.0.0.0/8,11.0.0.0/8"},
		{in: "  ", grammar: redirect.Grammar{Spaces: true}, want: "none"},
		{in: "10.0.0.0/8, ", grammar: redirect.Grammar{Spaces: true}, err: `"" is not a CIDR prefix`},
	} {
		t.Run(c.in, func(t *testing.T) {
			s, err := redirect.ParsePrefixes(c.in, c.grammar)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				assert.True(t, s.Empty())
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, s.String())
		})
	}
}

// TestEveryBadElement: who corrects a list hears of all that is wrong with it, once, in few words.
func TestEveryBadElement(t *testing.T) {
	_, err := redirect.ParsePorts("3306,80a,70000,80a,,90-80", redirect.Grammar{Ranges: true})
	require.EqualError(t, err, `"80a" is not a port from 0 to 65535; "70000" is not a port from 0 to 65535; empty element; range "90-80" ends before it begins`)
	_, err = redirect.ParsePrefixes("10.0.0.0/8,10.0.0.0/33,db", redirect.Grammar{})
	require.EqualError(t, err, `"10.0.0.0/33" is not a CIDR prefix such as 10.0.0.0/8; "db" is not a CIDR prefix such as 10.0.0.0/8`)
	_, err = redirect.ParseInterfaces("eth0,eth+,-i")
	require.ErrorContains(t, err, `"eth+" is not`)
	require.ErrorContains(t, err, `"-i" is not`)
	ids, err := redirect.ParseIDs("root,0,-1")
	require.ErrorContains(t, err, `"root" is not`)
	require.ErrorContains(t, err, `"-1" is not`)
	assert.Empty(t, ids)

	var long strings.Builder
	for i := range 100000 {
		fmt.Fprintf(&long, "p%d,", i)
	}
	_, err = redirect.ParsePorts(long.String(), redirect.Grammar{})
	require.ErrorContains(t, err, `"p0" is not a port from 0 to 65535; "p1" is not`)
	assert.Less(t, len(err.Error()), 3<<10)
	assert.True(t, strings.HasSuffix(err.Error(), "; and more"))
}

func TestParsePort(t *testing.T) {
	for in, want := range map[string]uint16{"1": 1, "080": 80, "65535": 65535} {
		p, err := redirect.ParsePort(in, redirect.Grammar{})
		require.NoError(t, err)
		assert.Equal(t, want, p)
	}
	for in, want := range map[string]string{
		"0": "0 is no port to listen on", "": "empty element", "65536": `"65536" is not a port from 1 to 65535`, " 80": "is not a port", "80-81": "is not a port",
	} {
		_, err := redirect.ParsePort(in, redirect.Grammar{All: true, Ranges: true})
		assert.ErrorContains(t, err, want)
	}
	p, err := redirect.ParsePort("0", redirect.Grammar{Zero: true})
	require.NoError(t, err)
	assert.Zero(t, p)
	_, err = redirect.ParsePort("x", redirect.Grammar{Zero: true})
	assert.ErrorContains(t, err, `"x" is not a port from 0 to 65535`)
}

func TestParseInterfaces(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
		err  bool
	}{
		{in: "", want: nil},
		{in: "  ", want: nil},
		{in: "eth0", want: []string{"eth0"}},
		{in: " eth0 , net1,eth0", want: []string{"eth0", "net1"}},
		{in: "eth0.100,br-lan,wg_1", want: []string{"eth0.100", "br-lan", "wg_1"}},
		{in: "abcdefghijklmno", want: []string{"abcdefghijklmno"}},
		{in: "abcdefghijklmnop", err: true}, // 16
		{in: "eth0,", err: true},
		{in: "0eth", err: true},
		{in: "-i", err: true},
		{in: ".eth", err: true},
		{in: "eth+", err: true}, // iptables' wildcard
		{in: "eth 0", err: true},
		{in: "eth0;id", err: true},
		{in: "eth/0", err: true},
		{in: "éth0", err: true},
		{in: "eth0\nCOMMIT", err: true},
		{in: "*", err: true},
	} {
		t.Run(c.in, func(t *testing.T) {
			got, err := redirect.ParseInterfaces(c.in)
			assert.Equal(t, c.err, err != nil, "%v", err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestParseIDs(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []uint32
		err  bool
	}{
		{in: "", want: nil},
		{in: " ", want: nil},
		{in: "1337", want: []uint32{1337}},
		{in: " 0 , 1337,0", want: []uint32{0, 1337}},
		{in: "4294967294", want: []uint32{redirect.NoID - 1}},
		{in: "4294967295", err: true}, // (uid_t)-1
		{in: "4294967296", err: true},
		{in: "-1", err: true},
		{in: "root", err: true},
		{in: "1,", err: true},
	} {
		t.Run(c.in, func(t *testing.T) {
			got, err := redirect.ParseIDs(c.in)
			assert.Equal(t, c.err, err != nil, "%v", err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestPortSet(t *testing.T) {
	set := redirect.PortRanges(ruleset.PortRange{First: 100, Last: 200}, ruleset.PortRange{First: 80, Last: 80}, ruleset.PortRange{First: 9, Last: 1})
	assert.Equal(t, "80,100-200", set.String())
	for p, want := range map[uint16]bool{80: true, 81: false, 99: false, 100: true, 200: true, 201: false} {
		assert.Equal(t, want, set.Contains(p), p)
	}
	set.Ranges()[0] = ruleset.PortRange{First: 1, Last: 65535}
	assert.Equal(t, "80,100-200", set.String(), "Ranges gave its own memory away")

	assert.Equal(t, "80,100-200,443", redirect.Ports(443).Union(set).String())
	assert.True(t, redirect.AllPorts().Union(set).All())
	assert.True(t, set.Union(redirect.PortSet{}).Equal(set))
	assert.True(t, redirect.Ports().Equal(redirect.PortSet{}))
	assert.False(t, redirect.AllPorts().Equal(redirect.PortRanges(ruleset.PortRange{First: 0, Last: 65535})),
		"all is a choice of its own: rules for it match no port")
	assert.True(t, redirect.AllPorts().Contains(7))
	assert.False(t, redirect.PortSet{}.Contains(7))
	assert.Equal(t, "65534,65535", redirect.PortRanges(ruleset.PortRange{First: 65534, Last: 65535}, ruleset.Port(65535)).String())
}

func TestPrefixSetLoopback(t *testing.T) {
	for in, want := range map[string]bool{
		"127.0.0.1/32": true, "127.0.0.0/8": true, "::1/128": true, "10.0.0.0/8,127.1.0.0/16": true,
		"10.0.0.0/8": false, "0.0.0.0/0": false, "::/0": false, "*": false, "": false,
	} {
		s, err := redirect.ParsePrefixes(in, redirect.Grammar{All: true})
		require.NoError(t, err)
		assert.Equal(t, want, s.HasLoopback(), in)
	}
}

func TestSetsRefuseOtherJSON(t *testing.T) {
	for _, in := range []string{`"80"`, `80`, `{}`, `[65536]`, `["80-"]`, `[-1]`, `[1.5]`, `[null]`, `[""]`, `[[80]]`, `"**"`, `[ "90-80" ]`, `[true]`} {
		var s redirect.PortSet
		assert.Error(t, s.UnmarshalJSON([]byte(in)), in)
	}
	for _, in := range []string{`"10.0.0.0/8"`, `["10.0.0.0"]`, `[""]`, `{}`, `[8]`, `["*"]`} {
		var s redirect.PrefixSet
		assert.Error(t, s.UnmarshalJSON([]byte(in)), in)
	}
	assert.PanicsWithValue(t, "redirect: invalid prefix in a PrefixSet", func() { redirect.Prefixes(zeroPrefix) })
}

func FuzzParsePorts(f *testing.F) {
	for _, s := range []string{"", "*", "80", " 80 , 443 ", "80-90", "80,", "1-2-3", "65536", "+1", strings.Repeat("1,", 40) + "1"} {
		f.Add(s, uint8(0))
		f.Add(s, uint8(3))
	}
	f.Fuzz(func(t *testing.T, s string, g uint8) {
		set, err := redirect.ParsePorts(s, redirect.Grammar{All: g&1 != 0, Ranges: g&2 != 0})
		if err != nil {
			require.True(t, set.Empty())
			return
		}
		text := set.String()
		if text == "none" {
			text = ""
		}
		again, err := redirect.ParsePorts(text, anything)
		require.NoError(t, err)
		require.True(t, set.Equal(again), "%q is %s, which is %s", s, set, again)
		for i, r := range set.Ranges() {
			require.LessOrEqual(t, r.First, r.Last)
			if i > 0 {
				require.Greater(t, r.First, set.Ranges()[i-1].Last, "sorted and disjoint")
			}
		}
	})
}

func FuzzParsePrefixes(f *testing.F) {
	for _, s := range []string{"", "*", "10.0.0.0/8", "10.1.2.3/8,fd00::1/8", "10.0.0.0/8, 1.1.1.1/32", "::ffff:1.2.3.4/128", "fe80::%1/64"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		set, err := redirect.ParsePrefixes(s, redirect.Grammar{All: true})
		if err != nil {
			require.True(t, set.Empty())
			return
		}
		text := set.String()
		if text == "none" {
			text = ""
		}
		again, err := redirect.ParsePrefixes(text, redirect.Grammar{All: true})
		require.NoError(t, err)
		require.True(t, set.Equal(again), "%q is %s, which is %s", s, set, again)

		// Whatever was accepted renders, and parses as what was rendered.
		r := redirect.Default()
		r.Outbound.CIDRs = set
		rendersToItself(t, r)
	})
}

func FuzzParseInterfaces(f *testing.F) {
	for _, s := range []string{"", "eth0", "eth0, net1", "a.b-c_d", "eth0\nCOMMIT", "-j", "eth+"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		names, err := redirect.ParseInterfaces(s)
		if err != nil {
			require.Nil(t, names)
			return
		}
		r := redirect.Default()
		r.ExcludeInterfaces, r.VirtualInterfaces = names, names
		rendersToItself(t, r)
	})
}

// All with anything is all, from either side.
func TestPrefixSetUnion(t *testing.T) {
	a, b := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")
	one := redirect.Prefixes(a)
	assert.True(t, one.Union(redirect.Prefixes(b, a)).Equal(redirect.Prefixes(a, b)))
	assert.True(t, one.Union(redirect.AllPrefixes()).All())
	assert.True(t, redirect.AllPrefixes().Union(one).All())
	assert.False(t, one.Union(redirect.PrefixSet{}).All())
}
