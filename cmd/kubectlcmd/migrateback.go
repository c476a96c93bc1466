package kubectlcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// backNode gives one node back.
func (x *crossing) backNode(ctx context.Context, name string) error {
	node, err := x.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	switched := node.Labels[switchedFrom] == x.from
	s := phase{name: name, places: x.placesOf(nil, nil)}
	s.agent, err = x.agentOn(ctx, name)
	if err != nil && !errors.Is(err, errNoAgent) {
		return fmt.Errorf("node %s: %w", name, err)
	}
	if err == nil { // without an agent of ours, or one that answers, it goes as well
		if n, err := x.node(ctx, s.agent); err == nil {
			s.places = x.placesOf(&n, s.agent.template)
		} else {
			x.say(name, "warning: our agent does not answer: %v", err)
		}
	}
	is, err := x.entry(ctx, name, s.places, false, "show")
	switch {
	case err != nil:
		return fmt.Errorf("node %s: %w", name, err)
	case !switched && is.Chained && is.Kept == nil:
		x.say(name, "it is not switched: the entry of %s is in %s", x.from, is.File)
		return nil
	case !switched && x.o.all && is.Kept == nil && is.KeptError == "": // its agent may not be meant for this node
		x.say(name, "it is not switched, and nothing of %s is kept there", x.from)
		return nil
	}
	if x.ds == nil && is.Kept == nil && is.KeptError == "" && !is.Chained {
		return fmt.Errorf("node %s: there is no DaemonSet of %s, and nothing of it is kept on the node: install it again", name, x.from)
	}
	x.say(name, "to do: the agent of %s may run there again, and its entry comes back into %s", x.from, is.File)
	if x.o.dryRun {
		return nil
	}
	if err := x.asks(ctx, fmt.Sprintf("node %s: put %s back?", name, x.from)); err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	if err := x.back(ctx, &s); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("node %s: interrupted; the same command goes on: %w", name, err)
		}
		return fmt.Errorf("node %s: %w", name, err)
	}
	x.say(name, "back: both plugins are called for new pods, as before; pods of the time between have our rules")
	return nil
}

// writes waits for the other's agent to put its entry in. It need not.
func (x *crossing) writes(ctx context.Context, s phase) error {
	for deadline := time.Now().Add(x.o.watch); time.Now().Before(deadline) && s.agent.Name != ""; {
		if n, err := x.node(ctx, s.agent); err == nil && slices.Contains(n.Installed.Plugins, x.from) {
			return nil
		}
		if err := wait(ctx, askEvery); err != nil {
			return err
		}
	}
	return nil
}
