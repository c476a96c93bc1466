package redirect_test

import (
	"encoding/json"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestCount: what is counted beforehand is what is made. Each list is drawn long by
// turns, so that a list that is not counted, or too often, shows.
func TestCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := redirects().Draw(t, "redirect")
		lengthen(t, &r)
		if r.Validate() != nil {
			return // a drawn list does not go with the rest
		}
		rs := r.MustRuleset()
		made := 0
		for _, f := range ruleset.Families {
			if p := rs.Family(f); p != nil {
				made += p.NumRules()
			}
		}
		require.Equal(t, made, r.Count())
	})
}

// lengthen gives a few of the lists some 200 elements each.
func lengthen(t *rapid.T, r *redirect.Redirect) {
	const n = 200
	users := make([]redirect.IDRange, n)
	for i, id := range many(n) {
		users[i] = redirect.IDRange{First: id, Last: id}
	}
	lists := map[string]func(){
		"proxy.uids":             func() { r.Proxy.UIDs, r.Proxy.Mark = many(n), redirect.Mark{} },
		"proxy.gids":             func() { r.Proxy.GIDs, r.Proxy.Mark = many(n), redirect.Mark{} },
		"inbound.ports":          func() { r.Inbound.Ports = apart(10 * n) },
		"inbound.excludePorts":   func() { r.Inbound.ExcludePorts = apart(10 * n) },
		"inbound.excludeSources": func() { r.Inbound.ExcludeSources = subnets(n) },
		"inbound.probePorts":     func() { r.Inbound.ProbeSources, r.Inbound.ProbePorts = subnets(5), apart(10*n) },
		"outbound.cidrs":         func() { r.Outbound.CIDRs = subnets(n) },
		"outbound.excludeCIDRs":  func() { r.Outbound.ExcludeCIDRs = subnets(n) },
		"outbound.ports":         func() { r.Outbound.Ports = apart(10 * n) },
		"outbound.excludePorts":  func() { r.Outbound.ExcludePorts = apart(10 * n) },
		"outbound.exclude, users": func() {
			r.Outbound.Exclude = append(r.Outbound.Exclude, redirect.Exclusion{Protocol: redirect.TCP, Ports: apart(50), UIDs: users, CIDRs: redirect.AllPrefixes()})
		},
		"outbound.exclude, cidrs": func() {
			r.Outbound.Exclude = append(r.Outbound.Exclude, redirect.Exclusion{Ports: redirect.AllPorts(), UIDs: users[:5], CIDRs: subnets(n)})
		},
		"excludeOwnerGroups": func() { r.Outbound.ExcludeOwnerGroups, r.Outbound.OwnerGroups = many(n), nil },
		"dns.servers": func() {
			if r.DNS.Enabled() {
				r.DNS.Servers = subnets(n)
			}
		},
		"excludeInterfaces": func() { r.ExcludeInterfaces = names(n) },
		"virtualInterfaces": func() { r.VirtualInterfaces = names(60) },
		"virtualNetworks": func() {
			r.VirtualNetworks = nil
			for i, name := range names(n) {
				local := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16)
				if i%3 == 0 {
					local = netip.MustParsePrefix("fd00::/8")
				}
				r.VirtualNetworks = append(r.VirtualNetworks, redirect.VirtualNetwork{Interface: name, Local: local})
			}
		},
	}
	keys := slices.Sorted(maps.Keys(lists))
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 0, 3, rapid.ID[string]).Draw(t, "long lists") {
		lists[key]()
	}
}

// subnets are n prefixes, a third of them of IPv6.
func subnets(n int) redirect.PrefixSet {
	list := make([]netip.Prefix, n)
	for i := range list {
		a := [4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}
		list[i] = netip.PrefixFrom(netip.AddrFrom4(a), 32)
		if i%3 == 0 {
			list[i] = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 12: a[0], a[1], a[2], a[3]}), 128)
		}
	}
	return redirect.Prefixes(list...)
}

// apart are n ports of which no two are neighbours.
func apart(n int) redirect.PortSet {
	list := make([]uint16, n)
	for i := range list {
		list[i] = uint16(1000 + 2*i) //nolint:gosec // a small number
	}
	return redirect.Ports(list...)
}

func names(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = "veth" + strconv.Itoa(i)
	}
	return list
}

// TestTooManyRules: lists that multiply past the bound are refused, by the
// fields that do it, and no rule is made to know it.
func TestTooManyRules(t *testing.T) {
	users := make([]redirect.IDRange, 5000)
	for i := range users {
		id := uint32(2000 + 2*i) //nolint:gosec // a small number
		users[i] = redirect.IDRange{First: id, Last: id}
	}
	for field, change := range map[string]func(*redirect.Redirect){
		"outbound.cidrs × virtualInterfaces: ": func(r *redirect.Redirect) { r.VirtualInterfaces, r.Outbound.CIDRs = names(900), subnets(15) },
		"outbound.exclude: ": func(r *redirect.Redirect) {
			r.Outbound.Exclude = []redirect.Exclusion{{Protocol: redirect.TCP, Ports: apart(5000), UIDs: users, CIDRs: subnets(5000)}}
		},
		"proxy.uids: ": func(r *redirect.Redirect) { r.Proxy.UIDs = many(4000) },
		"virtualNetworks: ": func(r *redirect.Redirect) {
			for _, name := range names(10_000) {
				r.VirtualNetworks = append(r.VirtualNetworks, redirect.VirtualNetwork{Interface: name, Local: netip.MustParsePrefix("10.0.0.0/8")})
			}
		},
	} {
		r := redirect.Default()
		change(&r)
		var limit *redirect.LimitError
		var rs ruleset.Ruleset
		var err error
		bytes := allocated(func() { rs, err = r.Ruleset() })
		require.ErrorAs(t, err, &limit, field)
		assert.Greater(t, limit.Rules, redirect.MaxRules)
		assert.Contains(t, err.Error(), field)
		assert.Contains(t, err.Error(), "10000 are the most")
		assert.Equal(t, ruleset.Ruleset{}, rs)
		assert.Less(t, bytes, uint64(4<<20), "%s: bytes taken to find out", field)
	}
}

// TestTooManyInSets: what is in sets is counted for each rule that has it, and refused before any rule is made.
func TestTooManyInSets(t *testing.T) {
	for field, change := range map[string]func(*redirect.Redirect){
		"outbound.excludeCIDRs: ":              func(r *redirect.Redirect) { r.Outbound.ExcludeCIDRs = subnets(100_001) },
		"outbound.cidrs × virtualInterfaces: ": func(r *redirect.Redirect) { r.VirtualInterfaces, r.Outbound.CIDRs = names(900), subnets(900) },
		"outbound.exclude: ": func(r *redirect.Redirect) {
			r.Outbound.Exclude = []redirect.Exclusion{{Protocol: redirect.TCP, Ports: apart(5000), UIDs: []redirect.IDRange{{1, 1}, {3, 3}}, CIDRs: subnets(50_000)}}
		},
		"inbound.probePorts × inbound.probeSources: ": func(r *redirect.Redirect) {
			r.Inbound.ProbeSources, r.Inbound.ProbePorts = subnets(15), apart(10_000)
		},
		"own: ": func(r *redirect.Redirect) {
			rule := ruleset.Rule{Dst: ruleset.MatchPrefix(subnets(9_000).Family(ruleset.IPv4)...), Target: ruleset.Target{Action: ruleset.ActionReturn}}
			r.Own = []ruleset.Chain{{Table: ruleset.NAT, Name: "MESH_OUTPUT_FIRST", Rules: slices.Repeat([]ruleset.Rule{rule}, 20)}}
		},
	} {
		r := redirect.Default()
		change(&r)
		var limit *redirect.LimitError
		var err error
		bytes := allocated(func() { _, err = r.Ruleset() })
		require.ErrorAs(t, err, &limit, field)
		assert.Greater(t, limit.Elements, 100_000)
		assert.LessOrEqual(t, limit.Rules, redirect.MaxRules)
		assert.Contains(t, err.Error(), field)
		assert.Contains(t, err.Error(), "100000 are the most")
		assert.Less(t, bytes, uint64(32<<20), "%s: bytes taken to find out", field)
	}
}

// TestIptablesHasARuleForEach: a list is one rule, which iptables has as many, within its own bound.
func TestIptablesHasARuleForEach(t *testing.T) {
	r := redirect.Default()
	r.IPv6 = redirect.FamilyPass
	few := r.MustRuleset().IPv4.NumRules()
	r.Outbound.ExcludeCIDRs, r.Outbound.ExcludePorts = subnets(900), apart(45)
	rs := r.MustRuleset()
	assert.Equal(t, few+1+2, rs.IPv4.NumRules())
	plain, err := rs.Iptables()
	require.NoError(t, err)
	assert.Equal(t, few+600+2*3, plain.IPv4.NumRules())
	assert.Equal(t, plain.IPv4.String(), rs.IPv4.String())
	assert.Contains(t, rs.IPv4.String(), "-A MESH_OUTPUT -d 10.0.0.1/32 -j RETURN\n-A MESH_OUTPUT -d 10.0.0.2/32 -j RETURN\n")

	r.Outbound.ExcludeCIDRs = subnets(50_000)
	rs = r.MustRuleset()
	_, err = rs.Iptables()
	require.Error(t, err)
	assert.Contains(t, err.Error(), "33350 rules, one for each prefix and each 15 ports, and 10000 are the most")
	assert.True(t, strings.HasPrefix(rs.IPv4.String(), "error: "), "iptables-restore takes no such text")
	assert.True(t, strings.HasPrefix(rs.IPv4.Transition(nil), "error: "))
	chain := rs.IPv4.Chain(ruleset.NAT, "MESH_OUTPUT")
	at := slices.IndexFunc(chain.Rules, func(r ruleset.Rule) bool { return len(r.Dst.More) > 0 })
	assert.Equal(t, "-d 10.0.0.1/32,10.0.0.2/32,10.0.0.4/32,10.0.0.5/32,10.0.0.7/32,10.0.0.8/32,10.0.0.10/32,10.0.0.11/32,(33325 more prefixes) -j RETURN",
		chain.Rules[at].Text(ruleset.IPv4))

	b, err := json.Marshal(rs)
	require.NoError(t, err)
	var again ruleset.Ruleset
	require.NoError(t, json.Unmarshal(b, &again))
	assert.True(t, rs.Equal(again))
}

// TestMostRules: as many as there may be are made, and not one more.
func TestMostRules(t *testing.T) {
	with := func(n int) redirect.Redirect {
		r := redirect.Default()
		for _, name := range names(n) {
			r.VirtualNetworks = append(r.VirtualNetworks, redirect.VirtualNetwork{Interface: name, Local: netip.MustParsePrefix("10.0.0.0/8")})
		}
		return r
	}
	few := with(3).MustRuleset()
	n := 3 + redirect.MaxRules - few.IPv4.NumRules() - few.IPv6.NumRules() // a rule a network
	most, err := with(n).Ruleset()
	require.NoError(t, err)
	assert.Equal(t, redirect.MaxRules, most.IPv4.NumRules()+most.IPv6.NumRules())
	var limit *redirect.LimitError
	_, err = with(n + 1).Ruleset()
	require.ErrorAs(t, err, &limit)
	assert.Equal(t, redirect.MaxRules+1, limit.Rules)
}

// allocated is how many bytes a function takes from the heap, freed ones included.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestAtTheBound: what the bound lets through renders, in every form and in
// memory that a plugin has.
func TestAtTheBound(t *testing.T) {
	r := redirect.Default()
	r.Outbound.ExcludeCIDRs = subnets(9_900)
	require.NoError(t, r.Validate())
	bytes := allocated(func() {
		rs := r.MustRuleset()
		plain, err := rs.Iptables()
		require.NoError(t, err)
		assert.Greater(t, plain.IPv4.NumRules(), 6_000)
		_ = plain.IPv4.Transition(nil) + plain.IPv6.Transition(nil)
		_ = nft.Lower(rs)
	})
	assert.Less(t, bytes, uint64(64<<20))
	r.Outbound.ExcludeCIDRs = subnets(100_000)
	bytes = allocated(func() {
		rs := r.MustRuleset()
		require.NoError(t, rs.Validate())
		assert.Len(t, nft.Lower(rs).Sets, 2)
	})
	assert.Less(t, bytes, uint64(64<<20))
}
