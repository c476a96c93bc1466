package kubectlcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// enterFlags say what to do where an agent cannot read the rules of pods.
type enterFlags struct {
	enter bool
	image string
}

func (f *enterFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.enter, "enter", false, "where an agent cannot read the live rules, read them by a short-lived pod on the node, which is deleted again; it takes the right to make privileged pods")
	cmd.Flags().StringVar(&f.image, "image", "", "with --enter: the pod's image, which has the agent as its entry point (default: that of the node's agent)")
}

func (f *enterFlags) check() error {
	if f.image != "" && !f.enter {
		return cli.Usagef("--image %s: it is of the pod that --enter makes", f.image)
	}
	return nil
}

// Where a job has the host's directories, and how it gets at the host's programs.
const (
	lookRunDir   = "/host/run/agent"
	lookHostRoot = "/proc/1/root"
)

const (
	// looksAtOnce bounds the pods that one pod reads the rules of, and so what it writes: some 10 KB a pod.
	looksAtOnce = 50
	// lookTime is the extra time of a pod for each that it looks at.
	lookTime = time.Second
)

// lookInto reads the rules of a node's pods by a pod on it, and returns what it has found by the UIDs that the runtime knows the pods by.
// It stops at the first error; what it has found until then is there.
func (c *cluster) lookInto(ctx context.Context, node, what, image string, uids []string) (found map[string]agentapi.Pod, err error) {
	found = map[string]agentapi.Pod{}
	waiting := slices.Collect(slices.Chunk(uids, looksAtOnce))
	for len(waiting) > 0 {
		some := waiting[0]
		waiting = waiting[1:]
		err := c.lookOnce(ctx, node, what, image, some, found)
		switch {
		case errors.Is(err, errLongLog) && len(some) > 1: // one of them has very many rules
			waiting = append([][]string{some[:len(some)/2], some[len(some)/2:]}, waiting...)
		case err != nil:
			return found, err
		}
	}
	return found, nil
}

// lookOnce makes one pod that looks into others, and adds what it has found.
func (c *cluster) lookOnce(ctx context.Context, node, what, image string, uids []string, found map[string]agentapi.Pod) error {
	args := []string{"look", "--host-root=" + lookHostRoot, "--run-dir=" + lookRunDir}
	for _, uid := range uids {
		args = append(args, "--uid="+uid)
	}
	out, err := c.runJob(ctx, kubectl.Job{
		Node: node, What: "to read the live rules of " + what, Args: args, RunDirAt: lookRunDir, Enters: true, Image: image, Timeout: jobTime + time.Duration(len(uids))*lookTime,
	})
	if err != nil {
		return err
	}
	for line := range bytes.Lines(out) {
		var l agentapi.Looked
		if err := json.Unmarshal(line, &l); err != nil {
			return fmt.Errorf("what the pod on node %s has written: %w", node, err)
		}
		found[l.UID] = l.Pod
	}
	for _, uid := range uids {
		if _, ok := found[uid]; !ok {
			return fmt.Errorf("the pod on node %s has written nothing of the pod with UID %s", node, uid)
		}
	}
	return nil
}

// enter reads what is on the node of the pod by a pod there. What is found takes the place of what the agent has said; only the
// state is the agent's.
func (s *subject) enter(ctx context.Context, c *cluster, p *agentapi.Pod) error {
	found, err := c.lookInto(ctx, s.pod.Spec.NodeName, "pod "+s.pod.Namespace+"/"+s.pod.Name, s.flags.image, []string{kubectl.RuntimeUID(s.pod)})
	s.entered = true
	is, ok := found[kubectl.RuntimeUID(s.pod)]
	if !ok {
		return fmt.Errorf("--enter: %w", err)
	}
	if err := kubectl.Theirs(s.pod, is); err != nil {
		return fmt.Errorf("--enter: %w", err)
	}
	is.State = p.State
	*p = is
	return nil
}

// enters reports whether a pod is to be made that reads the rules: if it is asked for, there is something to read, and the agent
// could not.
func (s *subject) enters(p agentapi.Pod, asked error) bool {
	return s.flags.enter && s.enterable() && (asked != nil || p.LiveError != "")
}

// enterable reports whether the pod may have rules to read.
func (s *subject) enterable() bool {
	phase := s.pod.Status.Phase
	return s.pod.Spec.NodeName != "" && !s.pod.Spec.HostNetwork && phase != corev1.PodSucceeded && phase != corev1.PodFailed
}

// rules are the live rules of the pod, read by the agent or by a pod on the node.
func (s *subject) rules(ctx context.Context, c *cluster) (p agentapi.Pod, err error) {
	p, err = s.look(ctx, c)
	switch {
	case p.LiveError != "":
		err = errors.New(p.LiveError)
	case p.Records != nil:
		err = nil // whoever has read them
	}
	if err != nil && !s.entered && s.enterable() {
		err = fmt.Errorf("%w (%s)", err, kubectl.EnterHint)
	}
	return p, err
}

// tells asks an agent for what is on its node of a pod.
func (c *cluster) tells(ctx context.Context, a agents.Agent, pod *corev1.Pod) (p agentapi.Pod, err error) {
	if err = c.get(ctx, a, agentapi.PodPath+kubectl.RuntimeUID(pod), &p); err == nil {
		err = kubectl.Theirs(pod, p)
	}
	if err != nil {
		return agentapi.Pod{}, err
	}
	return p, nil
}
