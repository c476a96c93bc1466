package nft_test

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestNFTGolden holds the text to what reviewers have read. Set UPDATE_GOLDEN
// to write it anew.
func TestNFTGolden(t *testing.T) {
	prefixes := func(s ...string) redirect.PrefixSet {
		var p []netip.Prefix
		for _, s := range s {
			p = append(p, netip.MustParsePrefix(s))
		}
		return redirect.Prefixes(p...)
	}
	rich := redirect.Default()
	rich.Mode, rich.DropInvalid = redirect.ModeTProxy, true
	rich.Proxy.TunnelPort, rich.Proxy.GIDs = 15008, []uint32{1337}
	rich.DNS = redirect.DNS{Servers: prefixes("10.96.0.10/32", "fd00:96::10/128"), Port: 15053}
	rich.Inbound.ExcludePorts = redirect.Ports(22, 15090)
	rich.Outbound.ExcludePorts = redirect.PortRanges(ruleset.PortRange{First: 27017, Last: 27019}, ruleset.Port(3306))
	rich.Outbound.ExcludeCIDRs = prefixes("198.51.100.10/32", "10.1.0.0/16", "10.1.2.0/24")
	rich.Outbound.CIDRs = prefixes("10.0.0.0/9", "10.128.0.0/9", "2001:db8::/32")
	rich.ExcludeInterfaces, rich.VirtualInterfaces = []string{"net1"}, []string{"virt0"}
	rich.Outbound.OwnerGroups = []uint32{5, 6}
	drop := redirect.Default()
	drop.IPv6, drop.Proxy.GIDs = redirect.FamilyDrop, []uint32{1337}
	pass := redirect.Default()
	pass.IPv6 = redirect.FamilyPass
	for name, r := range map[string]redirect.Redirect{
		"default": redirect.Default(), "rich": rich, "drop-ipv6": drop, "pass-ipv6": pass,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".nft")
			text := nft.Text(r.MustRuleset())
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, string(want), text)
		})
	}
}

func TestNFTEmpty(t *testing.T) {
	assert.Empty(t, nft.Text(ruleset.Ruleset{}))
	rs := redirect.Default().MustRuleset()
	rs.IPv4, rs.IPv6 = rs.IPv4.Owner.EmptyRuleset().IPv4, nil
	assert.Equal(t, "table inet mesh {}\ndelete table inet mesh\n", nft.Text(rs))
	assert.Equal(t, "istio", nft.TableName(ruleset.Ownership{Prefix: "ISTIO_"}))
	assert.Equal(t, "proxy_init", nft.TableName(ruleset.Ownership{Prefix: "PROXY_INIT_"}))
	assert.Equal(t, "redirect_", nft.TableName(ruleset.Ownership{Prefix: "REDIRECT_"}))
	assert.Equal(t, "mesh", nft.TableName(ruleset.Ownership{}))
}

// TestNFTComment: nft takes one line without quotes, of 127 bytes at most.
func TestNFTComment(t *testing.T) {
	for in, want := range map[string]string{
		"":                                  "",
		`say "hi"`:                          "say 'hi'",
		"a\nb\x00":                          "a b ",
		"\xff":                              "?",
		strings.Repeat("x", 200):            strings.Repeat("x", 127),
		"x" + strings.Repeat("é", 100):      "x" + strings.Repeat("é", 63),
		"xx" + strings.Repeat("\u20ac", 60): "xx" + strings.Repeat("\u20ac", 41),
	} {
		r := nft.Rule{Rule: ruleset.Rule{Comment: in}}
		assert.Equal(t, want, r.KernelComment())
	}
}

// packet is as much of one as the rules below look at.
type packet struct {
	dst  netip.Addr
	port uint16
}

// walk lists the targets that a packet of the family meets in a chain.
func walk(rules []nft.Rule, f ruleset.Family, p packet) (met []ruleset.Target) {
	for _, r := range rules {
		in := len(r.Dsts) == 0 || slices.ContainsFunc(r.Dsts, func(n netip.Prefix) bool { return n.Contains(p.dst) }) != r.Dst.Not
		at := len(r.DstRanges) == 0 || slices.ContainsFunc(r.DstRanges, func(n ruleset.PortRange) bool { return n.Contains(p.port) }) != r.DstPorts.Not
		if r.Family != 0 && r.Family != f || !in || !at {
			continue
		}
		met = append(met, r.Target)
		if r.Target.Action == ruleset.ActionReturn {
			break
		}
	}
	return met
}

// TestNFTViewMeansTheSame: joining neighbours and merging families changes no
// packet's walk, for random programs and packets.
func TestNFTViewMeansTheSame(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(n int) bool { return rnd.IntN(n) == 0 }
	prefix := func(f ruleset.Family) netip.Prefix {
		if f == ruleset.IPv4 {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rnd.IntN(4))}), []int{0, 8, 15, 16}[rnd.IntN(4)]).Masked()
		}
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, byte(rnd.IntN(4))}), []int{0, 8, 15, 16}[rnd.IntN(4)]).Masked()
	}
	targets := []ruleset.Target{{Action: ruleset.ActionReturn}, {Action: ruleset.ActionReturn}, {Action: ruleset.ActionSetMark, Mark: 1}, {Action: ruleset.ActionJump, Chain: "X"}}
	for range 20000 {
		var rs ruleset.Ruleset
		for _, f := range ruleset.Families {
			var rules []ruleset.Rule
			target := targets[rnd.IntN(len(targets))]
			for range rnd.IntN(7) {
				if pick(3) {
					target = targets[rnd.IntN(len(targets))]
				}
				r := ruleset.Rule{Proto: ruleset.TCP, Target: target}
				if pick(2) {
					r.Dst = ruleset.MatchPrefix(prefix(f))
					if pick(4) {
						r.Dst = ruleset.PrefixMatch{Prefix: prefix(f), Not: true}
					}
				}
				if pick(2) {
					first := uint16(rnd.IntN(6))
					r.DstPorts = ruleset.PortMatch{Not: pick(5), Ranges: []ruleset.PortRange{
						{First: first, Last: first + uint16(rnd.IntN(2))}, ruleset.Port(uint16(rnd.IntN(6))),
					}}
					if pick(9) {
						r.DstPorts.Ranges = []ruleset.PortRange{{First: 0, Last: 65535}}
					}
				}
				rules = append(rules, r)
			}
			rs.Set(&ruleset.FamilyRuleset{Family: f, Chains: []ruleset.Chain{{Table: ruleset.NAT, Name: "C", Rules: rules}}})
		}
		view := nft.Lower(rs).Chains[0].Rules
		for _, f := range ruleset.Families {
			for range 8 {
				p := packet{dst: prefix(f).Addr(), port: uint16(rnd.IntN(7))}
				var want []ruleset.Target
				for _, r := range rs.Family(f).Chains[0].Rules {
					port := slices.ContainsFunc(r.DstPorts.Ranges, func(ports ruleset.PortRange) bool { return ports.Contains(p.port) })
					if !r.Dst.IsZero() && r.Dst.Prefix.Contains(p.dst) == r.Dst.Not || !r.DstPorts.IsZero() && port == r.DstPorts.Not {
						continue
					}
					want = append(want, r.Target)
					if r.Target.Action == ruleset.ActionReturn {
						break
					}
				}
				for i := range want {
					if want[i].Action == ruleset.ActionJump {
						want[i].Chain = "nat/" + want[i].Chain
					}
				}
				if got := walk(view, f, p); !slices.Equal(want, got) {
					t.Fatalf("%s %v: want %v, got %v of\n%s%s", f, p, want, got, rs, nft.Text(rs))
				}
			}
		}
	}
}

// TestReaderIsBounded: a rule of a pod's is counted before it becomes one for each combination of its sets' elements.
func TestReaderIsBounded(t *testing.T) {
	var words []nft.Word
	for word := range strings.FieldsSeq("meta skuid @s meta skgid @s return") {
		words = append(words, nft.Name(word))
	}
	var ids []string
	for i := range 65 {
		ids = append(ids, strconv.Itoa(i))
	}
	var reader nft.Reader
	assert.Contains(t, reader.Read("inet", words, map[string][]string{"s": ids}).Foreign, "more than 4096 rules")
	sets := map[string][]string{"s": ids[:64]}
	for range 16 {
		got := reader.Read("inet", words, sets)
		require.Empty(t, got.Foreign)
		assert.Len(t, got.Rules, 4096)
	}
	assert.Contains(t, reader.Read("inet", words, sets).Foreign, "the rules are more than 65536 without their sets")
	assert.Contains(t, reader.Read("inet", words, nil).Foreign, "the elements of set s are not known")
}

// TestReaderOfSets: the prefixes of a set are one match, and one list, however many rules name it.
func TestReaderOfSets(t *testing.T) {
	var words []nft.Word
	for word := range strings.FieldsSeq("meta nfproto ipv4 ip daddr @s meta l4proto tcp th dport @p return") {
		words = append(words, nft.Name(word))
	}
	var addrs, ports []string
	for i := range 50_000 {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String())
	}
	for i := range 1000 {
		ports = append(ports, strconv.Itoa(1+2*i))
	}
	sets := map[string][]string{"s": addrs, "p": ports}
	var reader nft.Reader
	first := reader.Read("inet", words, sets)
	second := reader.Read("inet", words, sets)
	require.Len(t, first.Rules, 1, first.Foreign)
	assert.Len(t, first.Rules[0].Dst.More, 49_999)
	assert.Len(t, first.Rules[0].DstPorts.Ranges, 1000)
	assert.Same(t, &first.Rules[0].Dst.More[0], &second.Rules[0].Dst.More[0])
	assert.Same(t, &first.Rules[0].DstPorts.Ranges[0], &second.Rules[0].DstPorts.Ranges[0])
	sets["s"] = append(addrs, "fd00::1")
	assert.Contains(t, reader.Read("inet", words, sets).Foreign, "of the family")
}

// TestNFTManyPorts: the kernel takes quadratic time for a set of many single
// ports that is not one of intervals.
func TestNFTManyPorts(t *testing.T) {
	var ports []ruleset.PortRange
	for p := uint16(1); p < 4000; p += 2 {
		ports = append(ports, ruleset.Port(p))
	}
	few, many := nft.Set{Ports: ports[:100]}, nft.Set{Ports: ports}
	assert.False(t, few.Interval())
	assert.True(t, many.Interval())
}
