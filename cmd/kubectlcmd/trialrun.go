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
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/meshcni/meshcni/cmd/internal/standin"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

const (
	// trialsAtOnce bounds how many nodes start pods at a time.
	trialsAtOnce = 10
	// askEvery is the interval of questions to the API server about a pod that starts.
	askEvery = 300 * time.Millisecond
	// oneWrite bounds a request that must not be given up halfway, since nobody would know then what it has made.
	oneWrite = 10 * time.Second
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
	name := "meshcni-test-" + rand.String(8)
	t := &trial{cluster: c, o: o, run: trialRun{name: name, namespace: cmp.Or(o.namespace, name), lifetime: max(o.timeout+time.Minute, time.Minute)}}
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
	visible.To(t.Stderr).Printf("testing in namespace %s\n", t.run.namespace)
	t.own = true // even if the answer gets lost
	ctx, stop := written(ctx)
	defer stop()
	made, err := t.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: t.run.namespace, Labels: map[string]string{trialLabel: t.run.name, "pod-security.kubernetes.io/enforce": "restricted"},
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
	if t.o.keep {
		visible.To(t.Stderr).Printf("the pods are kept: kubectl get pods -n %s -l %s=%s\n", t.run.namespace, trialLabel, t.run.name)
		return nil
	}
	ctx, stop := written(ctx)
	defer stop()
	why := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if t.o.namespace != "" {
		selector := trialLabel + "=" + t.run.name
		now := int64(0)
		if err := t.client.CoreV1().Pods(t.run.namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{LabelSelector: selector}); err != nil {
			left = append(left, fmt.Sprintf("pods of namespace %[1]s with the label %[2]s: %[3]v; this deletes them: kubectl delete pods --namespace %[1]s --selector %[2]s", t.run.namespace, selector, why(err)))
		}
		return left
	}
	if !t.own {
		return nil
	}
	o := metav1.DeleteOptions{}
	if t.uid != "" {
		o.Preconditions = &metav1.Preconditions{UID: &t.uid}
	}
	if err := t.client.CoreV1().Namespaces().Delete(ctx, t.run.namespace, o); err != nil && !apierrors.IsNotFound(err) {
		left = append(left, fmt.Sprintf("namespace %[1]s: %[2]v; this deletes it: kubectl delete namespace %[1]s", t.run.namespace, why(err)))
	}
	return left
}

// all tries the nodes, and then what is between them.
func (t *trial) all(ctx context.Context, nodes []string, agents map[string]agent) (rows []trialRow) {
	var running errgroup.Group
	running.SetLimit(trialsAtOnce)
	byNode, sites := make([][]trialRow, len(nodes)), make([]site, len(nodes))
	for i, node := range nodes {
		running.Go(func() error {
			a, ok := agents[node]
			if !ok {
				byNode[i] = []trialRow{{Node: node, What: "agent", Result: resultFailed, Detail: errNoAgent.Error()}}
				return nil
			}
			byNode[i], sites[i] = t.node(ctx, i, a)
			t.say("tested node %s", node)
			return nil
		})
	}
	_ = running.Wait() // none returns an error
	return slices.Concat([]trialRow{}, slices.Concat(byNode...), t.between(ctx, sites))
}

// node tries all meshes of one node, and returns what runs there then.
func (t *trial) node(ctx context.Context, number int, a agent) (rows []trialRow, s site) {
	s.node = a.Node
	n, err := t.cluster.node(ctx, a)
	if err != nil {
		return []trialRow{{Node: a.Node, What: "agent", Result: resultUnknown, Detail: err.Error()}}, s
	}
	from := a.program
	if t.o.image != "" {
		from = image{name: t.o.image}
	}
	name := func(what string) string { return what + "-" + strconv.Itoa(number) }
	s.peer, err = t.start(ctx, t.run.pod(name("peer"), a.Node, from))
	if err != nil {
		return []trialRow{{Node: a.Node, What: "pod outside the mesh starts", Result: resultFailed, Detail: err.Error()}}, s
	}
	s.dialects, s.pods = n.Dialects, make([]*corev1.Pod, len(n.Dialects))
	byDialect := make([][]trialRow, len(n.Dialects))
	var all sync.WaitGroup
	for i, dialect := range n.Dialects {
		all.Go(func() { byDialect[i], s.pods[i] = t.dialect(ctx, n, a, dialect, name(dialect), from, s.peer) })
	}
	all.Wait()
	return slices.Concat(byDialect...), s
}

// dialect tries a pod of one mesh, and returns it if it runs.
func (t *trial) dialect(ctx context.Context, n agentapi.Node, a agent, dialect, name string, from image, peer *corev1.Pod) (rows []trialRow, pod *corev1.Pod) {
	row := func(what, result, detail string) {
		rows = append(rows, trialRow{Node: a.Node, Dialect: dialect, What: what, Result: result, Detail: detail})
	}
	as, err := t.standIn(dialect)
	if text := noProxy(n); err == nil && as.proxy == "" && text != "" {
		err = errors.New(text)
	}
	if err != nil {
		row("pod starts", resultUnknown, err.Error())
		return rows, nil
	}
	pod, err = t.start(ctx, t.run.meshed(name, a.Node, from, as))
	if err != nil {
		row("pod starts", resultFailed, err.Error())
		return rows, nil
	}
	if as.proxy == "" {
		row(t.captured(ctx, a, pod))
	}
	for _, family := range families(peer, pod) {
		tries := passages(peer, pod, family)
		if as.proxy != "" {
			tries = attempts(peer, pod, as, family)
		}
		rows = append(rows, t.connectAll(ctx, trialRow{Node: a.Node, Dialect: dialect, Family: string(family)}, tries)...)
	}
	return rows, pod
}

// noProxy says that a node has no proxy for its ambient pods, if that is so. Pods of the mesh do not start without one.
func noProxy(n agentapi.Node) string {
	for _, text := range slices.Concat(n.Warnings, n.NotReady) {
		if strings.HasPrefix(text, "no-proxy: ") {
			return "the node's proxy is not connected, so no pod of this mesh can be tried: " + text
		}
	}
	return ""
}

// captured asks the agent whether it has captured a pod.
func (t *trial) captured(ctx context.Context, a agent, pod *corev1.Pod) (what, result, detail string) {
	what = "captured"
	var p agentapi.Pod
	switch err := t.get(ctx, a, agentapi.PodPath+string(pod.UID), &p); {
	case err != nil:
		return what, resultUnknown, err.Error()
	case p.State == nil:
		return what, resultFailed, "the agent does not count the pod among those of the mesh"
	case p.State.State != status.StateCaptured:
		return what, resultFailed, string(p.State.State) + ": " + string(p.State.Reason) + ": " + cmp.Or(p.State.Detail, "no detail")
	}
	return what, resultOK, ""
}

// connect makes a connection and says whether it went where it had to.
func (t *trial) connect(ctx context.Context, try attempt) (result, detail string) {
	var d standin.Dialed
	if err := t.ask(ctx, try.from, try.container, standin.DialPath+"?to="+url.QueryEscape(try.to.String()), &d); err != nil {
		return resultUnknown, err.Error()
	}
	return try.judge(d)
}

// ask asks a container of the test over its loopback interface.
func (t *trial) ask(ctx context.Context, pod *corev1.Pod, container, path string, into any) error {
	ctx, stop := context.WithTimeoutCause(ctx, t.agentTimeout, fmt.Errorf("no answer within %s", t.agentTimeout))
	defer stop()
	err := t.agents.get(ctx, agent{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Port: control(container)}, path, into)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("ask container %s of pod %s: %w", container, pod.Name, err)
	}
	return nil
}

// start makes a pod and waits until all of its containers answer. The error says what is known of why they do not.
func (t *trial) start(ctx context.Context, want *corev1.Pod) (*corev1.Pod, error) {
	pod, err := t.make(ctx, want)
	if err != nil {
		return nil, err
	}
	var last error
	for {
		now, err := t.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			last = err
		case now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded:
			return nil, t.why(ctx, now, errors.New("it has ended"))
		default:
			pod, last = now, nil
			if now.Status.Phase == corev1.PodRunning && len(now.Status.PodIPs) > 0 {
				if last = t.answers(ctx, now); last == nil {
					return now, nil
				}
			}
		}
		if err := wait(ctx, askEvery); err != nil {
			return nil, t.why(ctx, pod, errors.Join(fmt.Errorf("it does not run: %w", err), last))
		}
	}
}

// make creates a pod. In a new namespace that takes until the cluster has made its service account.
func (t *trial) make(ctx context.Context, want *corev1.Pod) (*corev1.Pod, error) {
	for {
		once, stop := written(ctx)
		pod, err := t.client.CoreV1().Pods(want.Namespace).Create(once, want, metav1.CreateOptions{})
		stop()
		if err == nil {
			return pod, nil
		}
		err = fmt.Errorf("make pod %s: %w", want.Name, err)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "serviceaccount") || t.o.namespace != "" {
			return nil, err
		}
		if waited := wait(ctx, askEvery); waited != nil {
			return nil, errors.Join(waited, err)
		}
	}
}

// answers asks each container whether its ports listen.
func (t *trial) answers(ctx context.Context, pod *corev1.Pod) error {
	for i := range pod.Spec.Containers {
		var nothing struct{}
		if err := t.ask(ctx, pod, pod.Spec.Containers[i].Name, standin.ReadyPath, &nothing); err != nil {
			return err
		}
	}
	return nil
}

// why is [cluster.why] with the pod's name.
func (t *trial) why(ctx context.Context, pod *corev1.Pod, err error) error {
	return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, t.cluster.why(ctx, pod, err))
}
