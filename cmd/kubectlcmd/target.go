package kubectlcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/selection"
)

// kinds are those that have pods, by the words that kubectl takes for them.
var kinds = map[string]string{
	"po": "pod", "pod": "pod", "pods": "pod", "deploy": "deployment", "deployment": "deployment", "deployments": "deployment",
	"sts": "statefulset", "statefulset": "statefulset", "statefulsets": "statefulset", "ds": "daemonset", "daemonset": "daemonset", "daemonsets": "daemonset",
	"rs": "replicaset", "replicaset": "replicaset", "replicasets": "replicaset", "job": "job", "jobs": "job",
}

// split reads POD, KIND/NAME or KIND NAME.
func split(args []string) (kind, name string, err error) {
	switch len(args) {
	case 1:
		var typed bool
		if kind, name, typed = strings.Cut(args[0], "/"); !typed {
			kind, name = "pod", args[0]
		}
	case 2:
		kind, name = args[0], args[1]
	default:
		return "", "", cli.Usagef("name one pod, or one deployment as deploy/NAME")
	}
	known := kinds[strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(kind, ".apps"), ".batch"))]
	if known == "" {
		return "", "", cli.Usagef("%q is none of pod, deployment, statefulset, daemonset, replicaset and job", kind)
	}
	if name == "" || strings.Contains(name, "/") {
		return "", "", cli.Usagef("%q is no name of a %s", name, known)
	}
	return known, name, nil
}

// find returns the pod that the arguments name: of a workload, one that runs.
func (c *cluster) find(ctx context.Context, args []string) (*corev1.Pod, error) {
	kind, name, err := split(args)
	if err != nil {
		return nil, err
	}
	namespace, err := c.namespace()
	if err != nil {
		return nil, err
	}
	if kind == "pod" {
		return c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	selector, err := c.selector(ctx, kind, namespace, name)
	if err != nil {
		return nil, err
	}
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: pageSize})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s/%s: %w", kind, name, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("%s/%s in namespace %s has no pods", kind, name, namespace)
	}
	first := slices.MinFunc(list.Items, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Name, b.Name))
	})
	if len(list.Items) > 1 {
		fmt.Fprintf(c.Stderr, "pod %s, one of %d of %s/%s\n", first.Name, len(list.Items), kind, name)
	}
	return &first, nil
}

// rank is lower for a pod that there is more to say of.
func rank(p *corev1.Pod) int {
	switch {
	case p.DeletionTimestamp != nil:
		return 2
	case p.Status.Phase == corev1.PodRunning:
		return 0
	}
	return 1
}

func (c *cluster) selector(ctx context.Context, kind, namespace, name string) (string, error) {
	var s *metav1.LabelSelector
	var err error
	var o metav1.GetOptions
	switch kind {
	case "deployment":
		w, failed := c.client.AppsV1().Deployments(namespace).Get(ctx, name, o)
		s, err = w.Spec.Selector, failed
	case "statefulset":
		w, failed := c.client.AppsV1().StatefulSets(namespace).Get(ctx, name, o)
		s, err = w.Spec.Selector, failed
	case "daemonset":
		w, failed := c.client.AppsV1().DaemonSets(namespace).Get(ctx, name, o)
		s, err = w.Spec.Selector, failed
	case "replicaset":
		w, failed := c.client.AppsV1().ReplicaSets(namespace).Get(ctx, name, o)
		s, err = w.Spec.Selector, failed
	case "job":
		w, failed := c.client.BatchV1().Jobs(namespace).Get(ctx, name, o)
		s, err = w.Spec.Selector, failed
	}
	if err != nil {
		return "", err
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil || selector.Empty() || s == nil {
		return "", fmt.Errorf("the selector of %s/%s selects no pods of its own: %w", kind, name, cmp.Or(err, errNoSelector))
	}
	return selector.String(), nil
}

// subject is a pod and what its node's agent says.
type subject struct {
	pod   *corev1.Pod
	agent agent
	// asking is why the agent has not answered; then node is empty.
	asking error
	node   agentapi.Node
	// decision is that of explain, once it has reached one.
	decision selection.Decision
}

// given returns the pod with what decides on it: its Namespace, and the configuration that is in force on its node.
func (c *cluster) given(cmd *cobra.Command, args []string, config string) (*subject, redirectcmd.Given, error) {
	ctx := cmd.Context()
	if err := c.open(); err != nil {
		return nil, redirectcmd.Given{}, err
	}
	pod, err := c.find(ctx, args)
	if err != nil {
		return nil, redirectcmd.Given{}, err
	}
	s := &subject{pod: pod}
	g := redirectcmd.Given{Pod: pod, Decision: &s.decision}
	if g.Namespace, err = c.client.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{}); err != nil {
		g.Namespace = nil
		fmt.Fprintf(c.Stderr, "warning: the pod's Namespace is not known: %v\n", err)
	}
	s.ask(ctx, c)
	switch {
	case config == "none":
		return s, g, nil
	case config != "":
		if g.Config, err = readFile(config); err != nil {
			return nil, g, fmt.Errorf("--config: %w", err)
		}
		g.ConfigFrom = config
	case s.asking != nil:
		return nil, g, fmt.Errorf("the configuration that decides on the pod is not known: %w\n--config FILE gives one, --config none goes by the defaults", s.asking)
	case len(s.node.Installed.Config) == 0:
		return nil, g, fmt.Errorf("node %s has no configuration of the plugin: %s\n--config FILE gives one, --config none goes by the defaults", pod.Spec.NodeName, s.node.Installed.Error)
	default:
		g.Config, g.ConfigFrom = s.node.Installed.Config, fmt.Sprintf("node %s: %s", pod.Spec.NodeName, s.node.Installed.File)
	}
	return s, g, nil
}

// ask asks the agent of the pod's node.
func (s *subject) ask(ctx context.Context, c *cluster) {
	if s.pod.Spec.NodeName == "" {
		s.asking = errNotScheduled
		return
	}
	if s.agent, s.asking = c.agentOn(ctx, s.pod.Spec.NodeName); s.asking == nil {
		s.node, s.asking = c.node(ctx, s.agent)
	}
}
