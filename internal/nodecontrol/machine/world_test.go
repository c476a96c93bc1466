package machine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/nodecontrol/machine"
	"github.com/meshcni/meshcni/status"
)

// world is a pod, its kernel, its proxy and the API server, and what a controller remembers of them.
type world struct {
	t *rapid.T

	// What is wanted.
	choice machine.Choice
	// The truth, which a crash does not change.
	ns         int // which sandbox
	visible    bool
	rules      map[int]machine.Rules // by sandbox
	listening  map[int]bool
	impostor   bool         // the pod itself listens
	accepted   map[int]bool // by a proxy, at any time
	proxy      bool         // up
	has        int          // the sandbox for which the proxy has the pod; 0: none
	exempt     bool
	annotation machine.Annotation
	noted      bool
	carries    bool         // connections through the proxy
	bypass     bool         // what others send to the pod is not redirected
	deaf       bool         // nobody has listened for long
	sysctl     map[int]bool // set for the proxy, by sandbox
	// The memory.
	held     int // 0 unknown, 1 no, 2 yes
	handed   int
	ours     bool
	captured bool
	due      bool // what the proxy has of a pod that leaves has had its time

	atOnce bool // no pod that leaves is held back

	faults bool // whether effects may fail now
	untold bool // an annotation could not be written in this round, which stops nothing
	acts   int
}

var (
	errFault = errors.New("a fault")
	errKill  = errors.New("killed")
)

func (w *world) wanted() machine.Wanted {
	return machine.Wanted{Choice: w.choice, Status: true, Probes: true}
}

// choose changes what is wanted of a pod that is not gone.
func (w *world) choose(c machine.Choice) {
	if w.choice != machine.Gone {
		w.choice, w.due = c, false
	}
}

// wait passes the time that a pod which is no longer redirected is held back.
func (w *world) wait() {
	w.due = w.choice == machine.Out && (w.now() == machine.RulesNone || w.now() == machine.RulesDraining)
}

func (w *world) forget() { w.held, w.handed, w.ours, w.captured, w.due = 0, 0, w.noted, false, false }

// down: the sockets of a proxy go with it.
func (w *world) down() { w.proxy, w.has, w.listening = false, 0, map[int]bool{} }

// up: another proxy, or the same one, has yet to accept the pod.
func (w *world) up() {
	if !w.proxy {
		w.proxy, w.handed, w.impostor = true, 0, false
	}
}

func (w *world) listens() bool { return w.listening[w.ns] || w.impostor }

func (w *world) now() machine.Rules { return w.rules[w.ns] }

func (w *world) Observe(context.Context) (machine.Actual, error) {
	if w.faults && rapid.IntRange(0, 19).Draw(w.t, "look fails") == 0 {
		return machine.Actual{}, errFault
	}
	a := machine.Actual{
		Noted: w.noted, Ours: w.ours, Proxy: w.proxy, Annotation: w.annotation, Exempt: w.exempt, AnyExempt: w.exempt,
	}
	a.Held = w.held == 2 || w.held == 0 && (a.Ours || a.Noted || a.Annotation != machine.SaysNothing)
	if w.choice == machine.Gone || w.choice == machine.Unsure || w.choice == machine.Out && !a.Ours && a.Annotation == machine.SaysNothing || !w.visible {
		return a, nil
	}
	w.noted = true
	a.Namespace, a.Rules, a.Listening, a.Handed = true, w.now(), w.listens(), w.handed == w.ns && (w.has == w.ns || !w.proxy)
	a.Inbound, a.Deaf = !w.bypass, w.deaf && !w.listens()
	a.Moves = w.sysctl[w.ns]
	a.Carries, a.Due = a.Rules == machine.RulesDraining && w.carries, w.due || w.atOnce
	if w.choice == machine.In {
		a.Ours = a.Ours || a.Rules == machine.RulesSame
	}
	return a, nil
}

func (w *world) Do(_ context.Context, act machine.Action) error {
	w.acts++
	kind := "ok"
	if w.faults {
		kind = rapid.SampledFrom([]string{"ok", "ok", "ok", "ok", "fails", "half", "killed before", "killed after"}).Draw(w.t, act.String())
	}
	switch kind {
	case "killed before":
		panic(errKill)
	case "fails":
		w.untold = w.untold || act.String() == "status"
		if act == machine.HandOver {
			w.held, w.handed = 2, 0
		}
		return errFault
	}
	err := w.do(act)
	switch {
	case kind == "half" && act.String() == "status":
		return errFault
	case kind == "killed after":
		panic(errKill)
	case kind == "half" && err == nil:
		err = errFault
		if act == machine.HandOver {
			w.handed = 0
		}
	}
	return err
}

func (w *world) do(act machine.Action) error {
	switch act {
	case machine.ClearStatus, machine.SetPending:
		closed := w.now() == machine.RulesSame && !w.bypass
		require.True(w.t, w.choice != machine.In || w.deaf && !w.listens() && !closed, "peers are told to send plaintext")
		w.annotation = machine.SaysNothing
		if act == machine.SetPending {
			w.annotation = machine.SaysPending
		}
	case machine.SetEnrolled:
		require.Equal(w.t, machine.RulesSame, w.now(), "the annotation tells of rules that are not there")
		require.True(w.t, !w.bypass || w.listens() && w.accepted[w.ns], "the annotation tells of a proxy that is not there")
		w.annotation = machine.SaysEnrolled
	case machine.HandOver:
		if w.held = 2; !w.proxy {
			return errFault
		}
		w.has, w.handed, w.accepted[w.ns], w.listening = w.ns, w.ns, true, map[int]bool{w.ns: true}
		if w.faults && rapid.IntRange(0, 9).Draw(w.t, "it accepts and does not listen") == 0 {
			w.listening = map[int]bool{}
		}
	case machine.AwaitListeners:
		if !w.listens() {
			return errFault
		}
	case machine.SetSysctl:
		w.sysctl[w.ns] = true
	case machine.PutProbes:
		w.exempt = true
	case machine.WriteRules:
		require.True(w.t, w.listens() && w.accepted[w.ns], "rules that lead to no proxy")
		w.rules[w.ns], w.ours = machine.RulesSame, true
	case machine.DrainRules:
		require.True(w.t, w.untold || w.annotation != machine.SaysEnrolled, "peers still come by the tunnel")
		w.rules[w.ns], w.due = machine.RulesDraining, false
	case machine.RemoveRules:
		require.True(w.t, w.now() == machine.RulesDraining && !w.carries, "connections lose their translation")
		require.Equal(w.t, 1, w.held, "the proxy still takes connections")
		w.rules[w.ns] = machine.RulesNone
	case machine.TakeBack:
		require.True(w.t, w.choice == machine.Gone || w.now() == machine.RulesNone || w.now() == machine.RulesDraining, "a pod with rules loses its proxy")
		require.True(w.t, w.choice == machine.Gone || !w.ours || w.due || w.atOnce, "what it carries is cut, and peers have not heard")
		w.has, w.held, w.handed, w.listening = 0, 1, 0, map[int]bool{}
	case machine.DeleteProbes:
		w.exempt = false
	case machine.Forget:
		if w.choice == machine.Out {
			w.sysctl[w.ns] = false
		}
		w.noted, w.ours = false, false
	}
	return nil
}

// round is one run of the machine. It returns what would be reported.
func (w *world) round() (state status.State, err error) {
	defer func() {
		if v := recover(); v != nil {
			if v != errKill { //nolint:errorlint // the very value
				panic(v)
			}
			w.forget()
			err = errKill
		}
	}()
	w.acts, w.untold = 0, false
	_, last, seen, err := machine.Run(context.Background(), w.wanted(), w)
	require.LessOrEqual(w.t, w.acts, 3*8, "it goes round in circles")
	if !seen {
		return "", err
	}
	state, _ = machine.Report(w.wanted(), last, w.captured)
	w.captured = state == status.StateCaptured
	if state == status.StateCaptured {
		require.Equal(w.t, machine.RulesSame, w.now(), "reported captured, and has no such rules")
		require.True(w.t, w.listens() && w.accepted[w.ns], "reported captured, and no proxy listens")
	}
	return state, err
}

// TestWorld: whatever happens, in whatever order, and whatever fails meanwhile.
func TestWorld(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, bypass: rapid.Bool().Draw(t, "bypass"), atOnce: rapid.Bool().Draw(t, "at once"), ns: 1, visible: true, rules: map[int]machine.Rules{}, listening: map[int]bool{}, accepted: map[int]bool{}, sysctl: map[int]bool{}, choice: machine.Out}
		w.rules[1] = machine.RulesNone
		events := map[string]func(){
			"in":              func() { w.choose(machine.In) },
			"out":             func() { w.choose(machine.Out) },
			"gone":            func() { w.choose(machine.Gone) },
			"unsure":          func() { w.choose(machine.Unsure) },
			"another sandbox": func() { w.ns++; w.rules[w.ns] = machine.RulesNone },
			"no process":      func() { w.visible = false },
			"a process":       func() { w.visible = true },
			"proxy down":      w.down,
			"proxy up":        w.up,
			"proxy away":      func() { w.proxy = false }, // it goes on without a connection
			"the pod listens": func() { w.impostor = !w.proxy },
			"proxy forgets":   func() { w.has, w.listening = 0, map[int]bool{} },
			"rules flushed":   func() { w.rules[w.ns] = machine.RulesNone },
			"rules changed": func() {
				if w.now() == machine.RulesSame {
					w.rules[w.ns] = machine.RulesDiffer
				}
			},
			"connections": func() { w.carries = true }, "connections end": func() { w.carries = false },
			"time passes":    w.wait,
			"sysctl changed": func() { w.sysctl[w.ns] = false },
			"set emptied":    func() { w.exempt = false },
			"deaf":           func() { w.deaf = true }, "not for long": func() { w.deaf = false },
			"a lie":    func() { w.annotation = machine.SaysEnrolled },
			"nonsense": func() { w.annotation = machine.SaysElse },
			"killed":   w.forget,
		}
		names := make([]string, 0, len(events))
		for _, name := range []string{
			"in", "in", "in", "out", "gone", "unsure", "another sandbox", "no process", "a process", "proxy down", "proxy up", "proxy up", "proxy forgets",
			"proxy away", "the pod listens", "connections", "connections end", "time passes", "time passes",
			"rules flushed", "rules changed", "sysctl changed", "set emptied", "deaf", "not for long", "a lie", "nonsense", "killed",
		} {
			require.Contains(t, events, name)
			names = append(names, name)
		}
		for range rapid.IntRange(1, 25).Draw(t, "events") {
			events[rapid.SampledFrom(names).Draw(t, "event")]()
			w.faults = rapid.Bool().Draw(t, "faults")
			_, err := w.round()
			if !w.faults && w.proxy && w.visible && w.choice == machine.In {
				require.NoError(t, err)
				require.True(t, w.listening[w.ns] && w.now() == machine.RulesSame, "captured without a proxy, or not at all, after one round")
			}
		}

		// The faults stop, and all becomes as it is to be.
		w.up()
		w.faults, w.visible, w.carries = false, true, false
		if w.choice == machine.Unsure {
			w.choice = machine.Out
		}
		state, err := w.round()
		require.NoError(t, err)
		if w.choice == machine.Out {
			require.Equal(t, status.StateOutside, state, "whether or not the proxy still has it")
		}
		w.wait()
		for range 2 {
			_, err := w.round()
			require.NoError(t, err)
		}
		in := w.choice == machine.In
		require.Equal(t, in, w.listening[w.ns])
		require.Equal(t, in, w.has != 0)
		require.Equal(t, in, w.exempt)
		require.Equal(t, in, w.noted)
		if w.choice != machine.Gone {
			require.Equal(t, in, w.sysctl[w.ns])
		}
		require.Equal(t, map[bool]machine.Annotation{true: machine.SaysEnrolled, false: machine.SaysNothing}[in], w.annotation)
		if w.choice != machine.Gone { // the rules of those that are gone die with their namespace
			require.Equal(t, map[bool]machine.Rules{true: machine.RulesSame, false: machine.RulesNone}[in], w.now())
		}
		_, err = w.round()
		require.NoError(t, err)
		require.Zero(t, w.acts, "nothing is left to do")
	})
}
