package redirect_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// refused is a change that makes redirect.Default() invalid in exactly the
// field named.
var refused = []struct {
	field  string
	change func(r *redirect.Redirect)
}{
	{"mode", func(r *redirect.Redirect) { r.Mode = "" }},
	{"mode", func(r *redirect.Redirect) { r.Mode = "redirect" }},
	{"ipv4", func(r *redirect.Redirect) { r.IPv4 = "" }},
	{"ipv6", func(r *redirect.Redirect) { r.IPv6 = "allow" }},
	{"proxy.uids", func(r *redirect.Redirect) { r.Proxy.UIDs = nil }},
	{"proxy.uids", func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{1, 2, 1} }},
	{"proxy.uids", func(r *redirect.Redirect) { r.Proxy.UIDs = []uint32{redirect.NoID} }},
	{"proxy.gids", func(r *redirect.Redirect) { r.Proxy.GIDs = []uint32{7, 7} }},
	{"proxy.outboundPort", func(r *redirect.Redirect) { r.Proxy.OutboundPort = 0 }},
	{"proxy.inboundPort", func(r *redirect.Redirect) { r.Proxy.InboundPort = 0 }},
	{"proxy.inboundPort", func(r *redirect.Redirect) { r.Proxy.InboundPort = r.Proxy.OutboundPort }},
	{"proxy.passSources", func(r *redirect.Redirect) { r.Proxy.PassSources = []netip.Addr{{}} }},
	{"proxy.passSources", func(r *redirect.Redirect) { r.Proxy.PassSources = []netip.Addr{netip.MustParseAddr("fe80::1%lo")} }},
	{"proxy.passSources", func(r *redirect.Redirect) {
		r.Proxy.PassSources = []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("127.0.0.7")}
	}},
	{"outbound.excludeCIDRs", func(r *redirect.Redirect) { r.Outbound.ExcludeCIDRs = redirect.AllPrefixes() }},
	{"outbound.ownerGroups", func(r *redirect.Redirect) { r.Outbound.OwnerGroups = []uint32{redirect.NoID} }},
	{"outbound.ownerGroups", func(r *redirect.Redirect) { r.Outbound.OwnerGroups = many(65) }},
	{"outbound.excludeOwnerGroups", func(r *redirect.Redirect) { r.Outbound.ExcludeOwnerGroups = []uint32{1, 1} }},
	{"outbound.excludeOwnerGroups", func(r *redirect.Redirect) {
		r.Outbound.OwnerGroups, r.Outbound.ExcludeOwnerGroups = []uint32{1}, []uint32{2}
	}},
	{"dns.port", func(r *redirect.Redirect) { r.DNS.Servers = redirect.AllPrefixes() }},
	{"excludeInterfaces", func(r *redirect.Redirect) { r.ExcludeInterfaces = []string{"eth+"} }},
	{"excludeInterfaces", func(r *redirect.Redirect) { r.ExcludeInterfaces = []string{"eth0", "eth0"} }},
	{"virtualInterfaces", func(r *redirect.Redirect) { r.VirtualInterfaces = []string{""} }},
	{"names.chainPrefix", func(r *redirect.Redirect) { r.Names.ChainPrefix = "" }},
	{"names.chainPrefix", func(r *redirect.Redirect) { r.Names.ChainPrefix = "mesh_" }},
	{"names.chainPrefix", func(r *redirect.Redirect) { r.Names.ChainPrefix = "_MESH" }},
	{"names.chainPrefix", func(r *redirect.Redirect) { r.Names.ChainPrefix = "MESH " }},
	{"names.chainPrefix", func(r *redirect.Redirect) { r.Names.ChainPrefix = "SEVENTEEN_BYTES__" }},
	{"names.inboundMark", tproxy(func(r *redirect.Redirect) { r.Names.InboundMark = 0 })},
	{"names.inboundMark", tproxy(func(r *redirect.Redirect) { r.Names.HairpinMark = r.Names.InboundMark })},
	{"names.routeTable", tproxy(func(r *redirect.Redirect) { r.Names.RouteTable = 254 })}, // main
	{"names.routeTable", tproxy(func(r *redirect.Redirect) { r.Names.RouteTable = 0 })},
	{"names.proxyZone", dns(func(r *redirect.Redirect) { r.Names.AppZone = r.Names.ProxyZone })},
	{"names.proxyZone", dns(func(r *redirect.Redirect) { r.Names.ProxyZone = 0 })},
}

func tproxy(and func(*redirect.Redirect)) func(*redirect.Redirect) {
	return func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy; and(r) }
}

func dns(and func(*redirect.Redirect)) func(*redirect.Redirect) {
	return func(r *redirect.Redirect) {
		r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
		and(r)
	}
}

func many(n uint32) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i)
	}
	return ids
}

func TestValidate(t *testing.T) {
	require.NoError(t, redirect.Default().Validate())
	for _, c := range refused {
		r := redirect.Default()
		c.change(&r)
		err := r.Validate()
		var field *redirect.FieldError
		if assert.ErrorAs(t, err, &field, c.field) {
			assert.Equal(t, c.field, field.Field)
			assert.NotEmpty(t, field.Reason)
			assert.Equal(t, "redirect: "+field.Field+": "+field.Reason, field.Error())
		}
		joined, ok := err.(interface{ Unwrap() []error })
		if assert.True(t, ok) {
			assert.Len(t, joined.Unwrap(), 1, "%s: one mistake, one error: %v", c.field, err)
		}
		rs, rerr := r.Ruleset()
		assert.Equal(t, err, rerr)
		assert.Zero(t, rs, "rules of what is not valid")
		assert.Panics(t, func() { r.MustRuleset() })
	}
}

// TestMarksMatterWhereUsed: what a mode does not use is not judged.
func TestMarksMatterWhereUsed(t *testing.T) {
	r := redirect.Default()
	r.Names.InboundMark, r.Names.HairpinMark, r.Names.RouteTable, r.Names.ProxyZone, r.Names.AppZone = 0, 0, 0, 0, 0
	require.NoError(t, r.Validate())
	rendersToItself(t, r)
}

func TestValidateReportsAll(t *testing.T) {
	err := redirect.Redirect{}.Validate()
	require.Error(t, err)
	for _, field := range []string{"mode", "ipv4", "ipv6", "proxy.uids", "proxy.outboundPort", "proxy.inboundPort", "names.chainPrefix"} {
		assert.ErrorContains(t, err, "redirect: "+field+": ")
	}
}

func TestString(t *testing.T) {
	r := redirect.Default()
	assert.Equal(t, "REDIRECT in * -> :15006; out * -> :15001; proxy uid [1337] gid []; ipv4 capture ipv6 capture", r.String())
	r.Mode, r.IPv6, r.Proxy.GIDs = redirect.ModeTProxy, redirect.FamilyDrop, []uint32{1337}
	r.Inbound.ExcludePorts = redirect.Ports(22)
	r.Outbound.CIDRs, r.Outbound.ExcludeCIDRs = prefixSet("10.0.0.0/8"), prefixSet("10.9.0.0/16", "fd00::/8")
	r.Outbound.Ports, r.Outbound.ExcludePorts = redirect.Ports(443), redirect.PortRanges(ruleset.PortRange{First: 1, Last: 9})
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	assert.Equal(t, "TPROXY in * -> :15006 except 22; out 10.0.0.0/8 and ports 443 -> :15001 except 10.9.0.0/16,fd00::/8"+
		" except ports 1-9; dns * -> :15053; proxy uid [1337] gid [1337]; ipv4 capture ipv6 drop", r.String())
}

// TestJSONKeepsChoicesApart: all, these, none and unset are four values.
func TestJSONKeepsChoicesApart(t *testing.T) {
	for set, want := range map[string]redirect.PortSet{
		`"*"`: redirect.AllPorts(), `[]`: redirect.NoPorts(), `null`: {}, `[80,"8000-8100"]`: redirect.PortRanges(ruleset.Port(80), ruleset.PortRange{First: 8000, Last: 8100}),
	} {
		b, err := json.Marshal(want)
		require.NoError(t, err)
		assert.Equal(t, set, string(b))
		var got redirect.PortSet
		require.NoError(t, json.Unmarshal(b, &got))
		assert.Equal(t, want, got)
	}
	for set, want := range map[string]redirect.PrefixSet{
		`"*"`: redirect.AllPrefixes(), `[]`: redirect.NoPrefixes(), `null`: {}, `["10.0.0.0/8","fd00::/8"]`: prefixSet("10.0.0.0/8", "fd00::/8"),
	} {
		b, err := json.Marshal(want)
		require.NoError(t, err)
		assert.Equal(t, set, string(b))
		var got redirect.PrefixSet
		require.NoError(t, json.Unmarshal(b, &got))
		assert.Equal(t, want, got)
	}
}

func TestErrorsCanBeTold(t *testing.T) {
	e := &redirect.SettingError{Source: redirect.FromAnnotation, Key: "k", Value: "v", Allowed: "x or y", Err: errors.ErrUnsupported}
	assert.Equal(t, `annotation k="v": unsupported operation (allowed: x or y)`, e.Error())
	assert.ErrorIs(t, e, errors.ErrUnsupported)
}
