// Package repairtest has in-memory versions of what a repair controller works with, for tests: [Cluster] for the API
// server's pods and [Redirector] for the kernel. repair/integration runs the same tests on a Cluster and on a real API
// server.
//
// # Limits
//
// A [Cluster] knows pods with their labels, UIDs and resource versions, deletion, eviction, one disruption budget per
// namespace, and list and watch by node, with expiry. It has no grace periods: a deleted pod stays, with a deletion
// timestamp, until Gone is called, unless it has no node or LeaveAtOnce is set. Of namespaces it knows the metadata. It validates nothing, and has
// no RBAC and no other kinds.
package repairtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// pods is the resource that errors name.
var pods = corev1.Resource("pods")

// Hook is called before each request is answered. The verb is get, label, evict, delete, list or watch; the key is that of
// the pod, zero for list and watch. An error becomes the answer.
type Hook func(verb string, pod types.NamespacedName) error

// Cluster is what a controller asks of an API server, in memory. Create one with [New]. It is safe for concurrent use.
type Cluster struct {
	// Node is the one whose pods are listed and watched: node-1.
	Node string
	// LeaveAtOnce makes deleted pods disappear at once, without a deletion timestamp.
	LeaveAtOnce bool

	mu       sync.Mutex
	revision int
	uids     int
	oldest   int // the first revision that a watch may begin at
	pods     map[types.NamespacedName]*corev1.Pod
	spaces   map[string]*metav1.PartialObjectMetadata
	blocked  map[string]bool
	hook     Hook
	requests []string
	history  []watch.Event // one for each revision after the oldest
	watchers map[*watcher]bool
}

// Pod returns a pod for tests with one container, which is ready if the phase is Running.
func Pod(namespace, name, node string, phase corev1.PodPhase) *corev1.Pod {
	grace := int64(30)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "web", Image: "web"}},
		},
		Status: corev1.PodStatus{Phase: phase},
	}
	if phase == corev1.PodRunning {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return pod
}

// New returns an empty cluster.
func New() *Cluster {
	return &Cluster{
		Node: "node-1", revision: 1, oldest: 1, pods: map[types.NamespacedName]*corev1.Pod{}, spaces: map[string]*metav1.PartialObjectMetadata{}, blocked: map[string]bool{}, watchers: map[*watcher]bool{},
	}
}

// SetHook sets the hook; nil means none.
func (c *Cluster) SetHook(h Hook) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = h
}

// Requests returns all requests so far, as "verb namespace/name".
func (c *Cluster) Requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

// Block sets a disruption budget that forbids the eviction of a namespace's running pods, or removes it.
func (c *Cluster) Block(namespace string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked[namespace] = on
}

// Set stores a copy of the pod with its status, gives it a UID if it is new, and returns it as stored.
func (c *Cluster) Set(pod *corev1.Pod) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	stored := pod.DeepCopy()
	kind := watch.Added
	if old := c.pods[keyOf(pod)]; old != nil {
		kind = watch.Modified
		stored.UID, stored.CreationTimestamp = old.UID, old.CreationTimestamp
	} else {
		c.uids++
		stored.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", c.uids))
		stored.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	}
	c.pods[keyOf(pod)] = stored
	c.changed(kind, stored)
	return stored.DeepCopy()
}

// Gone removes the pod.
func (c *Cluster) Gone(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if pod := c.pods[types.NamespacedName{Namespace: namespace, Name: name}]; pod != nil {
		delete(c.pods, keyOf(pod))
		c.changed(watch.Deleted, pod.DeepCopy())
	}
}

// changed gives the object a new revision and tells the watches.
func (c *Cluster) changed(kind watch.EventType, object interface {
	metav1.Object
	runtime.Object
},
) {
	c.revision++
	object.SetResourceVersion(strconv.Itoa(c.revision))
	e := watch.Event{Type: kind, Object: object.DeepCopyObject()}
	c.history = append(c.history, e)
	for w := range c.watchers {
		w.send(e)
	}
}

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// asked notes a request and calls the hook.
func (c *Cluster) asked(ctx context.Context, verb string, pod types.NamespacedName) error {
	c.mu.Lock()
	c.requests = append(c.requests, verb+" "+pod.String())
	hook := c.hook
	c.mu.Unlock()
	if err := ctx.Err(); err != nil || hook == nil {
		return err
	}
	return hook(verb, pod)
}

// change answers a request to change a pod: f gets the stored pod if it is the one meant. The cluster is locked meanwhile.
func (c *Cluster) change(ctx context.Context, verb string, meant *corev1.Pod, f func(stored *corev1.Pod) error) error {
	if err := c.asked(ctx, verb, keyOf(meant)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	stored := c.pods[keyOf(meant)]
	switch {
	case stored == nil:
		return apierrors.NewNotFound(pods, meant.Name)
	case meant.UID != stored.UID:
		return apierrors.NewConflict(pods, meant.Name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s)", meant.UID, stored.UID))
	case meant.ResourceVersion != "" && meant.ResourceVersion != stored.ResourceVersion:
		return apierrors.NewConflict(pods, meant.Name, fmt.Errorf("the resource version is %s, not %s", stored.ResourceVersion, meant.ResourceVersion))
	}
	return f(stored)
}

// SetNamespace adds or replaces a namespace.
func (c *Cluster) SetNamespace(ns *corev1.Namespace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind := watch.Modified
	if c.spaces[ns.Name] == nil {
		kind = watch.Added
	}
	stored := &metav1.PartialObjectMetadata{ObjectMeta: *ns.ObjectMeta.DeepCopy()}
	c.spaces[ns.Name] = stored
	c.changed(kind, stored)
}

// Pod reads a pod.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if err := c.asked(ctx, "get", key); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if pod := c.pods[key]; pod != nil {
		return pod.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(pods, name)
}

// Label sets a label.
func (c *Cluster) Label(ctx context.Context, pod *corev1.Pod, key, value string) (out *corev1.Pod, err error) {
	err = c.change(ctx, "label", pod, func(stored *corev1.Pod) error {
		out = stored.DeepCopy()
		if stored.Labels[key] == value { // an absent label has the empty value
			return nil
		}
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[key] = value
		if value == "" {
			delete(out.Labels, key)
		}
		c.pods[keyOf(pod)] = out
		c.changed(watch.Modified, out)
		out = out.DeepCopy()
		return nil
	})
	return out, err
}

// Evict evicts a pod. As in a real cluster, disruption budgets only protect running pods.
func (c *Cluster) Evict(ctx context.Context, pod *corev1.Pod) error {
	return c.change(ctx, "evict", pod, func(stored *corev1.Pod) error {
		if c.blocked[pod.Namespace] && stored.Status.Phase == corev1.PodRunning && stored.DeletionTimestamp == nil {
			return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		}
		c.remove(stored)
		return nil
	})
}

// Delete deletes a pod.
func (c *Cluster) Delete(ctx context.Context, pod *corev1.Pod) error {
	return c.change(ctx, "delete", pod, func(stored *corev1.Pod) error {
		c.remove(stored)
		return nil
	})
}

func (c *Cluster) remove(pod *corev1.Pod) {
	if c.LeaveAtOnce || pod.Spec.NodeName == "" {
		delete(c.pods, keyOf(pod))
		c.changed(watch.Deleted, pod.DeepCopy())
		return
	}
	if pod.DeletionTimestamp != nil {
		return
	}
	pod = pod.DeepCopy()
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	pod.DeletionTimestamp = &now
	c.pods[keyOf(pod)] = pod
	c.changed(watch.Modified, pod)
}
