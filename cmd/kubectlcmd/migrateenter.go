package kubectlcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// entersAtOnce bounds how many nodes have a pod that reads rules at a time.
const entersAtOnce = 10

// entrance reads the rules that the agents could not.
type entrance struct {
	enterFlags
	mu sync.Mutex
	// refused is the reason that no more pods are made.
	refused error
	// left lists the pods that could not be deleted.
	left error
	// unread counts the pods whose rules nobody has read.
	unread int
}

// eachBatch calls each with pods of the cluster until it has had all, some at a time: pages, or the pods of some nodes if a pod may be made on each.
func (m *move) eachBatch(ctx context.Context, each func([]corev1.Pod) error) error {
	if !m.entrance.enter {
		return m.eachPage(ctx, each)
	}
	nodes := []string{""} // of the pods that have none yet
	if err := list(ctx, m.client.CoreV1().Nodes().List, metav1.ListOptions{}, func(n *corev1.Node) { nodes = append(nodes, n.Name) }); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for some := range slices.Chunk(nodes, entersAtOnce) {
		var pods []corev1.Pod
		for _, node := range some {
			o := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
			if err := list(ctx, m.client.CoreV1().Pods("").List, o, func(pod *corev1.Pod) { pods = append(pods, *pod) }); err != nil {
				return fmt.Errorf("list pods: %w", err)
			}
		}
		if err := each(pods); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// look returns what is on the node of a pod: as the pod that was made there has it, or as the agent says.
func (c *candidate) look(ctx context.Context, m *move, l *lookout) (p agentapi.Pod, err error) {
	if c.entered != nil {
		return *c.entered, nil
	}
	return m.tells(ctx, l.agent, c.pod)
}

// unread reports whether nobody has read the pod's rules, and they matter.
func (c *candidate) unread() bool {
	return c.explained.Err() == nil && c.is.LiveError != "" && !c.is.Moved && len(c.is.Live) == 0
}

// enter reads the rules of those pods of a node whose rules its agent could not read.
func (m *move) enter(ctx context.Context, node string, all []*candidate) {
	var those []*candidate
	var uids []string
	for _, c := range all {
		if c.unread() {
			those, uids = append(those, c), append(uids, runtimeUID(c.pod))
		}
	}
	e := &m.entrance
	e.mu.Lock()
	refused := e.refused
	e.mu.Unlock()
	var found map[string]agentapi.Pod
	var left, err error
	switch {
	case len(those) == 0:
		return
	case !e.enter || node == "":
	case refused != nil:
		err = refused
	default:
		what := "pod " + those[0].pod.Namespace + "/" + those[0].pod.Name
		if len(those) > 1 {
			what = fmt.Sprintf("%d pods", len(those))
		}
		found, left, err = m.lookInto(ctx, node, what, e.image, uids)
	}
	unread := 0
	for _, c := range those {
		is, ok := found[runtimeUID(c.pod)]
		if other := theirs(c.pod, is); other != nil {
			ok, err = false, other
		}
		switch {
		case ok:
			c.entered = &is
			c.is = m.observe(ctx, &lookout{}, c)
			if is.LiveError != "" && c.unread() {
				c.is.LiveError = "--enter: " + is.LiveError
			}
		case err != nil:
			c.is.LiveError += "; --enter: " + err.Error()
		}
		if c.unread() {
			unread++
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unread += unread
	e.left = errors.Join(e.left, left)
	if apierrors.IsForbidden(err) && e.refused == nil {
		e.refused = err
	}
}
