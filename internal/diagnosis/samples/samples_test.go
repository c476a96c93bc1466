package samples_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/diagnosis/samples"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

func prefixes(list string) redirect.PrefixSet {
	var all []netip.Prefix
	for s := range strings.SplitSeq(list, ",") {
		all = append(all, netip.MustParsePrefix(s))
	}
	return redirect.Prefixes(all...)
}

var pod = samples.Pod{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}}

func samplesOf(t testing.TB, change func(*redirect.Redirect)) []samples.Sample {
	t.Helper()
	r := redirect.Default()
	change(&r)
	all, err := samples.Of(r.MustRuleset(), pod)
	require.NoError(t, err)
	return all
}

// TestOf: each sample is a packet that the rules capture, if one of its kind is left.
func TestOf(t *testing.T) {
	everyPort := redirect.PortRanges(ruleset.PortRange{First: 1, Last: 65535})
	for _, c := range []struct {
		name   string
		change func(*redirect.Redirect)
		want   []string // of IPv4
	}{
		{"by default", func(*redirect.Redirect) {}, []string{
			"outbound 198.51.100.10:443 redirect 15001", "inbound 10.244.1.5:8080 redirect 15006", "exempt 198.51.100.10:443 pass uid 1337",
		}},
		{"a group is let pass too, and DNS captured", func(r *redirect.Redirect) {
			r.Proxy.GIDs = []uint32{1337}
			r.DNS = redirect.DNS{Servers: prefixes("127.0.0.53/32,169.254.20.10/32"), Port: 15053}
		}, []string{
			"outbound 198.51.100.10:443 redirect 15001", "inbound 10.244.1.5:8080 redirect 15006", "query 127.0.0.53:53 redirect 15053",
			"exempt 198.51.100.10:443 pass uid 1337", "exempt 198.51.100.10:443 pass gid 1337",
		}},
		{"a proxy by its mark", func(r *redirect.Redirect) {
			r.Proxy.UIDs, r.Proxy.Mark = nil, redirect.Mark{Value: 0x539, Mask: 0xfff}
			r.Names.InboundMark, r.Names.MarkMask = 0x111, 0xfff
		}, []string{
			"outbound 198.51.100.10:443 redirect 15001", "inbound 10.244.1.5:8080 redirect 15006",
			"exempt 198.51.100.10:443 pass mark 0x111", "exempt 198.51.100.10:443 pass mark 0x539",
		}},
		{"few ports and ranges", func(r *redirect.Redirect) {
			r.Inbound.Ports = redirect.Ports(9090)
			r.Outbound.CIDRs = prefixes("10.96.0.0/16")
			r.Outbound.ExcludeCIDRs, r.Outbound.ExcludePorts = prefixes("10.96.0.0/17"), redirect.Ports(80, 443)
		}, []string{"outbound 10.96.128.0:79 redirect 15001", "inbound 10.244.1.5:9090 redirect 15006", "exempt 10.96.128.0:79 pass uid 1337"}},
		{"nothing", func(r *redirect.Redirect) {
			r.Outbound.ExcludeCIDRs, r.Inbound.ExcludePorts = prefixes("0.0.0.0/0,::/0"), everyPort
		}, []string{"outbound 198.51.100.10:443 pass", "inbound 10.244.1.5:8080 pass"}},
		{"nothing, by halves", func(r *redirect.Redirect) {
			r.Outbound.ExcludeCIDRs = prefixes("0.0.0.0/1,128.0.0.0/1")
			r.Inbound.ExcludeSources = prefixes("0.0.0.0/2,64.0.0.0/2,128.0.0.0/1")
		}, []string{"outbound 198.51.100.10:443 pass", "inbound 10.244.1.5:8080 pass"}},
		{"no port", func(r *redirect.Redirect) { r.Outbound.ExcludePorts = everyPort }, []string{
			"outbound 198.51.100.10:443 pass", "inbound 10.244.1.5:8080 redirect 15006",
		}},
		{"nobody outside", func(r *redirect.Redirect) {
			r.Outbound.ExcludeCIDRs = prefixes("1.0.0.0/8,2.0.0.0/7,4.0.0.0/6,8.0.0.0/5,16.0.0.0/4,32.0.0.0/3,64.0.0.0/2,128.0.0.0/2,192.0.0.0/3")
		}, []string{"outbound 198.51.100.10:443 pass", "inbound 10.244.1.5:8080 redirect 15006"}},
		{"one address", func(r *redirect.Redirect) {
			r.Outbound.ExcludeCIDRs = prefixes("0.0.0.0/2,64.0.0.0/3,96.0.0.0/4,112.0.0.0/5,120.0.0.0/6,124.0.0.0/7,126.0.0.0/8,128.0.0.1/32,128.0.0.2/31,128.0.0.4/30,128.0.0.8/29," +
				"128.0.0.16/28,128.0.0.32/27,128.0.0.64/26,128.0.0.128/25,128.0.1.0/24,128.0.2.0/23,128.0.4.0/22,128.0.8.0/21,128.0.16.0/20,128.0.32.0/19,128.0.64.0/18," +
				"128.0.128.0/17,128.1.0.0/16,128.2.0.0/15,128.4.0.0/14,128.8.0.0/13,128.16.0.0/12,128.32.0.0/11,128.64.0.0/10,128.128.0.0/9,129.0.0.0/8,130.0.0.0/7,132.0.0.0/6," +
				"136.0.0.0/5,144.0.0.0/4,160.0.0.0/3,192.0.0.0/2")
		}, []string{"outbound 128.0.0.0:443 redirect 15001", "inbound 10.244.1.5:8080 redirect 15006", "exempt 128.0.0.0:443 pass uid 1337"}},
		{"one group", func(r *redirect.Redirect) { r.Outbound.OwnerGroups = []uint32{7} }, []string{
			"outbound 198.51.100.10:443 redirect 15001 gid 7", "inbound 10.244.1.5:8080 redirect 15006", "exempt 198.51.100.10:443 pass uid 1337 gid 7",
		}},
		{"users but one", func(r *redirect.Redirect) {
			r.Outbound.Exclude = []redirect.Exclusion{{
				Ports: redirect.AllPorts(), CIDRs: redirect.AllPrefixes(), UIDs: []redirect.IDRange{{First: 0, Last: 4999}, {First: 5001, Last: redirect.NoID - 1}},
			}}
		}, []string{
			"outbound 198.51.100.10:443 redirect 15001 uid 5000", "inbound 10.244.1.5:8080 redirect 15006",
			"exempt 198.51.100.10:443 pass uid 0", "exempt 198.51.100.10:443 pass uid 5001", "exempt 198.51.100.10:443 pass uid 1337",
		}},
		{"not redirected but closed", func(r *redirect.Redirect) { r.IPv4 = redirect.FamilyDrop }, []string{
			"outbound 198.51.100.10:443 drop", "inbound 10.244.1.5:8080 drop", "exempt 198.51.100.10:443 pass uid 1337",
		}},
		{"passed", func(r *redirect.Redirect) { r.IPv4 = redirect.FamilyPass }, []string{
			"outbound 198.51.100.10:443 pass", "inbound 10.244.1.5:8080 pass",
		}},
		{"handed to a transparent proxy", func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }, []string{
			"outbound 198.51.100.10:443 redirect 15001", "inbound 10.244.1.5:8080 tproxy 15006",
			"exempt 198.51.100.10:443 pass mark 0x539", "exempt 198.51.100.10:443 pass uid 1337",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, s := range samplesOf(t, c.change) {
				if s.Family != ruleset.IPv4 {
					continue
				}
				assert.False(t, s.Unsure)
				got = append(got, short(s))
			}
			assert.Equal(t, c.want, got)
		})
	}
}

// short leaves out what all samples have.
func short(s samples.Sample) string {
	out := string(s.Kind) + " " + s.Packet.Dst.String() + " " + s.Result.String()
	_, sender, _ := strings.Cut(trace.Packet{Direction: trace.Out, UID: s.Packet.UID, GID: s.Packet.GID}.String(), "uid ")
	uid, gid, _ := strings.Cut(strings.TrimSuffix(sender, " -> invalid AddrPort"), " gid ")
	if uid != "1000" && s.Packet.Direction == trace.Out {
		out += " uid " + uid
	}
	if gid != "1000" && s.Packet.Direction == trace.Out {
		out += " gid " + gid
	}
	if _, mark, ok := strings.Cut(s.Packet.String(), " mark "); ok {
		out += " mark " + mark
	}
	return out
}

// TestOfFamilies: each family that the pod or the rules have has its samples.
func TestOfFamilies(t *testing.T) {
	rs := redirect.Default().MustRuleset()
	all, err := samples.Of(rs, samples.Pod{})
	require.NoError(t, err)
	require.Len(t, all, 6, "of two families")
	all, err = samples.Of(ruleset.Ruleset{IPv4: rs.IPv4}, pod)
	require.NoError(t, err)
	require.Len(t, all, 5)
	assert.Equal(t, ruleset.IPv6, all[3].Family)
	assert.False(t, all[3].Captured())
	all, err = samples.Of(ruleset.Ruleset{}, samples.Pod{})
	require.NoError(t, err)
	assert.Empty(t, all)
}

// TestOfIsBounded: a pod's author writes the exclusions.
func TestOfIsBounded(t *testing.T) {
	var all []netip.Prefix
	for i := range 4000 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, byte(48 + i>>8), byte(i), 0}), 24), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(94 + i>>8), byte(i), 0}), 24))
	}
	got := samplesOf(t, func(r *redirect.Redirect) { r.Outbound.ExcludeCIDRs = redirect.Prefixes(all...) })
	assert.True(t, got[0].Captured() || got[0].Unsure, got[0])
}

// TestOfFinds: whatever is excluded, a sample is captured if any packet of its kind is that the rules tell apart.
func TestOfFinds(t *testing.T) {
	addrs := rapid.SampledFrom([]string{
		"0.0.0.0/1", "128.0.0.0/1", "192.0.0.0/2", "198.51.100.0/24", "198.51.0.0/16", "10.96.0.0/16", "10.0.0.0/8", "198.51.100.10/32", "0.0.0.0/2", "64.0.0.0/2",
	})
	some := func(least int) *rapid.Generator[redirect.PrefixSet] {
		return rapid.Custom(func(t *rapid.T) redirect.PrefixSet {
			return prefixes(strings.Join(append([]string{"fd00::/8"}, rapid.SliceOfN(addrs, least, 5).Draw(t, "prefixes")...), ","))
		})
	}
	ports := rapid.Custom(func(t *rapid.T) redirect.PortSet {
		bounds := rapid.SampledFrom([]uint16{1, 79, 80, 443, 444, 8080, 40000, 65535})
		var all []ruleset.PortRange
		for range rapid.IntRange(0, 3).Draw(t, "ranges") {
			all = append(all, ruleset.PortRange{First: bounds.Draw(t, "first"), Last: bounds.Draw(t, "last")})
		}
		return redirect.PortRanges(all...)
	})
	rapid.Check(t, func(t *rapid.T) {
		r := redirect.Default()
		r.Outbound = redirect.Outbound{CIDRs: redirect.AllPrefixes(), ExcludeCIDRs: some(0).Draw(t, "excluded"), Ports: ports.Draw(t, "ports"), ExcludePorts: ports.Draw(t, "excluded ports")}
		if rapid.Bool().Draw(t, "few") {
			r.Outbound.CIDRs = some(1).Draw(t, "cidrs")
		}
		for range rapid.IntRange(0, 3).Draw(t, "exclusions") {
			e := redirect.Exclusion{Protocol: redirect.TCP, Ports: ports.Draw(t, "of ports"), CIDRs: some(1).Draw(t, "to")}
			if e.Ports.Empty() {
				e.Ports = redirect.AllPorts()
			}
			r.Outbound.Exclude = append(r.Outbound.Exclude, e)
		}
		rs := r.MustRuleset()
		all, err := samples.Of(rs, pod)
		require.NoError(t, err)
		captured := ""
		for _, dst := range []string{"1.0.0.0", "64.0.0.0", "128.0.0.0", "192.0.0.0", "198.51.0.0", "198.51.100.0", "198.51.100.10", "198.51.100.11", "198.51.101.0", "198.52.0.0", "10.0.0.0", "10.96.0.0", "10.97.0.0", "11.0.0.0"} {
			for _, port := range []uint16{1, 2, 79, 80, 81, 443, 444, 445, 8080, 8081, 40000, 40001, 65535} {
				p := all[0].Packet
				p.Dst = netip.AddrPortFrom(netip.MustParseAddr(dst), port)
				if result, err := trace.Trace(rs, p); err == nil && result.Verdict != trace.Pass {
					captured = p.String()
				}
			}
		}
		require.Equal(t, captured != "", all[0].Captured(), "%s: %s", captured, all[0])
	})
}

func BenchmarkOf(b *testing.B) {
	rs := redirect.Default().MustRuleset()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := samples.Of(rs, pod); err != nil {
			b.Fatal(err)
		}
	}
}
