//go:build linux

// Package podrules is the one way to the rules of a pod that runs: it chooses the backend that sees them, compares them with wanted
// ones, keeps the plugin's record true, and reads them for people. Controllers decide what to write and when; package repair's and
// package nodeproxy's both work by it, as do the agent's looks into pods and the support bundle.
//
// Who calls it has the pod's network namespace, proven to be the pod's; [Look] finds it by the record of an attachment.
package podrules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// ErrVariant says that iptables made the pod's rules, and its programs are missing here, so the rules can be neither compared nor
// replaced. Check with errors.Is(err, podrules.ErrVariant).
var ErrVariant = errors.New("the pod's rules are those of iptables, which is not on the path of this program")

// Choose returns the backend for an owner's rules in a pod's namespace.
func Choose(ctx context.Context, ns apply.Namespace, owner ruleset.Ownership, o apply.Options) (apply.Backend, error) {
	b, err := apply.Choose(ctx, ns, o)
	if err != nil || b.Name() != ruleset.BackendNftables {
		return b, err
	}
	// This backend does not see rules of iptables, and would take them for missing.
	traces, err := apply.IptablesTraces(ctx, ns, owner)
	if err == nil && traces != "" {
		err = fmt.Errorf("%w (%s)", ErrVariant, traces)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Differences compares the live rules with each of the wanted rulesets. None means that one of them is in force, and none but those that
// are not certain, that this cannot be told of it; else they are those from the first. Routing that the namespace did not take when its rules were written is missing from none.
func Differences(ctx context.Context, b apply.Backend, unusable []string, wanted ...ruleset.Ruleset) (diffs []ruleset.Difference, err error) {
	for i, rs := range wanted {
		got, err := b.Check(ctx, rs)
		if err != nil {
			return nil, err
		}
		if got = Without(got, unusable); len(ruleset.Certain(got)) == 0 {
			return got, nil
		}
		if i == 0 {
			diffs = got
		}
	}
	return diffs, nil
}

// Without returns the differences less those of routing that the namespace did not take.
func Without(diffs []ruleset.Difference, unusable []string) []ruleset.Difference {
	return slices.DeleteFunc(diffs, func(d ruleset.Difference) bool {
		return d.Table == ruleset.RoutingTable && slices.Contains(unusable, d.Rule)
	})
}

// Extent returns how far a pod whose rules are in force is captured, with the bypasses that its packets are seen to have; but for its backend,
// its mesh and the time.
func Extent(plan dialect.Plan, seen ...dialect.Bypass) (s status.Pod) {
	plan.Bypasses = slices.Concat(plan.Bypasses, seen)
	s.State, s.Reason = plan.State()
	var words []string
	for _, b := range plan.Bypasses {
		if b.Unsure {
			continue // nobody knows whether it has it
		}
		if !slices.Contains(s.Bypasses, string(b.Code)) {
			s.Bypasses = append(s.Bypasses, string(b.Code))
		}
		if b.Code == dialect.BypassInbound || b.Code == dialect.BypassOutbound || b.Code == dialect.BypassSandboxed {
			words = append(words, b.String())
		}
	}
	s.Detail = strings.Join(words, "; ")
	return s
}

// Note makes a record of a mesh's pod say what was applied, and reports whether it said otherwise.
func Note(r *attachment.Record, mesh string, rs ruleset.Ruleset, applied apply.Result) (changed bool) {
	if r.Selected && r.Backend == applied.Backend && r.Dialect == mesh && r.Rules.Equal(rs) && slices.Equal(r.Unusable, applied.Left()) {
		return false
	}
	r.Applied(applied.Backend, rs, applied.Skipped, applied.Left()...)
	r.Selected, r.Reason, r.Dialect = true, status.CodeSelected, mesh
	return true
}
