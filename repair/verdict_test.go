package repair

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// TestVerdict is the table from what there is of a pod to what it amounts to.
func TestVerdict(t *testing.T) {
	t.Parallel()
	nothing := status.Pod{State: status.StateFailed, Reason: status.CodeNothingCaptured}
	partly := status.Pod{State: status.StateCaptured, Reason: status.CodePartly}
	has := func(trace, check, rules status.Code) evidence {
		return evidence{in: true, trace: trace, check: check, rules: rules}
	}
	with := func(e evidence, change func(*evidence)) evidence { change(&e); return e }
	acting := func(e *evidence) { e.acts, e.relied = true, true }
	const none = statuscode.NoCheck
	for name, c := range map[string]struct {
		evidence
		state         status.State
		reason        status.Code
		counts        string
		finding       status.Code
		mayAct, could bool
	}{
		"nothing is known of it":        {evidence{check: none}, "", "", countOutside, none, false, false},
		"its check alone":               {evidence{check: statuscode.CheckPassed}, "", "", countCaptured, statuscode.CheckPassed, false, true},
		"its check runs":                {evidence{check: statuscode.Checking}, "", "", countCannotTell, statuscode.Checking, false, true},
		"its check failed":              {evidence{check: statuscode.CheckFailed}, "", "", countBroken, statuscode.CheckFailed, true, true},
		"its check failed for another":  {evidence{check: statuscode.OtherFailure}, "", "", countCannotTell, statuscode.OtherFailure, false, true},
		"another mesh's":                {evidence{check: none, other: true}, "", "", countOther, none, false, false},
		"drifted, nobody looks":         {evidence{check: none, rules: statuscode.Drifted, drifted: true}, "", "", countDrifted, none, false, false},
		"selected by the record":        {has(statuscode.Recorded, none, ""), status.StateCaptured, statuscode.Recorded, countCaptured, none, false, false},
		"attached with our type":        {has(statuscode.Attached, none, ""), status.StateCaptured, statuscode.Attached, countCaptured, none, false, false},
		"passed over":                   {has(statuscode.PassedOver, none, ""), status.StateFailed, statuscode.PassedOver, countUncaptured, none, false, false},
		"attached without":              {has(status.CodeNotCalled, none, ""), status.StateFailed, status.CodeNotCalled, countUncaptured, none, false, false},
		"by Multus":                     {has(statuscode.Delegated, none, ""), status.StateUnknown, statuscode.Delegated, countCannotTell, none, false, false},
		"no trace":                      {has(statuscode.NoTrace, none, ""), status.StateUnknown, statuscode.NoTrace, countCannotTell, none, false, false},
		"without, the check passed":     {has(status.CodeNotCalled, statuscode.CheckPassed, ""), status.StateCaptured, statuscode.CheckPassed, countCaptured, statuscode.CheckPassed, false, true},
		"without, the check recovered":  {has(status.CodeNotCalled, statuscode.Recovered, ""), status.StateCaptured, statuscode.CheckPassed, countCaptured, statuscode.Recovered, false, true},
		"without, the check failed":     {has(status.CodeNotCalled, statuscode.CheckFailed, ""), status.StateFailed, status.CodeNotCalled, countBroken, statuscode.CheckFailed, true, true},
		"recorded, the check failed":    {has(statuscode.Recorded, statuscode.CheckFailed, ""), status.StateCaptured, statuscode.Recorded, countBroken, statuscode.CheckFailed, true, true},
		"without, the rules are equal":  {has(status.CodeNotCalled, none, statuscode.Intact), status.StateCaptured, statuscode.Verified, countCaptured, none, false, false},
		"passed over, restored":         {has(statuscode.PassedOver, none, statuscode.Restored), status.StateCaptured, statuscode.Verified, countCaptured, none, false, false},
		"no trace, no rules":            {has(statuscode.NoTrace, none, statuscode.Uncaptured), status.StateFailed, statuscode.NoRules, countUncaptured, none, false, false},
		"recorded, no rules":            {has(statuscode.Recorded, none, statuscode.Uncaptured), status.StateCaptured, statuscode.Recorded, countCaptured, none, false, false},
		"recorded, rules differ":        {with(has(statuscode.Recorded, none, statuscode.Drifted), func(e *evidence) { e.drifted = true }), status.StateDrifted, statuscode.Rules, countDrifted, none, false, false},
		"recorded, cannot be told":      {has(statuscode.Recorded, none, statuscode.CannotTell), status.StateUnknown, statuscode.CannotTell, countCannotTell, none, false, false},
		"differed, now cannot be told":  {with(has(statuscode.Recorded, none, statuscode.CannotTell), func(e *evidence) { e.drifted = true }), status.StateDrifted, statuscode.Rules, countDrifted, none, false, false},
		"without, differs":              {with(has(status.CodeNotCalled, none, statuscode.Drifted), func(e *evidence) { e.drifted = true }), status.StateFailed, status.CodeNotCalled, countUncaptured, none, false, false},
		"its rules leave out all":       {with(has(statuscode.Recorded, none, statuscode.Intact), func(e *evidence) { e.part = nothing }), status.StateFailed, status.CodeNothingCaptured, countNothing, none, false, false},
		"its rules leave out a part":    {with(has(statuscode.Recorded, none, statuscode.Intact), func(e *evidence) { e.part = partly }), status.StateCaptured, status.CodePartly, countCaptured, none, false, false},
		"past all rules":                {with(has(statuscode.NoTrace, none, statuscode.Sandboxed), func(e *evidence) { e.part, e.past = nothing, true }), status.StateFailed, status.CodeNothingCaptured, countNothing, none, false, false},
		"undecided":                     {with(has(status.CodeNotCalled, none, ""), func(e *evidence) { e.unsure = statuscode.Namespace; acting(e) }), status.StateUnknown, statuscode.Namespace, countCannotTell, none, false, true},
		"without, an action is for it":  {with(has(status.CodeNotCalled, none, ""), acting), status.StateFailed, status.CodeNotCalled, countUncaptured, statuscode.NotCaptured, true, true},
		"it never relied on the plugin": {with(has(status.CodeNotCalled, none, ""), func(e *evidence) { e.acts = true }), status.StateFailed, status.CodeNotCalled, countUncaptured, none, false, true},
		"handled":                       {with(has(status.CodeNotCalled, none, ""), func(e *evidence) { acting(e); e.handled = true }), status.StateFailed, status.CodeNotCalled, countUncaptured, statuscode.Handled, false, true},
		"its check is handled":          {with(has(status.CodeNotCalled, statuscode.Handled, ""), func(e *evidence) { acting(e); e.handled = true }), status.StateFailed, status.CodeNotCalled, countUncaptured, statuscode.Handled, false, true},
		"a static pod":                  {with(has(status.CodeNotCalled, statuscode.MirrorPod, ""), acting), status.StateFailed, status.CodeNotCalled, countUncaptured, statuscode.MirrorPod, false, false},
		"captured, an action is for it": {with(has(statuscode.Recorded, none, ""), acting), status.StateCaptured, statuscode.Recorded, countCaptured, none, false, true},
		"unknown, an action is for it":  {with(has(statuscode.NoTrace, none, ""), acting), status.StateUnknown, statuscode.NoTrace, countCannotTell, none, false, true},
	} {
		assert.Equal(t, verdict{c.state, c.reason, c.counts, c.finding, c.mayAct, c.could}, c.verdict(), name)
	}
	for trace, state := range traceStates {
		got, code := has(trace, none, "").captured()
		assert.Equal(t, state, got, trace)
		assert.Equal(t, trace, code)
	}
}
