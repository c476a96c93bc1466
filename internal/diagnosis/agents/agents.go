// Package agents finds the agents of a cluster: whose pods they are, by which port each is asked, and why one cannot be. It goes by what
// no tenant can write. "kubectl meshcni" asks by it, and so may a controller of your own; package agentapi has the answers.
package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/meshcni/meshcni"
)

// Finder finds the agents of a cluster's installations with the rights of its client: to list DaemonSets and pods, and unless Namespace is set
// to list ClusterRoleBindings, or to get the plugin's for the first installation alone. It may be used by several goroutines.
type Finder struct {
	Client kubernetes.Interface
	// Identity is that of the product whose agents they are.
	Identity meshcni.Identity
	// Selector has the labels of the agents' pods. Empty: Identity's.
	Selector string
	// Namespace is that of one installation. Empty: those that ClusterRoleBindings name, or else Identity's.
	Namespace string

	mu    sync.Mutex
	known bool
	sets  []*appsv1.DaemonSet
	alone bool // the ClusterRoleBindings of further installations may not be listed
}

func (f *Finder) selector() string {
	return cmp.Or(f.Selector, f.Identity.WithDefaults().AgentSelector)
}

// Agent is the agent of a node. What is made after an agent is made from its DaemonSet's template, never from its pod.
type Agent struct {
	Namespace, Name, Node string
	// Port, on the loopback interface of its network namespace, is that of its health. 0: not known.
	Port int32
	// Trouble is the reason that it cannot be asked. Empty: it can.
	Trouble   string
	Pod       *corev1.Pod
	DaemonSet *appsv1.DaemonSet
}

// Template is the pod as the DaemonSet makes it.
func (a Agent) Template() *corev1.PodSpec { return &a.DaemonSet.Spec.Template.Spec }

// agentOf returns the agent that runs in a pod of a DaemonSet. An agent that has started has its port until it ends: the kubelet says
// whether it has, by a socket of the pod's own. Before, somebody else may answer there.
func agentOf(pod *corev1.Pod, set *appsv1.DaemonSet) Agent {
	a := Agent{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Pod: pod, DaemonSet: set}
	if c := Probed(&pod.Spec); c != nil {
		a.Port = portOf(c)
	}
	switch {
	case pod.Status.Phase != corev1.PodRunning:
		a.Trouble = "its pod is " + cmp.Or(string(pod.Status.Phase), "new") + Waiting(pod)
	case pod.DeletionTimestamp != nil:
		a.Trouble = "its pod is ending"
	case a.Port == 0:
		a.Trouble = "its pod has neither a readiness probe by HTTP nor a --health-address, so its port is not known"
	case Waiting(pod) != "":
		a.Trouble = "its container does not run" + Waiting(pod)
	case !started(pod):
		a.Trouble = "it has not started, so who answers at its port may be another program; its pod's events say why"
	}
	return a
}

// started reports whether the kubelet says that the agent has.
func started(pod *corev1.Pod) bool {
	c := Probed(&pod.Spec)
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == c.Name && (s.State.Running == nil && s.State.Terminated != nil || s.Started != nil && !*s.Started)
	})
}

// Probed is the container of an agent's pod that has the agent: the one whose readiness is asked by HTTP, or at the agent's socket. Nil:
// none is.
func Probed(pod *corev1.PodSpec) *corev1.Container {
	for i := range pod.Containers {
		probe := pod.Containers[i].ReadinessProbe
		if probe != nil && (probe.HTTPGet != nil || probe.Exec != nil && flag(probe.Exec.Command, "--start-socket") != "") {
			return &pod.Containers[i]
		}
	}
	return nil
}

// flag returns a flag's value: --name=value or --name value.
func flag(args []string, name string) string {
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, name+"="); ok {
			return value
		}
		if arg == name && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

func portOf(c *corev1.Container) int32 {
	get := c.ReadinessProbe.HTTPGet
	if get == nil {
		_, port, _ := net.SplitHostPort(flag(slices.Concat(c.Command, c.Args), "--health-address"))
		n, _ := strconv.ParseUint(port, 10, 16) // 0, if it is none
		return int32(n)
	}
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

// Waiting gives the reason that a container of the pod waits, such as ": CrashLoopBackOff".
func Waiting(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
			return ": " + w.Reason
		}
	}
	return ""
}

// ByNode returns the agent to ask about each node that has one, or about one node: an empty name is all nodes. One of a node that two
// installations claim cannot be asked. Agents are the pods that a DaemonSet controls by its UID, in its own namespace: labels, names and owner references of other namespaces' pods are whatever
// their authors like.
func (f *Finder) ByNode(ctx context.Context, node string) (map[string]Agent, error) {
	agents := map[string]Agent{}
	sets, err := f.DaemonSets(ctx)
	if err != nil {
		return agents, err
	}
	claims := map[string][]*appsv1.DaemonSet{}
	for _, set := range sets {
		pods, err := f.Pods(ctx, set, node)
		if err != nil {
			return nil, fmt.Errorf("list the agents' pods: %w", err)
		}
		for i := range pods {
			a := agentOf(&pods[i], set)
			if old, ok := agents[a.Node]; !ok || better(a, old) {
				agents[a.Node] = a
			}
			if pods[i].DeletionTimestamp == nil && !slices.Contains(claims[a.Node], set) {
				claims[a.Node] = append(claims[a.Node], set)
			}
		}
	}
	for name, by := range claims {
		if len(by) > 1 {
			a := agents[name]
			a.Trouble = "two installations claim the node, by " + namesOf(by) + ": keep one off it; until then its namespace chooses one"
			agents[name] = a
		}
	}
	return agents, nil
}

// better reports whether a rather than b is to be asked about their node: one that can be, and the newer one during an upgrade.
func better(a, b Agent) bool {
	if (a.Trouble == "") != (b.Trouble == "") {
		return a.Trouble == ""
	}
	return a.Pod.CreationTimestamp.After(b.Pod.CreationTimestamp.Time)
}

// The reasons that a node has no agent to ask.
var (
	ErrNoAgent = errors.New("no agent runs there")
	// ErrNoAgents: no other node has one either. It is an ErrNoAgent as well.
	ErrNoAgents = fmt.Errorf("%w, nor on any other node", ErrNoAgent)
)

// On returns the agent to ask about a node. errors.Is(err, ErrNoAgent) if it has none.
func (f *Finder) On(ctx context.Context, node string) (Agent, error) {
	agents, err := f.ByNode(ctx, node)
	a, ok := agents[node]
	if err == nil && !ok {
		err = fmt.Errorf("node %s: %w (looked for the pods of a DaemonSet of pods with the labels %s)", node, ErrNoAgent, f.selector())
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.alone {
			err = fmt.Errorf("%w; you may not list ClusterRoleBindings, so whether a further installation has the node is not known", err)
		}
	}
	return a, err
}
