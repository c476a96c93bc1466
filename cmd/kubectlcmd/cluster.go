package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/explain/live"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// pageSize bounds what one list of the API server has. Its own clients ask for as many.
const pageSize = 500

// cluster is the source of all commands.
type cluster struct {
	Program
	kube           *genericclioptions.ConfigFlags
	agentSelector  string
	agentNamespace string
	agentTimeout   time.Duration

	client    kubernetes.Interface
	agents    asker
	finding   sync.Mutex
	installed installation

	mu   sync.Mutex
	left error // names the pods that were made and could not be deleted
}

func newCluster(p Program, flags *pflag.FlagSet) *cluster {
	c := &cluster{Program: p, kube: genericclioptions.NewConfigFlags(true)}
	c.kube.AddFlags(flags)
	flags.StringVar(&c.agentSelector, "agent-selector", c.Identity.AgentSelector, "labels of the agents' pods, by which their DaemonSet is found")
	flags.StringVar(&c.agentNamespace, "agent-namespace", "", "the installation's namespace (default: that of the ClusterRoleBinding "+c.Identity.PluginAccount+", or else "+c.Identity.Namespace+")")
	flags.DurationVar(&c.agentTimeout, "agent-timeout", patience, "how long one agent may take for an answer")
	return c
}

// run makes a command of a function, which gets a connection. A pod that is left behind makes it fail, whatever else it has to say.
func (c *cluster) run(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := c.open(); err != nil {
			return err
		}
		err := do(cmd.Context(), args)
		var exit cli.Exit
		if c.left != nil && errors.As(err, &exit) {
			err = nil // the program fails by what is left
		}
		return errors.Join(err, c.left)
	}
}

// query is [cluster.run] of a command with an answer: one that is interrupted has none.
func (c *cluster) query(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return c.run(func(ctx context.Context, args []string) error {
		err := do(ctx, args)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return err
	})
}

// leave notes a pod that could not be deleted.
func (c *cluster) leave(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = errors.Join(c.left, err)
}

// print writes an answer as JSON, or by its own function.
func (c *cluster) print(output string, answer any, text func(*visible.Printer) error) error {
	if output == "json" {
		return printers.JSON(c.Stdout, answer)
	}
	return text(visible.To(c.Stdout))
}

// open connects.
func (c *cluster) open() error {
	config, client, err := c.connect(c.kube)
	if err != nil {
		return err
	}
	c.client, c.agents = client, c.ask(config)
	return nil
}

// namespace is the one that --namespace or the kubeconfig says.
func (c *cluster) namespace() (string, error) {
	ns, _, err := c.kube.ToRawKubeConfigLoader().Namespace()
	return ns, err
}

// list calls each with the objects of a list. It has two pages of them at most.
func list[L, T runtime.Object](ctx context.Context, get func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions, each func(T)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nextPage(ctx, get, o) })
	pages.PageSize, pages.PageBufferSize = pageSize, 0
	return pages.EachListItem(ctx, o, func(object runtime.Object) error {
		each(object.(T))
		return nil
	})
}

// nextPage gets a page of a list. The API server forgets after a few minutes how a list was, and what is done with the pages may take
// longer; then the rest is that of the list as it is now.
func nextPage[L any](ctx context.Context, get func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions) (L, error) {
	page, err := get(ctx, o)
	var refused apierrors.APIStatus
	if o.Continue == "" || !apierrors.IsResourceExpired(err) || !errors.As(err, &refused) || refused.Status().Continue == "" {
		return page, err
	}
	o.Continue = refused.Status().Continue
	return get(ctx, o)
}

// agent holds the parts of an agent's pod that are needed to ask it.
type agent struct {
	Namespace, Name, Node string
	Port                  int32
	// Trouble is the reason that it cannot be asked. Empty: it can.
	Trouble string
	started time.Time
	// template is its DaemonSet's pod template, and program the command of the agent's container there. What is made after the
	// agent is made from these, never from the pod.
	template *corev1.PodSpec
	program  image
	// account is its service account, and mounts are its container's.
	account string
	mounts  []mounted
}

// agentOf returns the agent that runs in a pod of a DaemonSet. Its port is that of its readiness.
func agentOf(pod *corev1.Pod, set *appsv1.DaemonSet) agent {
	a := agent{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, started: pod.CreationTimestamp.Time, account: accountOf(pod), template: &set.Spec.Template.Spec}
	if c := probed(&pod.Spec); c != nil {
		a.Port, a.mounts = portOf(c, c.ReadinessProbe.HTTPGet), mountsOf(&pod.Spec, c)
	}
	c := agentContainer(a.template)
	a.program = image{c.Image, c.Command}
	switch {
	case pod.Status.Phase != corev1.PodRunning:
		a.Trouble = "its pod is " + cmp.Or(string(pod.Status.Phase), "new") + waiting(pod)
	case pod.DeletionTimestamp != nil:
		a.Trouble = "its pod is ending"
	case a.Port == 0:
		a.Trouble = "its pod has no readiness probe by HTTP, so its port is not known"
	case waiting(pod) != "":
		a.Trouble = "its container does not run" + waiting(pod)
	}
	return a
}

// probed is the container of an agent's pod that has the agent: the one whose readiness is asked by HTTP. Nil: none is.
func probed(pod *corev1.PodSpec) *corev1.Container {
	for i := range pod.Containers {
		if probe := pod.Containers[i].ReadinessProbe; probe != nil && probe.HTTPGet != nil {
			return &pod.Containers[i]
		}
	}
	return nil
}

func portOf(c *corev1.Container, get *corev1.HTTPGetAction) int32 {
	if n := get.Port.IntVal; n != 0 {
		return n
	}
	for _, p := range c.Ports {
		if p.Name == get.Port.StrVal {
			return p.ContainerPort
		}
	}
	return 0
}

// waiting gives the reason that a container of the pod waits, such as ": CrashLoopBackOff".
func waiting(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			return ": " + w.Reason
		}
	}
	return ""
}

// agentsByNode returns the agent to ask about each node that has one, or about one node: an empty name is all nodes. Agents are the pods that the DaemonSet controls by its
// UID, in its own namespace: labels, names and owner references of other namespaces' pods are whatever their authors like.
func (c *cluster) agentsByNode(ctx context.Context, node string) (map[string]agent, error) {
	agents := map[string]agent{}
	set, err := c.daemonSet(ctx)
	if err != nil || set == nil {
		return agents, err
	}
	pods, err := c.podsOf(ctx, set, node)
	if err != nil {
		return nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	for i := range pods {
		a := agentOf(&pods[i], set)
		if old, ok := agents[a.Node]; !ok || better(a, old) {
			agents[a.Node] = a
		}
	}
	return agents, nil
}

// better reports whether a rather than b is to be asked about their node: one that can be, and the newer one during an upgrade.
func better(a, b agent) bool {
	if (a.Trouble == "") != (b.Trouble == "") {
		return a.Trouble == ""
	}
	return a.started.After(b.started)
}

// agentOn returns the agent to ask about a node. errors.Is(err, live.ErrNoAgent) if it has none.
func (c *cluster) agentOn(ctx context.Context, node string) (agent, error) {
	agents, err := c.agentsByNode(ctx, node)
	a, ok := agents[node]
	if err == nil && !ok {
		err = fmt.Errorf("node %s: %w (looked for the pods of a DaemonSet of pods with the labels %s)", node, live.ErrNoAgent, c.agentSelector)
	}
	return a, err
}

// get asks an agent.
func (c *cluster) get(ctx context.Context, a agent, path string, into any) error {
	if a.Trouble != "" {
		return fmt.Errorf("agent %s/%s cannot be asked: %s", a.Namespace, a.Name, a.Trouble)
	}
	return c.askPort(ctx, a, "agent "+a.Namespace+"/"+a.Name, path, into)
}

// askPort asks a program on the loopback interface of a pod. The error begins with who was asked.
func (c *cluster) askPort(ctx context.Context, a agent, who, path string, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.agentTimeout, fmt.Errorf("no answer within %s", c.agentTimeout))
	defer cancel()
	err := c.agents.get(ctx, a, path, into)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("ask %s: %w", who, err)
	}
	return nil
}

// node asks an agent how its node is.
func (c *cluster) node(ctx context.Context, a agent) (n agentapi.Node, err error) {
	err = c.get(ctx, a, agentapi.NodePath, &n)
	return n, err
}
