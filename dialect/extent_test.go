package dialect_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestState: how much of a pod is captured goes by what becomes of packets, however the settings say it, and what is not set at all is
// an error of the dialect.
func TestState(t *testing.T) {
	t.Parallel()
	prefix := netip.MustParsePrefix
	everywhere := redirect.Prefixes(prefix("0.0.0.0/0"), prefix("::/0"))
	halves := redirect.Prefixes(prefix("0.0.0.0/1"), prefix("128.0.0.0/1"), prefix("::/1"), prefix("8000::/1"))
	ports := redirect.PortRanges(ruleset.PortRange{First: 1, Last: 65535})
	type codes = []dialect.BypassCode
	for name, tt := range map[string]struct {
		change func(*redirect.Redirect)
		state  status.State
		code   status.Code
		codes  codes
	}{
		"all": {func(*redirect.Redirect) {}, status.StateCaptured, "captured", nil},
		"none": {func(r *redirect.Redirect) {
			r.Inbound.Ports, r.Outbound.CIDRs = redirect.NoPorts(), redirect.NoPrefixes()
		},
			status.StateFailed, status.CodeNothingCaptured, codes{"inbound", "outbound"}},
		"all excluded": {func(r *redirect.Redirect) { r.Inbound.ExcludePorts, r.Outbound.ExcludeCIDRs = ports, everywhere },
			status.StateFailed, status.CodeNothingCaptured, codes{"inbound", "outbound"}},
		"all excluded by halves": {func(r *redirect.Redirect) { r.Inbound.ExcludeSources, r.Outbound.ExcludeCIDRs = halves, halves },
			status.StateFailed, status.CodeNothingCaptured, codes{"inbound", "outbound"}},
		"all ports and DNS": {func(r *redirect.Redirect) {
			r.Inbound.Ports, r.Outbound.ExcludePorts = redirect.NoPorts(), redirect.PortRanges(ruleset.PortRange{First: 1, Last: 52}, ruleset.PortRange{First: 54, Last: 65535})
			r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
		}, status.StateCaptured, status.CodePartly, codes{"inbound", "outbound"}},
		"outbound only": {func(r *redirect.Redirect) { r.Inbound.Ports = redirect.NoPorts() }, status.StateCaptured, status.CodePartly, codes{"inbound"}},
		"all discarded": {func(r *redirect.Redirect) { r.IPv4, r.IPv6 = redirect.FamilyDrop, redirect.FamilyDrop },
			status.StateFailed, status.CodeNothingCaptured, nil},
		"one port": {func(r *redirect.Redirect) { r.Inbound.Ports = redirect.Ports(81) }, status.StateCaptured, "captured", nil},
		"one family's": {func(r *redirect.Redirect) { r.Outbound.CIDRs = redirect.Prefixes(prefix("10.0.0.0/8")) },
			status.StateCaptured, status.CodePartly, codes{"outbound"}},
		"another group's only": {func(r *redirect.Redirect) { r.Outbound.OwnerGroups = []uint32{7} }, status.StateCaptured, "captured", nil},
	} {
		mesh := dialect.Dialect{Name: "toy", Build: func(dialect.Input) (dialect.Reading, error) {
			r := redirect.Default()
			tt.change(&r)
			return dialect.Reading{Redirect: r}, nil
		}}
		plan, err := mesh.Plan(dialect.Subject{Pod: toyPod(nil)}, dialect.Options{})
		require.NoError(t, err, name)
		state, code := plan.State()
		assert.Equal(t, tt.state, state, name)
		assert.Equal(t, tt.code, code, name)
		assert.Equal(t, tt.codes, plan.BypassCodes(), name)
	}
	for field, change := range map[string]func(*redirect.Redirect){
		"inbound.ports":  func(r *redirect.Redirect) { r.Inbound = redirect.Inbound{} },
		"outbound.cidrs": func(r *redirect.Redirect) { r.Outbound = redirect.Outbound{ExcludePorts: redirect.Ports(443)} },
		"ipv4":           func(r *redirect.Redirect) { r.IPv4, r.IPv6 = redirect.FamilyPass, redirect.FamilyPass },
	} {
		r := redirect.Default()
		change(&r)
		var wrong *redirect.FieldError
		require.ErrorAs(t, r.Validate(), &wrong)
		assert.Equal(t, field, wrong.Field)
		mesh := dialect.Dialect{Name: "toy", Names: r.Names, Build: func(dialect.Input) (dialect.Reading, error) { return dialect.Reading{Redirect: r}, nil }}
		require.ErrorContains(t, mesh.Validate(), field)
		plan, err := mesh.Plan(dialect.Subject{Pod: toyPod(nil)}, dialect.Options{})
		require.Error(t, err)
		state, _ := plan.State()
		assert.Equal(t, status.StateUnknown, state)
	}
}
