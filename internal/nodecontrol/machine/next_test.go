package machine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/status"
)

// well is a captured pod.
var well = machine.Actual{
	Namespace: true, Noted: true, Ours: true, Rules: machine.RulesSame, Inbound: true, Listening: true, Handed: true, Held: true, Proxy: true, Moves: true,
	Exempt: true, AnyExempt: true, Annotation: machine.SaysEnrolled,
}

func TestNext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		choice machine.Choice
		change func(*machine.Actual)
		acts   []machine.Action
		state  status.State
		reason status.Code
	}{
		"well": {machine.In, func(*machine.Actual) {}, nil, status.StateCaptured, "captured"},
		"another proxy came": {machine.In, func(a *machine.Actual) { a.Handed = false },
			[]machine.Action{machine.HandOver, machine.AwaitListeners}, status.StateDrifted, "not-handed-over"},
		"the proxy is away and listens":     {machine.In, func(a *machine.Actual) { a.Proxy = false }, nil, status.StateCaptured, "captured"},
		"somebody listens, and no proxy is": {machine.In, func(a *machine.Actual) { a.Handed, a.Proxy = false, false }, nil, status.StateDrifted, "no-proxy"},
		"somebody listens, and no rules are": {machine.In, func(a *machine.Actual) { a.Handed, a.Proxy, a.Rules = false, false, machine.RulesNone },
			nil, status.StateDrifted, "no-proxy"},
		"the proxy is gone": {machine.In, func(a *machine.Actual) { a.Handed, a.Proxy, a.Listening, a.Deaf = false, false, false, true },
			nil, status.StateDrifted, "no-proxy"},
		"the proxy is gone, and peers are told to send plaintext": {machine.In, func(a *machine.Actual) {
			a.Handed, a.Proxy, a.Listening, a.Annotation = false, false, false, machine.SaysPending
		}, []machine.Action{machine.SetEnrolled}, status.StateDrifted, "no-proxy"},
		"the proxy is gone, and what is sent to the pod reaches it": {machine.In, func(a *machine.Actual) {
			a.Handed, a.Proxy, a.Listening, a.Inbound = false, false, false, false
		}, nil, status.StateDrifted, "no-proxy"},
		"the same for long": {machine.In, func(a *machine.Actual) {
			a.Handed, a.Proxy, a.Listening, a.Inbound, a.Deaf = false, false, false, false, true
		}, []machine.Action{machine.SetPending}, status.StateDrifted, "no-proxy"},
		"the same, and that is said": {machine.In, func(a *machine.Actual) {
			a.Handed, a.Proxy, a.Listening, a.Inbound, a.Deaf, a.Annotation = false, false, false, false, true, machine.SaysPending
		}, nil, status.StateDrifted, "no-proxy"},
		"no proxy, no rules, for long": {machine.In, func(a *machine.Actual) {
			a.Handed, a.Proxy, a.Listening, a.Rules, a.Deaf = false, false, false, machine.RulesNone, true
		}, []machine.Action{machine.ClearStatus}, status.StateDrifted, "no-proxy"},
		"rules flushed": {machine.In, func(a *machine.Actual) { a.Rules = machine.RulesNone },
			[]machine.Action{machine.WriteRules}, status.StateDrifted, "rules-missing"},
		"a rule changed": {machine.In, func(a *machine.Actual) { a.Rules = machine.RulesDiffer },
			[]machine.Action{machine.WriteRules}, status.StateDrifted, "rules-differ"},
		"no listeners": {machine.In, func(a *machine.Actual) { a.Listening = false },
			[]machine.Action{machine.HandOver, machine.AwaitListeners}, status.StateDrifted, "no-listeners"},
		"no listeners, and peers are told to send plaintext": {machine.In, func(a *machine.Actual) { a.Listening, a.Annotation = false, machine.SaysNothing },
			[]machine.Action{machine.SetEnrolled, machine.HandOver, machine.AwaitListeners}, status.StateDrifted, "no-listeners"},
		"no listeners for long, and what is sent to the pod reaches it": {machine.In, func(a *machine.Actual) { a.Listening, a.Inbound, a.Deaf = false, false, true },
			[]machine.Action{machine.SetPending, machine.HandOver, machine.AwaitListeners, machine.SetEnrolled}, status.StateDrifted, "no-listeners"},
		"another proxy's connections would be reset": {machine.In, func(a *machine.Actual) { a.Moves = false }, []machine.Action{machine.SetSysctl}, status.StateCaptured, "captured"},
		"no exemption":   {machine.In, func(a *machine.Actual) { a.Exempt = false }, []machine.Action{machine.PutProbes}, status.StateCaptured, "captured"},
		"no namespace":   {machine.In, func(a *machine.Actual) { a.Namespace = false }, nil, status.StateDrifted, "no-namespace"},
		"cannot be told": {machine.Unsure, func(a *machine.Actual) { a.Rules = machine.RulesNone }, nil, status.StateUnknown, "selection-unknown"},
		"out, and its namespace is not found": {machine.Out, func(a *machine.Actual) { a.Namespace = false },
			[]machine.Action{machine.ClearStatus}, status.StateDrifted, "not-released"},
		"out, and only the annotation is left": {machine.Out, func(a *machine.Actual) { *a = machine.Actual{Annotation: machine.SaysElse} },
			[]machine.Action{machine.ClearStatus}, status.StateOutside, "released"},
		"out, with rules of others": {machine.Out, func(a *machine.Actual) { *a = machine.Actual{Namespace: true, Rules: machine.RulesDiffer} },
			nil, status.StateOutside, "released"},
		"out, and held back": {machine.Out, func(a *machine.Actual) { a.Rules, a.Annotation = machine.RulesDraining, machine.SaysNothing },
			nil, status.StateOutside, "released"},
		"out, held back, and told again that it is in": {machine.Out, func(a *machine.Actual) { a.Rules = machine.RulesDraining },
			[]machine.Action{machine.ClearStatus}, status.StateOutside, "released"},
		"out, and due": {machine.Out, func(a *machine.Actual) {
			a.Rules, a.Annotation, a.Due = machine.RulesDraining, machine.SaysNothing, true
		},
			[]machine.Action{machine.TakeBack, machine.DeleteProbes}, status.StateDrifted, "not-released"},
		"out, and due at once": {machine.Out, func(a *machine.Actual) { a.Due = true },
			[]machine.Action{machine.ClearStatus, machine.DrainRules, machine.TakeBack, machine.DeleteProbes}, status.StateDrifted, "not-released"},
		"out, and somebody flushed the rules": {machine.Out, func(a *machine.Actual) { a.Rules = machine.RulesNone },
			[]machine.Action{machine.ClearStatus}, status.StateOutside, "released"},
		"gone while it was held back": {machine.Gone, func(a *machine.Actual) { a.Rules, a.Annotation = machine.RulesDraining, machine.SaysNothing },
			[]machine.Action{machine.TakeBack, machine.DeleteProbes, machine.Forget}, status.StateOutside, "released"},
		"gone": {machine.Gone, func(a *machine.Actual) { a.Annotation = machine.SaysNothing },
			[]machine.Action{machine.TakeBack, machine.DeleteProbes, machine.Forget}, status.StateOutside, "released"},
	} {
		w, a := machine.Wanted{Choice: c.choice, Status: true, Probes: true}, well
		c.change(&a)
		assert.Equal(t, c.acts, machine.Next(w, a), name)
		state, reason := machine.Report(w, a, true)
		assert.Equal(t, c.state, state, name)
		assert.Equal(t, c.reason, reason, name)
	}
	refused := machine.Wanted{Choice: machine.Unsure, Why: status.CodePodRefused, Status: true}
	assert.Empty(t, machine.Next(refused, well))
	state, reason := machine.Report(refused, well, true)
	assert.Equal(t, "failed pod-refused", string(state)+" "+string(reason))
}

// restless changes after each action.
type restless struct{ acts int }

func (r *restless) Observe(context.Context) (machine.Actual, error) {
	a := well
	a.Rules = machine.RulesDiffer
	return a, nil
}
func (r *restless) Do(context.Context, machine.Action) error { r.acts++; return nil }

// TestRunEnds: also where something else writes the rules as fast.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	r := &restless{}
	_, last, seen, err := machine.Run(t.Context(), machine.Wanted{Choice: machine.In}, r)
	require.ErrorIs(t, err, machine.ErrUnsettled)
	assert.True(t, seen)
	assert.False(t, last.Captured())
	assert.Equal(t, 3, r.acts)

	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("late")
	cancel(late)
	_, _, _, err = machine.Run(ctx, machine.Wanted{Choice: machine.In}, r)
	require.ErrorIs(t, err, late)
	var step *machine.StepError
	require.ErrorAs(t, err, &step)
	assert.Equal(t, "rules", step.Step)
	assert.Equal(t, 3, r.acts)
}
