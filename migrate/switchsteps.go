package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/migrate/internal/migration"
)

// phase is a node's progress through the migration.
type phase struct {
	name    string
	agent   agents.Agent
	cniDirs cniDirs
	// switched: the operator has agreed. since is when only our plugin was left; zero: it is not known to be.
	switched bool
	since    time.Time
	// theirs: the other's entry is in the list.
	theirs bool
	pods   int    // of the other's agent
	config []byte // the entry of ours
	list   string // the file's name
}

// step is one of those that take a node from the other plugin to ours. The cluster says whether it is done, so a command that was
// interrupted goes on where it was.
type step struct {
	// done: there is nothing to do. Nil: do finds out itself.
	done func(*phase) bool
	// show prints the change that do would make; nil: none.
	show func(context.Context, *phase) error
	do   func(context.Context, *phase) error
	// undo goes back; nil: there is nothing to undo.
	undo func(context.Context, *phase) error
}

// steps are in the order of both ways: the other's entry goes after its agent, and comes back after the agent that keeps its credentials
// alive.
func (x *switcher) steps() []step {
	return []step{
		{
			done: func(*phase) bool { return x.ds == nil || migration.KeepsOff(x.Identity, x.ds, x.from) },
			show: func(_ context.Context, s *phase) error {
				x.say(s.name, "to do: DaemonSet %s/%s gets a node affinity that keeps it off nodes with the label %s=%s, and the update strategy OnDelete, so that its pods on other nodes stay",
					x.ds.Namespace, x.ds.Name, x.Identity.Key(migration.SwitchedFrom), x.from)
				return nil
			},
			do: func(ctx context.Context, s *phase) error {
				if err := x.changeDaemonSet(ctx, migration.KeepOff); err != nil {
					return err
				}
				x.say(s.name, "DaemonSet %s/%s keeps off switched nodes", x.ds.Namespace, x.ds.Name)
				return nil
			},
			undo: x.letBackLast,
		},
		{
			done: func(s *phase) bool { return s.switched },
			show: func(_ context.Context, s *phase) error {
				x.say(s.name, "to do: the node gets that label; pods of %s there, which end: %d", x.from, s.pods)
				return nil
			},
			do:   func(ctx context.Context, s *phase) error { return x.mark(ctx, s.name, x.from, nil) },
			undo: func(ctx context.Context, s *phase) error { return x.mark(ctx, s.name, nil, nil) },
		},
		{do: x.agentLeaves, undo: x.agentReturns},
		{
			show: func(ctx context.Context, s *phase) error {
				if !s.theirs {
					return nil
				}
				would, err := x.entry(ctx, s.name, s.cniDirs, true, "take")
				if err != nil {
					return err
				}
				x.say(s.name, "to do: the entry of %s is taken out of %s, unless its agent does that when it ends", x.from, would.File)
				visible.To(x.Stdout).Text(strings.TrimSpace(would.Diff) + "\n")
				return nil
			},
			do: func(ctx context.Context, s *phase) error {
				return x.moveEntry(ctx, s, "take", "take the entry of %s out: %w", "the entry of %s is out of %s, and kept on the node", "the entry of %s is not in %s any more")
			},
			undo: func(ctx context.Context, s *phase) error {
				return x.moveEntry(ctx, s, "restore", "put the entry of %s back: %w", "the entry of %s is in %s again, where it was", "the entry of %s is in %s again, by its own agent")
			},
		},
		{do: x.stays},
		{
			done: func(s *phase) bool { return !s.since.IsZero() },
			do: func(ctx context.Context, s *phase) error {
				s.since = time.Now()
				return x.mark(ctx, s.name, x.from, s.since.UTC().Format(time.RFC3339))
			},
		},
		{do: x.tryPods},
	}
}

// switchNode takes one node over.
func (x *switcher) switchNode(ctx context.Context, name string) error {
	s, warnings, err := x.at(ctx, name)
	if err != nil {
		return fmt.Errorf("node %s is not ready for it: %w", name, err)
	}
	pods, err := x.theirs(ctx, name)
	s.pods = len(pods)
	beside := "beside that of " + x.from
	switch {
	case err != nil:
		return fmt.Errorf("node %s: %w", name, err)
	case s.theirs:
	case s.switched:
		beside = "without that of " + x.from
	case len(pods) == 0:
		x.say(name, "nothing of %s is there, so there is nothing to do", x.from)
		return nil
	default:
		return fmt.Errorf("node %s: %s runs there, and its entry is not in %s, which the runtime loads: it may be about to write it", name, pods[0].Name, s.list)
	}
	for _, text := range warnings {
		x.say(name, "warning: %s", text)
	}
	x.say(name, "our agent is ready, and its entry is in %s %s", s.list, beside)
	if err := x.confirm(ctx, &s); err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	if x.o.dryRun {
		return nil
	}
	for _, step := range x.steps() {
		if step.done != nil && step.done(&s) {
			continue
		}
		if err := step.do(ctx, &s); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("node %s: interrupted; the same command goes on, and %s migrate back %[1]s goes back: %[3]w", name, x.Identity.Kubectl, err)
			}
			return x.offerBack(ctx, name, fmt.Errorf("node %s: %w", name, err))
		}
	}
	x.say(name, "switched: new pods are captured by our plugin alone")
	x.toRestart(ctx, s)
	return nil
}

// confirm shows the changes, and asks for confirmation. Once a node is switched, nobody is asked again.
func (x *switcher) confirm(ctx context.Context, s *phase) error {
	if s.switched && !x.o.dryRun {
		x.say(s.name, "going on")
		return nil
	}
	for _, step := range x.steps() {
		if step.show == nil || step.done != nil && step.done(s) {
			continue
		}
		if err := step.show(ctx, s); err != nil {
			return err
		}
	}
	if x.o.dryRun {
		return nil
	}
	return x.asks(ctx, fmt.Sprintf("node %s: take %s out?", s.name, x.from))
}

// offerBack offers to go back after a step has failed.
func (x *switcher) offerBack(ctx context.Context, name string, failed error) error {
	visible.To(x.Stderr).Printf("%s: %v\n", x.Identity.KubectlProgram()+"-migrate", failed)
	if err := x.asks(ctx, fmt.Sprintf("node %s: go back to %s?", name, x.from)); err != nil {
		x.say(name, "it stays as it is: the same command tries again, and %s migrate back %s goes back", x.Identity.Kubectl, name)
		return failed
	}
	yes := x.o.yes
	x.o.yes = true // it has been asked
	defer func() { x.o.yes = yes }()
	if err := x.backNode(ctx, name); err != nil {
		return errors.Join(failed, fmt.Errorf("and going back failed: %w", err))
	}
	return failed
}

// backNode gives one node back.
func (x *switcher) backNode(ctx context.Context, name string) error {
	err := x.back(ctx, name)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("node %s: interrupted; the same command goes on: %w", name, err)
	}
	return fmt.Errorf("node %s: %w", name, err)
}

func (x *switcher) back(ctx context.Context, name string) error {
	node, err := x.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	switched := node.Labels[x.Identity.Key(migration.SwitchedFrom)] == x.from
	s := phase{name: name, cniDirs: x.cniDirsOf(nil, nil)}
	s.agent, err = x.AgentOn(ctx, name)
	switch {
	case err == nil: // without an agent of ours, or one that answers, it goes as well
		if n, err := x.Node(ctx, s.agent); err == nil {
			s.cniDirs = x.cniDirsOf(&n, s.agent.Template())
		} else {
			x.say(name, "warning: our agent does not answer: %v", err)
		}
	case !errors.Is(err, agents.ErrNoAgent):
		return err
	}
	is, err := x.entry(ctx, name, s.cniDirs, false, "show")
	nothing := is.Kept == nil && is.KeptError == ""
	switch {
	case err != nil:
		return err
	case !switched && is.Chained && is.Kept == nil:
		x.say(name, "it is not switched: the entry of %s is in %s", x.from, is.File)
		return nil
	case !switched && x.o.all && nothing: // its agent may not be meant for this node
		x.say(name, "it is not switched, and nothing of %s is kept there", x.from)
		return nil
	case x.ds == nil && nothing && !is.Chained:
		return fmt.Errorf("there is no DaemonSet of %s, and nothing of it is kept on the node: install it again", x.from)
	}
	x.say(name, "to do: the agent of %s may run there again, and its entry comes back into %s", x.from, is.File)
	if x.o.dryRun {
		return nil
	}
	if err := x.asks(ctx, fmt.Sprintf("node %s: put %s back?", name, x.from)); err != nil {
		return err
	}
	for _, step := range x.steps() {
		if step.undo == nil {
			continue
		}
		if err := step.undo(ctx, &s); err != nil {
			return err
		}
	}
	x.say(name, "back: both plugins are called for new pods, as before; pods of the time between have our rules")
	return nil
}

// at finds out how far a node is. Only an agent that is ready and whose entry is in the list that the runtime loads will do.
func (x *switcher) at(ctx context.Context, name string) (s phase, warnings []string, err error) {
	node, err := x.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return s, nil, err
	}
	label := node.Labels[x.Identity.Key(migration.SwitchedFrom)]
	s.name, s.switched = name, label == x.from
	s.since, _ = time.Parse(time.RFC3339, node.Annotations[x.Identity.Key(switchedAt)]) // else it is not known
	if label != "" && !s.switched {
		return s, nil, fmt.Errorf("it is switched from %s: %s migrate back %s comes first", label, x.Identity.Kubectl, name)
	}
	s.agent, err = x.AgentOn(ctx, name)
	switch {
	case errors.Is(err, agents.ErrNoAgent):
		return s, nil, fmt.Errorf("%w: install the chart first", agents.ErrNoAgent)
	case err != nil:
		return s, nil, err
	}
	n, err := x.Node(ctx, s.agent)
	if err != nil {
		return s, nil, err
	}
	errs, warnings := x.Faults(name, n)
	s.theirs = slices.Contains(n.Installed.Plugins, x.from)
	s.cniDirs, s.config, s.list = x.cniDirsOf(&n, s.agent.Template()), n.Installed.Config, n.Installed.File[strings.LastIndex(n.Installed.File, "/")+1:]
	if own := n.Installed.Type(); s.list == "00-"+own+".conflist" {
		errs = append(errs, errors.New("the agent keeps a list of its own (cni.ownFile), which it makes anew from the other's: remove the other plugin instead, as docs/migrating.md says"))
	}
	return s, warnings, errors.Join(errs...)
}

// until tries until there is no error, or the time for a step is up.
func (x *switcher) until(ctx context.Context, not string, try func(context.Context) error) error {
	ctx, stop := context.WithTimeoutCause(ctx, x.o.timeout, fmt.Errorf("not within %s", x.o.timeout))
	defer stop()
	var last error
	for {
		err := try(ctx)
		if err == nil || errors.Is(err, errCameBack) {
			return err
		}
		if last == nil || ctx.Err() == nil { // that the time is up says nothing
			last = err
		}
		if ended := kubectl.Wait(ctx, askEvery); ended != nil {
			return fmt.Errorf("%s: %w: %w", not, ended, last)
		}
	}
}

// letBackLast gives the DaemonSet back what it was once no other node is switched.
func (x *switcher) letBackLast(ctx context.Context, s *phase) error {
	if x.ds == nil {
		return nil
	}
	switched, err := x.switchedNodes(ctx, x.from)
	if err != nil || slices.ContainsFunc(switched, func(node string) bool { return node != s.name }) {
		return err
	}
	if err := x.changeDaemonSet(ctx, migration.LetBack); err != nil {
		return err
	}
	x.say(s.name, "DaemonSet %s/%s is as it was", x.ds.Namespace, x.ds.Name)
	return nil
}

func (x *switcher) agentLeaves(ctx context.Context, s *phase) error {
	err := x.until(ctx, "the agent of "+x.from+" has not left the node", func(ctx context.Context) error {
		pods, err := x.theirs(ctx, s.name)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("pod %s/%s is there", pods[0].Namespace, pods[0].Name)
		}
		return err
	})
	if err == nil {
		x.say(s.name, "no agent of %s runs there", x.from)
	}
	return err
}

// agentReturns waits for the other's agent, and for a while for its entry, which it need not put in.
func (x *switcher) agentReturns(ctx context.Context, s *phase) error {
	if x.ds == nil {
		return nil
	}
	err := x.until(ctx, "the agent of "+x.from+" is not back on the node", func(ctx context.Context) error {
		pods, err := x.theirs(ctx, s.name)
		switch {
		case err != nil:
			return err
		case len(pods) == 0:
			return errors.New("it has no pod there")
		case !slices.ContainsFunc(pods, isReady):
			return fmt.Errorf("pod %s/%s is not ready%s", pods[0].Namespace, pods[0].Name, agents.Waiting(&pods[0]))
		}
		return nil
	})
	if err != nil {
		return err
	}
	x.say(s.name, "the agent of %s is back", x.from)
	for deadline := time.Now().Add(x.o.watch); time.Now().Before(deadline) && s.agent.Name != ""; {
		if n, err := x.Node(ctx, s.agent); err == nil && slices.Contains(n.Installed.Plugins, x.from) {
			return nil
		}
		if err := kubectl.Wait(ctx, askEvery); err != nil {
			return err
		}
	}
	return nil
}

func isReady(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// moveEntry takes the other's entry out, or restores it. The texts are those of a failure, of a change and of none.
func (x *switcher) moveEntry(ctx context.Context, s *phase, do, failed, changed, same string) error {
	is, err := x.entry(ctx, s.name, s.cniDirs, false, do)
	if err != nil {
		return fmt.Errorf(failed, x.from, err)
	}
	if is.Changed {
		same = changed
	}
	x.say(s.name, same, x.from, is.File)
	return nil
}

// errCameBack: another program has put the other's entry in again.
var errCameBack = errors.New("another program has written it")

// stays watches for a while that the other's entry stays out, and holds our agent to be ready then. An agent that does not answer
// in between is no sign of anything.
func (x *switcher) stays(ctx context.Context, s *phase) error {
	look := func(ctx context.Context) error {
		now, _, err := x.at(ctx, s.name)
		if err == nil && now.theirs {
			err = fmt.Errorf("the entry of %s is in %s again: %w", x.from, now.list, errCameBack)
		}
		return err
	}
	var back error
	for until := time.Now().Add(x.o.watch); back == nil && time.Now().Before(until); {
		if err := look(ctx); errors.Is(err, errCameBack) {
			back = err
		} else if err := kubectl.Wait(ctx, min(time.Second, time.Until(until))); err != nil {
			return err
		}
	}
	if back == nil {
		back = x.until(ctx, "our agent is not ready without it", look)
	}
	if !errors.Is(back, errCameBack) {
		return back
	}
	names, err := x.writers(ctx, s.name, s.cniDirs)
	switch {
	case err != nil:
		return fmt.Errorf("%w; which pods may have, cannot be told: %w", back, err)
	case len(names) == 0:
		return fmt.Errorf("%w; no pod of the node may have, so it is one of the host's own", back)
	}
	return fmt.Errorf("%w; these pods of the node may have: %s", back, strings.Join(names, ", "))
}

// tryPods tries connections between throw-away pods.
func (x *switcher) tryPods(ctx context.Context, s *phase) error {
	if x.o.noTest {
		return nil
	}
	r, err := x.Test(ctx, s.name, x.o.image, x.o.timeout)
	for _, left := range r.Left {
		x.Leave(errors.New("left behind: " + left))
	}
	if err != nil {
		return fmt.Errorf("try connections: %w", err)
	}
	if err := r.Print(visible.To(x.Stdout)); err != nil {
		return err
	}
	if r.Failed {
		return errors.New("throw-away pods of the node are not captured as they should be, see above")
	}
	if r.Unsure {
		x.say(s.name, "warning: not every connection could be tried, see above")
	}
	return nil
}
