package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/visible"
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
	return c.findBy(ctx, args, func(pods []corev1.Pod) (*corev1.Pod, string) {
		first := slices.MinFunc(pods, func(a, b corev1.Pod) int {
			return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Name, b.Name))
		})
		return &first, ""
	})
}

// findBy returns the pod that the arguments name: of several of a workload, the one that is chosen, and what is said of it.
func (c *cluster) findBy(ctx context.Context, args []string, choose func([]corev1.Pod) (*corev1.Pod, string)) (*corev1.Pod, error) {
	kind, name, err := split(args)
	if err != nil {
		return nil, err
	}
	namespace, err := c.namespace()
	if err != nil {
		return nil, err
	}
	if kind == "pod" {
		pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("namespace %s: %w (a workload is named with its kind, such as deployment/%s; -n names another namespace)", namespace, err, name)
		}
		return pod, err
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
	if len(list.Items) == 1 {
		return &list.Items[0], nil
	}
	chosen, why := choose(list.Items)
	visible.To(c.Stderr).Printf("pod %s, one of %d of %s/%s%s\n", chosen.Name, len(list.Items), kind, name, why)
	return chosen, nil
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
	pod *corev1.Pod
	// fromFile: the pod need not be in the cluster, and nothing on a node is about it.
	fromFile bool
	agent    agent
	// asking is the reason that the agent has not answered; then node is empty.
	asking error
	node   agentapi.Node
	// selector is that of the agents' pods.
	selector string
	// namespace is the pod's; nil: not known. deciding is what decides; nil: it cannot be read.
	namespace *corev1.Namespace
	deciding  *deciding
	// explained is the result of explain, once it has reached a decision.
	explained explain.Explanation
	// flags say what to do about rules that the agent cannot read. entered: they were read otherwise, or tried to; left is then
	// what remains of that.
	flags   enterFlags
	entered bool
	left    error
}

// sources are files that replace the cluster as the source of the pod and of the settings.
type sources struct {
	file, config string
	// trouble takes the pod of a workload that has some.
	trouble bool
}

// find returns the pod that the arguments name.
func (o sources) find(ctx context.Context, c *cluster, args []string) (*corev1.Pod, error) {
	if !o.trouble {
		return c.find(ctx, args)
	}
	return c.findBy(ctx, args, func(pods []corev1.Pod) (*corev1.Pod, string) {
		l, err := c.looker(ctx, pods[0].Namespace, o.config)
		if err != nil { // it is said of the one that is taken
			l = &looker{c: c, nodes: map[string]*subject{}}
		}
		return l.troubled(ctx, pods)
	})
}

func (o *sources) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "a file with a pod, or with a workload such as a Deployment, that need not be in the cluster; - is standard input. A node with an agent says what decides")
	cmd.Flags().StringVar(&o.config, "config", "", "a network configuration with the plugin's entry, instead of the one in force on the pod's node; none: the defaults")
}

var errNameConfig = errors.New("--config FILE gives one, --config none goes by the defaults")

// given returns the pod with what decides on it: its Namespace, and the configuration that is in force on its node.
func (c *cluster) given(cmd *cobra.Command, args []string, from sources) (*subject, redirectcmd.Given, error) {
	ctx, config := cmd.Context(), from.config
	if err := c.open(); err != nil {
		return nil, redirectcmd.Given{}, err
	}
	s := &subject{selector: c.agentSelector}
	g := redirectcmd.Given{Explained: &s.explained}
	var err error
	switch {
	case from.file != "" && len(args) > 0:
		return nil, g, cli.Usagef("%s: with --filename the file says which pod", args[0])
	case from.file != "":
		var m *explain.Manifest
		if m, err = c.manifest(from.file); err == nil {
			s.pod, s.fromFile, g.Template = m.Pod, true, m.Template
		}
	default:
		s.pod, err = from.find(ctx, c, args)
	}
	if err != nil {
		return nil, g, err
	}
	pod := s.pod
	g.Pod = pod
	if g.Namespace, err = c.client.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{}); err != nil {
		g.Namespace = nil
		visible.To(c.Stderr).Printf("warning: the pod's Namespace is not known: %v\n", err)
	}
	s.namespace = g.Namespace
	if s.fromFile && config == "" {
		s.askAny(ctx, c)
	} else {
		s.ask(ctx, c)
	}
	switch {
	case config == "none":
		return s, g, nil
	case config != "":
		if g.Config, err = readFile(config); err != nil {
			return nil, g, fmt.Errorf("--config: %w", err)
		}
		g.ConfigFrom = config
	case s.asking != nil:
		return s, g, fmt.Errorf("the configuration that decides on the pod is not known: %w\n%w", s.asking, errNameConfig)
	case len(s.node.Installed.Config) == 0:
		return s, g, errors.Join(fmt.Errorf("node %s has no configuration of the plugin: %s", s.agent.Node, s.node.Installed.Error), errNameConfig)
	default:
		g.Config, g.ConfigFrom = s.node.Installed.Config, fmt.Sprintf("node %s: %s", s.agent.Node, s.node.Installed.File)
	}
	d := &deciding{text: g.Config}
	if err := d.parse(c.Dialects); err == nil { // else explain says what is wrong with it
		s.deciding = d
	}
	return s, g, nil
}

// manifest reads a pod from a file. One without a namespace is in the one that kubectl's flags say.
func (c *cluster) manifest(name string) (m *explain.Manifest, err error) {
	var text []byte
	if name == "-" {
		text, err = io.ReadAll(io.LimitReader(c.Stdin, explain.MaxManifest+1))
	} else {
		text, err = readFile(name)
	}
	if err == nil && len(text) > explain.MaxManifest {
		err = fmt.Errorf("it is larger than %d MiB", explain.MaxManifest>>20)
	}
	if err == nil {
		m, err = explain.ParseManifest(text)
	}
	if err == nil && !m.Namespaced {
		m.Pod.Namespace, err = c.namespace()
	}
	if err != nil {
		return nil, fmt.Errorf("--filename %s: %w", name, err)
	}
	return m, nil
}

// maxAsked bounds the agents that are asked for a pod that is on no node.
const maxAsked = 5

// askAny asks agents until one has a configuration, in the order of their nodes.
func (s *subject) askAny(ctx context.Context, c *cluster) {
	agents, err := c.agentsByNode(ctx)
	if s.asking = err; err != nil {
		return
	}
	nodes := slices.SortedFunc(maps.Keys(agents), func(a, b string) int {
		return cmp.Or(cmp.Compare(agents[a].Trouble, agents[b].Trouble), cmp.Compare(a, b))
	})
	s.asking = errNoAgent
	for _, node := range nodes[:min(len(nodes), maxAsked)] {
		s.agent = agents[node]
		if s.node, s.asking = c.node(ctx, s.agent); s.asking == nil && len(s.node.Installed.Config) > 0 {
			return
		}
	}
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
	if errors.Is(s.asking, errNoAgent) {
		if all, err := c.agentsByNode(ctx); err == nil && len(all) == 0 { // else it is that node's trouble alone, as far as is known
			s.asking = fmt.Errorf("%w (looked for a DaemonSet of pods with the labels %s)", errNoAgents, c.agentSelector)
		}
	}
}
