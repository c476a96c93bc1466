package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/meshcni/meshcni/cmd/internal/proof"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// trialsAtOnce bounds how many nodes start pods at a time.
const trialsAtOnce = 10

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
	return &trial{cluster: c, o: o, run: trialRun{label: c.Identity.Key(kubectl.TestLabel), name: name, namespace: cmp.Or(o.namespace, name), lifetime: max(o.timeout+time.Minute, time.Minute)}}
}

// prepare makes the namespace.
func (t *trial) prepare(ctx context.Context) error {
	if t.o.namespace != "" {
		there, err := t.client.CoreV1().Namespaces().Get(ctx, t.o.namespace, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err):
			return nil // the pods will show whether it is there
		case err == nil:
			t.run.settings = there
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
	t.uid, t.run.settings = made.UID, made
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

// all tries the nodes.
func (t *trial) all(ctx context.Context, names []string, found map[string]agents.Agent) (rows []trialRow) {
	byNode := each(trialsAtOnce, names, func(i int, node string) []trialRow {
		a, ok := found[node]
		if !ok {
			return []trialRow{{Node: node, What: "agent", Result: resultFailed, Detail: agents.ErrNoAgent.Error()}}
		}
		rows := t.node(ctx, i, a)
		t.say("tested node %s", node)
		return rows
	})
	return slices.Concat([]trialRow{}, slices.Concat(byNode...))
}

// node tries all meshes of one node.
func (t *trial) node(ctx context.Context, number int, a agents.Agent) []trialRow {
	n, err := t.cluster.node(ctx, a)
	if err != nil {
		return []trialRow{{Node: a.Node, What: "agent", Result: resultUnknown, Detail: err.Error()}}
	}
	from := programOf(a)
	if t.o.image != "" {
		from = image{name: t.o.image}
	}
	return slices.Concat(each(len(n.Dialects)+1, n.Dialects, func(_ int, dialect string) []trialRow {
		return t.dialect(ctx, n, dialect, fmt.Sprintf("%s-%d", dialect, number), a.Node, from)
	})...)
}

// dialect tries a pod of one mesh.
func (t *trial) dialect(ctx context.Context, n agentapi.Node, dialect, name, node string, from image) []trialRow {
	row := trialRow{Node: node, Dialect: dialect, What: "pod starts", Result: resultUnknown}
	as, err := t.fakeSidecar(dialect)
	if text := noProxy(n); err == nil && as.proxy == "" && text != "" {
		err = errors.New(text)
	}
	var pod *corev1.Pod
	if err == nil {
		row.Result = resultFailed
		pod, err = t.end(ctx, t.run.meshed(name, node, from, as))
	}
	if err != nil {
		row.Detail = err.Error()
		return []trialRow{row}
	}
	return answered(row, pod)
}

// answered are the rows of what a pod's containers have proved, of each family together. Each is like the one that is given.
func answered(like trialRow, pod *corev1.Pod) (rows []trialRow) {
	unknown := func(why string) {
		row := like
		row.What, row.Result, row.Detail = "connections", resultUnknown, why
		rows = append(rows, row)
	}
	for _, c := range containersOf(pod) {
		if c.State.Terminated == nil {
			continue
		}
		a, err := proof.Parse(c.State.Terminated.Message)
		if err != nil {
			a.Error = err.Error()
		}
		for _, t := range a.Trials {
			row := like
			row.Family, row.What, row.Result = t.Family, t.What, resultOK
			if !t.Works {
				row.Result, row.Detail = resultFailed, t.Detail
			}
			rows = append(rows, row)
		}
		if a.Error != "" {
			unknown("container " + c.Name + ": " + a.Error)
		}
	}
	if len(rows) == 0 {
		unknown("its containers could try none")
	}
	slices.SortStableFunc(rows, func(a, b trialRow) int { return cmp.Compare(a.Family, b.Family) })
	return rows
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

// end makes a pod and waits until its containers have ended. The error says what is known of why they do not.
func (t *trial) end(ctx context.Context, want *corev1.Pod) (*corev1.Pod, error) {
	pod, err := t.make(ctx, want)
	if err != nil {
		return nil, err
	}
	if pod, err = t.await(ctx, pod, "it has not ended", succeeded); err != nil {
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
