// Package kubectl is what the kubectl plugin lends to commands of other modules, such as kubectl-meshcni-migrate's.
package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// The labels of the pods that commands make, after the product's prefix.
const (
	JobLabel  = "node-job"
	TestLabel = "test"
)

// EnterHint follows what is said of rules that could not be read.
const EnterHint = "--enter reads them, by a short-lived pod on the node"

// Cluster is a cluster with its agents, as the flags of the command line say. The functions need a Client, which there is within Run.
type Cluster struct {
	Identity       meshcni.Identity
	Dialects       []dialect.Dialect
	Facts          mesh.List
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Client         kubernetes.Interface

	// Run connects, and does what a command is for. A pod that is left behind makes it fail, whatever else it has to say.
	Run func(ctx context.Context, do func(context.Context) error) error
	// Usage marks an error as a mistake on the command line. Exit ends the program with a code, and prints nothing.
	Usage func(error) error
	Exit  func(code int) error
	// Choice is the value of a flag that is one of the words; the first is the default.
	Choice func(to *string, words ...string) Flag
	// Print writes an answer as JSON, or by its own function.
	Print func(output string, answer any, text func(*visible.Printer) error) error
	// Progress tells what is looked at. Leave notes what could not be deleted.
	Progress func(format string, args ...any)
	Leave    func(error)
	// Uninterrupted makes a context for a request that the first interrupt does not end.
	Uninterrupted func(context.Context) (context.Context, context.CancelFunc)

	// Nodes are the names of those that an agent could be on. EachNode asks their agents, one call after the other.
	Nodes      func(context.Context) ([]string, error)
	EachNode   func(ctx context.Context, each func(agents.Agent, agentapi.Node, error)) error
	Namespaces func(context.Context) (map[string]*corev1.Namespace, error)
	// DaemonSets are the agents'. Pods are those of a DaemonSet on a node. AgentOn errors: [agents.ErrNoAgent].
	DaemonSets func(context.Context) ([]*appsv1.DaemonSet, error)
	Pods       func(ctx context.Context, ds *appsv1.DaemonSet, node string) ([]corev1.Pod, error)
	AgentOn    func(ctx context.Context, node string) (agents.Agent, error)
	// Ask asks an agent; nil, before Run: by the port-forward protocol. Node and Pod ask how a node is, and what is on it of a pod.
	Ask  func(ctx context.Context, a agents.Agent, path string, into any) error
	Node func(context.Context, agents.Agent) (agentapi.Node, error)
	Pod  func(context.Context, agents.Agent, *corev1.Pod) (agentapi.Pod, error)
	// Look reads the rules of a node's pods by a pod on it, and returns what it has found by the UIDs that the runtime knows the pods by.
	Look func(ctx context.Context, node, what, image string, uids []string) (map[string]agentapi.Pod, error)
	// Job runs a job, and returns what it has printed.
	Job func(context.Context, Job) ([]byte, error)
	// Test tries connections between throw-away pods of a node.
	Test func(ctx context.Context, node, image string, timeout time.Duration) (Test, error)
	// Faults are those of a node, pods apart. Configured is what the plugin's entry on the node decides.
	Faults     func(node string, said agentapi.Node) (errs []error, warnings []string)
	Configured func(entry []byte, node string) (dialect.Set, error)
	// HostDir is the host's path of a directory of an agent.
	HostDir func(agent *corev1.PodSpec, dir string) string
}

// Flag is pflag's Value.
type Flag interface {
	String() string
	Set(string) error
	Type() string
}

// Test holds the results of connections between throw-away pods.
type Test struct {
	Print func(*visible.Printer) error
	// Failed: a connection went where it should not. Unsure: not every one could be tried.
	Failed, Unsure bool
	// Left is still there and was not to be.
	Left []string
}

// Job is a command of the agent's image that a short-lived pod runs on one node.
type Job struct {
	Node string
	// What is said to the user of the pod's purpose, such as "to read the live rules of pod shop/cart".
	What string
	// Args are the command and its flags. What the command writes to standard output is the answer. It writes to standard error
	// only if it fails, because a pod's log does not tell them apart. Nothing of Args is secret: whoever may read pods sees it.
	Args []string
	// Mounts are the host's directories that it needs. RunDirAt is where it has the agent's run directory too, to read; on a node
	// without an agent there is none. Empty: it needs none.
	Mounts   []HostDir
	RunDirAt string
	// Enters: it enters other pods' network namespaces. Then the pod sees the host's processes, and has the capabilities of an
	// agent that verifies rules.
	Enters bool
	// Image is another image with the same entry point. Empty: that of the agent's pod on the node.
	Image string
	// Timeout bounds all but the deletion. Zero is two minutes.
	Timeout time.Duration
}

// HostDir is a directory of the host, which is there.
type HostDir struct {
	Path string
	// At is its path in the pod. Empty: at Path.
	At string
	// Writable: the pod may write to it.
	Writable bool
}

// RuntimeUID is the UID by which the runtime knows a pod, if what the pod says of itself is true: see [Theirs].
func RuntimeUID(pod *corev1.Pod) string { return string(cmp.Or(podid.Mirrored(pod), pod.UID)) }

// Theirs returns an error if the agent tells of another pod: one that says that it mirrors a static pod need not.
func Theirs(pod *corev1.Pod, told agentapi.Pod) error {
	is := func(namespace, name, uid string) bool { return podid.Is(pod, namespace, name, uid) }
	other := told.State != nil && !is(told.State.Namespace, told.State.Name, told.State.UID) ||
		slices.ContainsFunc(told.Records, func(r attachment.Record) bool { return !is(r.Pod.Namespace, r.Pod.Name, r.Pod.UID) })
	if podid.Mirrored(pod) == "" || !other {
		return nil
	}
	return fmt.Errorf("pod %s/%s says that it mirrors the static pod with UID %s, which is another pod on the node", pod.Namespace, pod.Name, RuntimeUID(pod))
}

// HasNetwork reports whether a pod has, or is to have, a network of its own, and is not about to end.
func HasNetwork(pod *corev1.Pod) bool {
	return !pod.Spec.HostNetwork && pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// Many is a number with the words for one or for several.
func Many(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + several
}

// AndMore lists names, and says how many more there are of count.
func AndMore(names []string, count int) string {
	text := strings.Join(names, ", ")
	if n := count - len(names); n > 0 {
		text += " and " + strconv.Itoa(n) + " more"
	}
	return text
}

// Wait waits. If ctx ends first, it returns the cause.
func Wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
