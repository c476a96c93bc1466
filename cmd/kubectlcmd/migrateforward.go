package kubectlcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// phase is a node's progress through the migration.
type phase struct {
	name   string
	agent  agent
	places places
	// switched: the operator's word has been given. since is when only our plugin was left; zero: it is not known to be.
	switched bool
	since    time.Time
	// theirs: the other's entry is in the list.
	theirs bool
	pods   int    // of the other's agent
	config []byte // the entry of ours
	list   string // the file's name
}

// soundness returns the faults of a node, pods apart, for which the operator is not to be asked.
func soundness(name string, n agentapi.Node) (errs []error, warnings []string) {
	f := &findings{known: map[[2]string]*finding{}}
	f.node("node/"+name, n)
	if n.Installed.Loaded != "" {
		errs = append(errs, fmt.Errorf("%s: the runtime loads %s, and our entry is in %s", codeNotLoaded, n.Installed.Loaded, n.Installed.File))
	}
	for _, found := range f.all {
		text := string(found.Code) + ": " + found.Text
		switch {
		case slices.Contains([]status.Code{codePodBypasses, codePodDrifted, codePodWaiting, codeOtherMesh, codeNotLast, codeNotLoaded}, found.Code):
		case found.Level == levelWarning:
			warnings = append(warnings, text)
		default:
			errs = append(errs, errors.New(text))
		}
	}
	return errs, warnings
}

// at finds out how far a node is. Only an agent that is ready and whose entry is in the list that the runtime loads will do.
func (x *crossing) at(ctx context.Context, name string) (s phase, warnings []string, err error) {
	node, err := x.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return s, nil, err
	}
	label := node.Labels[switchedFrom]
	s.name, s.switched = name, label == x.from
	s.since, _ = time.Parse(time.RFC3339, node.Annotations[switchedAt]) // else it is not known
	if label != "" && !s.switched {
		return s, nil, fmt.Errorf("it is switched from %s: kubectl meshcni migrate back %s comes first", label, name)
	}
	s.agent, err = x.agentOn(ctx, name)
	switch {
	case errors.Is(err, errNoAgent):
		return s, nil, fmt.Errorf("%w: install the chart first", errNoAgent)
	case err != nil:
		return s, nil, err
	}
	n, err := x.node(ctx, s.agent)
	if err != nil {
		return s, nil, err
	}
	errs, warnings := soundness(name, n)
	s.theirs = slices.Contains(n.Installed.Plugins, x.from)
	s.places, s.config, s.list = x.placesOf(&n, s.agent.template), n.Installed.Config, n.Installed.File[strings.LastIndex(n.Installed.File, "/")+1:]
	if own := n.Installed.Type(); s.list == "00-"+own+".conflist" {
		errs = append(errs, errors.New("the agent keeps a list of its own (cni.ownFile), which it makes anew from the other's: remove the other plugin instead, as docs/migrating.md says"))
	}
	return s, warnings, errors.Join(errs...)
}

// switchNode takes one node over.
func (x *crossing) switchNode(ctx context.Context, name string) error {
	s, warnings, err := x.at(ctx, name)
	if err != nil {
		return fmt.Errorf("node %s is not ready for it: %w", name, err)
	}
	pods, err := x.theirs(ctx, name)
	s.pods = len(pods)
	switch {
	case err != nil:
		return fmt.Errorf("node %s: %w", name, err)
	case !s.theirs && !s.switched && len(pods) == 0:
		x.say(name, "nothing of %s is there, so there is nothing to do", x.from)
		return nil
	case !s.theirs && !s.switched:
		return fmt.Errorf("node %s: %s runs there, and its entry is not in %s, which the runtime loads: it may be about to write it", name, pods[0].Name, s.list)
	}
	for _, text := range warnings {
		x.say(name, "warning: %s", text)
	}
	if s.theirs {
		x.say(name, "our agent is ready, and its entry is in %s beside that of %s", s.list, x.from)
	} else {
		x.say(name, "our agent is ready, and its entry is in %s without that of %s", s.list, x.from)
	}
	if err := x.confirm(ctx, &s); err != nil || x.o.dryRun {
		return err
	}
	if err := x.forward(ctx, &s); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("node %s: interrupted; the same command goes on, and kubectl meshcni migrate back %[1]s goes back: %w", name, err)
		}
		return x.offerBack(ctx, name, err)
	}
	x.say(name, "switched: new pods are captured by our plugin alone")
	x.toRestart(ctx, s)
	return nil
}

// until tries until there is no error, or the time for a step is up.
func (x *crossing) until(ctx context.Context, not string, try func(context.Context) error) error {
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
		if ended := wait(ctx, askEvery); ended != nil {
			return fmt.Errorf("%s: %w: %w", not, ended, last)
		}
	}
}

// errCameBack: another program has put the other's entry in again.
var errCameBack = errors.New("another program has written it")

// stays watches for a while that the other's entry stays out, and holds our agent to be ready then. An agent that does not answer
// in between is no sign of anything.
func (x *crossing) stays(ctx context.Context, s *phase) error {
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
		} else if err := wait(ctx, min(time.Second, time.Until(until))); err != nil {
			return err
		}
	}
	if back == nil {
		back = x.until(ctx, "our agent is not ready without it", look)
	}
	if errors.Is(back, errCameBack) {
		back = fmt.Errorf("%w%s", back, x.suspects(ctx, *s))
	}
	return back
}

func (x *crossing) suspects(ctx context.Context, s phase) string {
	names, err := x.writers(ctx, s.name, s.places)
	switch {
	case err != nil:
		return "; which pods may have, cannot be told: " + err.Error()
	case len(names) == 0:
		return "; no pod of the node may have, so it is one of the host's own"
	}
	return "; these pods of the node may have: " + strings.Join(names, ", ")
}

// tryPods tries connections between throw-away pods.
func (x *crossing) tryPods(ctx context.Context, node string) error {
	if x.o.noTest {
		return nil
	}
	r, err := x.try(ctx, node)
	for _, left := range r.Left {
		x.left = errors.Join(x.left, fmt.Errorf("left behind: %s", left))
	}
	if err != nil {
		return fmt.Errorf("try connections: %w", err)
	}
	if err := r.print(visible.To(x.Stdout)); err != nil {
		return err
	}
	for _, row := range r.Rows {
		if row.Result == resultFailed {
			return errors.New("throw-away pods of the node are not captured as they should be, see above")
		}
	}
	if errors.Is(r.exit(), cli.Exit(ExitUnknown)) {
		x.say(node, "warning: not every connection could be tried, see above")
	}
	return nil
}

// offerBack offers to go back after a step has failed.
func (x *crossing) offerBack(ctx context.Context, name string, failed error) error {
	failed = fmt.Errorf("node %s: %w", name, failed)
	visible.To(x.Stderr).Printf("%s: %v\n", x.Name, failed)
	if err := x.asks(ctx, fmt.Sprintf("node %s: go back to %s?", name, x.from)); err != nil {
		x.say(name, "it stays as it is: the same command tries again, and kubectl meshcni migrate back %s goes back", name)
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
