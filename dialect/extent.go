package dialect

import (
	"slices"

	"github.com/meshcni/meshcni/internal/diagnosis/samples"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
	"github.com/meshcni/meshcni/status"
)

// State returns what the rules make of the pod, and its code: captured; captured in part, [status.CodePartly], if no connection of a
// direction is, or its runtime is by its name a sandboxed one; or failed, [status.CodeNothingCaptured], if none at all is, or by the code of a
// bypass that a running pod's packets are seen to take. The sample packets tell, not what is set. Other ways past the mesh are not looked at. Of a Plan that came with an error, or whose rules cannot be told about, nothing is known.
func (p Plan) State() (status.State, status.Code) {
	none := func(code BypassCode) bool {
		return slices.ContainsFunc(p.Bypasses, func(b Bypass) bool { return b.Code == code && !b.Unsure && b.Family == 0 })
	}
	switch some := slices.ContainsFunc(p.Bypasses, func(b Bypass) bool { return b.direction() && !b.Unsure || b.Code == BypassSandboxed }); {
	case !p.Decision.Selected:
		return status.StateOutside, p.Decision.Reason
	case slices.ContainsFunc(p.Bypasses, func(b Bypass) bool { return b.HandedTo != "" && !b.Unsure }):
		return status.StateFailed, statuscode.Sandboxed
	case p.Ruleset == (ruleset.Ruleset{}):
		return status.StateUnknown, status.CodeSelected
	case p.Redirect.IPv4 != redirect.FamilyCapture && p.Redirect.IPv6 != redirect.FamilyCapture:
		return status.StateFailed, status.CodeNothingCaptured // all is discarded
	case none(BypassInbound) && none(BypassOutbound) && !p.queries:
		return status.StateFailed, status.CodeNothingCaptured
	case p.Decision.Reason == status.CodeProxyMissing:
		return status.StateCaptured, status.CodeProxyMissing
	case some:
		return status.StateCaptured, status.CodePartly
	}
	return status.StateCaptured, statuscode.Captured
}

// directions adds a bypass for each direction of which the rules capture no connection, in all captured families or in one.
func (p *Plan) directions(s Subject) {
	pod := samples.Pod{Addrs: s.Addrs}
	all, err := samples.Connections(p.Ruleset, pod)
	for _, d := range [...]struct {
		code BypassCode
		kind samples.Kind
	}{{BypassInbound, samples.Inbound}, {BypassOutbound, samples.Outbound}} {
		var without []Bypass
		for _, f := range p.Captured {
			i := slices.IndexFunc(all, func(found samples.Sample) bool { return found.Kind == d.kind && found.Family == f })
			if i < 0 || !all[i].Captured() {
				without = append(without, Bypass{Code: d.code, Family: f, Unsure: err != nil || i < 0 || all[i].Unsure})
			}
		}
		if same := func(b Bypass) bool { return b.Unsure != without[0].Unsure }; len(without) == len(p.Captured) && !slices.ContainsFunc(without, same) {
			without = without[:min(1, len(without))]
			for i := range without {
				without[i].Family = 0
			}
		}
		p.Bypasses = append(p.Bypasses, without...)
	}
	if state, _ := p.State(); state == status.StateFailed {
		all, err := samples.Of(p.Ruleset, pod)
		p.queries = err != nil || slices.ContainsFunc(all, func(found samples.Sample) bool {
			return found.Kind == samples.Query && found.Result.Verdict != trace.Pass
		})
	}
}
