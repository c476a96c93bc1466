package kubectlcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/visible"
)

// step is one of those that take a node from the other plugin to ours. Whether it is done, the cluster says, so a command that was
// interrupted goes on where it was.
type step struct {
	// done: there is nothing to do. Nil: do finds out itself.
	done func(*phase) bool
	// show says what do would change; nil: nothing.
	show func(context.Context, *phase) error
	do   func(context.Context, *phase) error
	// undo goes back; nil: there is nothing to undo.
	undo func(context.Context, *phase) error
}

// steps are in the order of both ways: the other's entry goes after its agent, and comes back after the agent that keeps its credentials
// alive.
func (x *crossing) steps() []step {
	return []step{
		{
			done: func(*phase) bool { return x.ds == nil || keepsOff(x.ds, x.from) },
			show: func(_ context.Context, s *phase) error {
				x.say(s.name, "to do: DaemonSet %s/%s gets a node affinity that keeps it off nodes with the label %s=%s, and the update strategy OnDelete, so that its pods on other nodes stay",
					x.ds.Namespace, x.ds.Name, switchedFrom, x.from)
				return nil
			},
			do: func(ctx context.Context, s *phase) error {
				if err := x.changeDaemonSet(ctx, keepOff); err != nil {
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
				would, err := x.entry(ctx, s.name, s.places, true, "take")
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
		{do: func(ctx context.Context, s *phase) error { return x.tryPods(ctx, s.name) }},
	}
}

// confirm shows what will be done, and asks the operator. Once a node is switched, nobody is asked again.
func (x *crossing) confirm(ctx context.Context, s *phase) error {
	if s.switched && !x.o.dryRun {
		x.say(s.name, "going on")
		return nil
	}
	for _, step := range x.steps() {
		if step.show == nil || step.done != nil && step.done(s) {
			continue
		}
		if err := step.show(ctx, s); err != nil {
			return fmt.Errorf("node %s: %w", s.name, err)
		}
	}
	if x.o.dryRun {
		return nil
	}
	if err := x.asks(ctx, fmt.Sprintf("node %s: take %s out?", s.name, x.from)); err != nil {
		return fmt.Errorf("node %s: %w", s.name, err)
	}
	return nil
}

// forward does what the operator has agreed to.
func (x *crossing) forward(ctx context.Context, s *phase) error {
	for _, step := range x.steps() {
		if step.done != nil && step.done(s) {
			continue
		}
		if err := step.do(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// back undoes it.
func (x *crossing) back(ctx context.Context, s *phase) error {
	for _, step := range x.steps() {
		if step.undo == nil {
			continue
		}
		if err := step.undo(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// letBackLast gives the DaemonSet back what it was once no other node is switched.
func (x *crossing) letBackLast(ctx context.Context, s *phase) error {
	if x.ds == nil {
		return nil
	}
	switched, err := x.switchedNodes(ctx, x.from)
	if err != nil || slices.ContainsFunc(switched, func(node string) bool { return node != s.name }) {
		return err
	}
	if err := x.changeDaemonSet(ctx, letBack); err != nil {
		return err
	}
	x.say(s.name, "DaemonSet %s/%s is as it was", x.ds.Namespace, x.ds.Name)
	return nil
}

func (x *crossing) agentLeaves(ctx context.Context, s *phase) error {
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

func (x *crossing) agentReturns(ctx context.Context, s *phase) error {
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
			return fmt.Errorf("pod %s/%s is not ready%s", pods[0].Namespace, pods[0].Name, waiting(&pods[0]))
		}
		return nil
	})
	if err != nil {
		return err
	}
	x.say(s.name, "the agent of %s is back", x.from)
	return x.writes(ctx, *s)
}

// moveEntry takes the other's entry out, or restores it. The texts are those of a failure, of a change and of none.
func (x *crossing) moveEntry(ctx context.Context, s *phase, do, failed, changed, same string) error {
	is, err := x.entry(ctx, s.name, s.places, false, do)
	switch {
	case err != nil:
		return fmt.Errorf(failed, x.from, err)
	case is.Changed:
		x.say(s.name, changed, x.from, is.File)
	default:
		x.say(s.name, same, x.from, is.File)
	}
	return nil
}

func isReady(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
