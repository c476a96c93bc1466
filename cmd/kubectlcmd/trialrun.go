package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/meshcni/meshcni/cmd/internal/netprobe"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

const (
	// trialsAtOnce bounds how many nodes start pods at a time.
	trialsAtOnce = 10
	// keptFor is the lifetime of pods that are kept. Others end with the test's time, should nobody delete them.
	keptFor = time.Hour
)

// trial is one run of the test.
type trial struct {
	*cluster
	o   trialOptions
	run trialRun
	// own: the namespace may be there, and is ours. uid is then its, if that is known.
	own bool
	uid types.UID
}

func newTrial(c *cluster, o trialOptions) *trial {
	name := c.Identity.Program("test-") + rand.String(8)
	t := &trial{cluster: c, o: o, run: trialRun{label: c.Identity.Key(kubectl.TestLabel), name: name, namespace: cmp.Or(o.namespace, name), lifetime: max(o.timeout+time.Minute, time.Minute)}}
	if o.keep {
		t.run.lifetime = keptFor
	}
	return t
}

// prepare makes the namespace.
func (t *trial) prepare(ctx context.Context) error {
	if t.o.namespace != "" {
		_, err := t.client.CoreV1().Namespaces().Get(ctx, t.o.namespace, metav1.GetOptions{})
		if apierrors.IsForbidden(err) {
			err = nil // the pods will show whether it is there
		}
		return err
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	t.say("testing in namespace %s", t.run.namespace)
	t.own = true // even if the answer gets lost
	ctx, stop := uninterrupted(ctx)
	defer stop()
	made, err := t.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: t.run.namespace, Labels: map[string]string{t.run.label: t.run.name, "pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.own = !apierrors.IsAlreadyExists(err)
		return fmt.Errorf("make namespace %s: %w", t.run.namespace, err)
	}
	t.uid = made.UID
	return nil
}

// clean deletes what the run has made, and names what it could not delete, with the command that does. A second interrupt ends it.
func (t *trial) clean(ctx context.Context) (left []string) {
	selector := t.run.label + "=" + t.run.name
	if t.o.keep {
		t.say("the pods are kept: kubectl get pods -n %s -l %s", t.run.namespace, selector)
		return nil
	}
	ctx, stop := uninterrupted(ctx)
	defer stop()
	var err error
	what, command := "namespace "+t.run.namespace, "deletes it: kubectl delete namespace "+t.run.namespace
	switch {
	case t.o.namespace != "":
		what = fmt.Sprintf("pods of namespace %s with the label %s", t.run.namespace, selector)
		command = fmt.Sprintf("deletes them: kubectl delete pods --namespace %s --selector %s", t.run.namespace, selector)
		err = t.client.CoreV1().Pods(t.run.namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{LabelSelector: selector})
	case t.own:
		o := metav1.DeleteOptions{}
		if t.uid != "" {
			o.Preconditions = &metav1.Preconditions{UID: &t.uid}
		}
		err = t.client.CoreV1().Namespaces().Delete(ctx, t.run.namespace, o)
	}
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return []string{fmt.Sprintf("%s: %v; this %s", what, err, command)}
}

// testNode is a node with the pods that run there.
type testNode struct {
	name string
	// peer is outside the mesh; nil: it does not run.
	peer *corev1.Pod
	// dialects are those of the node's plugin, and pods what runs of them.
	dialects []string
	pods     map[string]*corev1.Pod
}

// all tries the nodes, and then what is between them.
func (t *trial) all(ctx context.Context, names []string, agents map[string]agents.Agent) (rows []trialRow) {
	nodes := make([]testNode, len(names))
	byNode := each(trialsAtOnce, names, func(i int, node string) (rows []trialRow) {
		a, ok := agents[node]
		if !ok {
			return []trialRow{{Node: node, What: "agent", Result: resultFailed, Detail: agentapi.ErrNoAgent.Error()}}
		}
		rows, nodes[i] = t.node(ctx, i, a)
		t.say("tested node %s", node)
		return rows
	})
	return slices.Concat([]trialRow{}, slices.Concat(byNode...), t.between(ctx, nodes))
}

// node tries all meshes of one node, and returns what runs there then.
func (t *trial) node(ctx context.Context, number int, a agents.Agent) (rows []trialRow, on testNode) {
	n, err := t.cluster.node(ctx, a)
	if err != nil {
		return []trialRow{{Node: a.Node, What: "agent", Result: resultUnknown, Detail: err.Error()}}, on
	}
	from := programOf(a)
	if t.o.image != "" {
		from = image{name: t.o.image}
	}
	name := func(what string) string { return what + "-" + strconv.Itoa(number) }
	peer, err := t.start(ctx, t.run.pod(name("peer"), a.Node, from))
	if err != nil {
		return []trialRow{{Node: a.Node, What: "pod outside the mesh starts", Result: resultFailed, Detail: err.Error()}}, on
	}
	on = testNode{a.Node, peer, n.Dialects, map[string]*corev1.Pod{}}
	pods := make([]*corev1.Pod, len(n.Dialects))
	byDialect := each(len(n.Dialects)+1, n.Dialects, func(i int, dialect string) (rows []trialRow) {
		rows, pods[i] = t.dialect(ctx, n, a, dialect, name(dialect), from, peer)
		return rows
	})
	for i, dialect := range n.Dialects {
		on.pods[dialect] = pods[i]
	}
	return slices.Concat(byDialect...), on
}

// dialect tries a pod of one mesh, and returns it if it runs.
func (t *trial) dialect(ctx context.Context, n agentapi.Node, a agents.Agent, dialect, name string, from image, peer *corev1.Pod) (rows []trialRow, pod *corev1.Pod) {
	row := trialRow{Node: a.Node, Dialect: dialect, What: "pod starts"}
	as, err := t.fakeSidecar(dialect)
	if text := noProxy(n); err == nil && as.proxy == "" && text != "" {
		err = errors.New(text)
	}
	row.Result = resultUnknown
	if err == nil {
		row.Result = resultFailed
		pod, err = t.start(ctx, t.run.meshed(name, a.Node, from, as))
	}
	if err != nil {
		row.Detail = err.Error()
		return []trialRow{row}, nil
	}
	if as.proxy == "" {
		row.What = "captured"
		row.Result, row.Detail = t.captured(ctx, a, pod)
		rows = append(rows, row)
	}
	return append(rows, t.connectAll(ctx, trialRow{Node: a.Node, Dialect: dialect}, pod, peer, func(family corev1.IPFamily) []connection {
		return append(as.outbound(pod, peer, false, family), as.inbound(pod, peer, family)...)
	})...), pod
}

// codeNoProxy is the news that the node's proxy takes no pods.
const codeNoProxy status.Code = "no-proxy"

// noProxy says that a node has no proxy for its ambient pods, if that is so. Pods of the mesh do not start without one.
func noProxy(n agentapi.Node) string {
	for _, said := range n.News {
		if said.Code == codeNoProxy {
			return "the node's proxy is not connected, so no pod of this mesh can be tried: " + said.String()
		}
	}
	return ""
}

// captured asks the agent whether it has captured a pod.
func (t *trial) captured(ctx context.Context, a agents.Agent, pod *corev1.Pod) (result, detail string) {
	var p agentapi.Pod
	switch err := t.get(ctx, a, agentapi.PodPath+string(pod.UID), &p); {
	case err != nil:
		return resultUnknown, err.Error()
	case p.State == nil:
		return resultFailed, "the agent does not count the pod among those of the mesh"
	case p.State.State != status.StateCaptured:
		return resultFailed, string(p.State.State) + ": " + string(p.State.Reason) + ": " + cmp.Or(p.State.Detail, "no detail")
	}
	return resultOK, ""
}

// between tries connections from each node's pods of the meshes to a pod outside, and to one of the same mesh, of the next node in a ring
// that has such a pod. So each node is one end and the other, and the work grows with the nodes instead of their pairs. A pod that does not
// run has a row already.
func (t *trial) between(ctx context.Context, nodes []testNode) []trialRow {
	nodes = slices.DeleteFunc(nodes, func(n testNode) bool { return n.peer == nil })
	if len(nodes) < 2 {
		return nil
	}
	t.say("testing between %d nodes", len(nodes))
	return slices.Concat(each(trialsAtOnce, nodes, func(i int, n testNode) (rows []trialRow) {
		for _, dialect := range n.dialects {
			pod := n.pods[dialect]
			as, err := t.fakeSidecar(dialect)
			if pod == nil || err != nil {
				continue
			}
			for _, inMesh := range []bool{false, true} {
				for _, other := range slices.Concat(nodes[i+1:], nodes[:i]) {
					to := other.peer
					if inMesh {
						to = other.pods[dialect]
					}
					if to == nil {
						continue
					}
					rows = append(rows, t.connectAll(ctx, trialRow{Node: n.name, From: n.name, To: other.name, Dialect: dialect}, pod, to, func(family corev1.IPFamily) []connection {
						return as.outbound(pod, to, inMesh, family)
					})...)
					break
				}
			}
		}
		return rows
	})...)
}

// connectAll makes the connections of each family that both pods have an address of. Each has a row like the one that is given.
func (t *trial) connectAll(ctx context.Context, like trialRow, a, b *corev1.Pod, tries func(corev1.IPFamily) []connection) (rows []trialRow) {
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		if !address(a, family).IsValid() || !address(b, family).IsValid() {
			continue
		}
		all := tries(family)
		rows = append(rows, each(len(all), all, func(_ int, try connection) trialRow {
			row := like
			row.Family, row.What = string(family), try.what
			row.Result, row.Detail = t.connect(ctx, try)
			return row
		})...)
	}
	return rows
}

// connect makes a connection and says whether it went where it had to.
func (t *trial) connect(ctx context.Context, try connection) (result, detail string) {
	var d netprobe.Dialed
	if err := t.ask(ctx, try.from, try.container, netprobe.DialPath+"?to="+url.QueryEscape(try.to.String()), &d); err != nil {
		return resultUnknown, err.Error()
	}
	return try.judge(d)
}

// ask asks a container of the test over its loopback interface.
func (t *trial) ask(ctx context.Context, pod *corev1.Pod, container, path string, into any) error {
	return t.askPort(ctx, agents.Agent{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Port: control(container)}, "container "+container+" of pod "+pod.Name, path, into)
}

// start makes a pod and waits until all of its containers answer. The error says what is known of why they do not.
func (t *trial) start(ctx context.Context, want *corev1.Pod) (*corev1.Pod, error) {
	pod, err := t.make(ctx, want)
	if err != nil {
		return nil, err
	}
	pod, err = t.await(ctx, pod, "it does not run", func(now *corev1.Pod) (bool, error) {
		if now.Status.Phase != corev1.PodRunning || len(now.Status.PodIPs) == 0 {
			return false, nil
		}
		for i := range now.Spec.Containers {
			var nothing struct{}
			if err := t.ask(ctx, now, now.Spec.Containers[i].Name, netprobe.ReadyPath, &nothing); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s: %w", want.Namespace, want.Name, err)
	}
	return pod, nil
}

// make creates a pod. In a new namespace that takes until the cluster has made its service account.
func (t *trial) make(ctx context.Context, want *corev1.Pod) (*corev1.Pod, error) {
	for {
		pod, err := t.create(ctx, want)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "serviceaccount") || t.o.namespace != "" {
			return pod, err
		}
		if waited := kubectl.Wait(ctx, askEvery); waited != nil {
			return nil, errors.Join(waited, err)
		}
	}
}

// say tells of progress.
func (t *trial) say(format string, a ...any) {
	visible.To(t.Stderr).Printf(format+"\n", a...)
}
