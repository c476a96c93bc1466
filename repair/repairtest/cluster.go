// Package repairtest has an API server's pods in memory, to test what acts on
// pods, and the table that shows that it behaves as a real one does.
//
// # Limits
//
// A [Cluster] knows pods, their labels, deletion, eviction and one disruption
// budget for each namespace; UIDs and resource versions; list and watch by node,
// with expiry. It keeps no grace periods but one: a pod that is deleted stays,
// with a deletion timestamp, until Gone is called, unless it was made without a
// node or with LeaveAtOnce. It validates nothing, has no RBAC and no other kinds.
package repairtest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/meshcni/meshcni/repair"
)

// pods is the resource that errors name.
var pods = corev1.Resource("pods")

// Hook sees each request before it is answered; an error is the answer.
type Hook func(verb string, pod repair.Ref) error

// Cluster is a [repair.Cluster] in memory. Make one with [New]. It is safe for
// concurrent use.
type Cluster struct {
	// LeaveAtOnce makes deleted pods go without a deletion timestamp in between.
	LeaveAtOnce bool

	mu       sync.Mutex
	revision int
	uids     int
	oldest   int // the first revision that a watch may begin at
	pods     map[types.NamespacedName]*corev1.Pod
	blocked  map[string]bool
	hook     Hook
	requests []string
	history  []change
	watchers map[*watcher]bool
}

var _ repair.Cluster = (*Cluster)(nil)

type change struct {
	revision int
	event    watch.Event
}

// New makes an empty cluster.
func New() *Cluster {
	return &Cluster{
		revision: 1, pods: map[types.NamespacedName]*corev1.Pod{}, blocked: map[string]bool{}, watchers: map[*watcher]bool{},
	}
}

// SetHook makes each request pass the hook; nil is none.
func (c *Cluster) SetHook(h Hook) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = h
}

// Requests are what was asked so far, as "verb namespace/name".
func (c *Cluster) Requests() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.requests...)
}

// Block sets a disruption budget that allows nothing for the running pods of a
// namespace, or takes it away.
func (c *Cluster) Block(namespace string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked[namespace] = on
}

// Set stores a copy of the pod, status and all, with a UID if it is new, and
// returns it as it is stored.
func (c *Cluster) Set(pod *corev1.Pod) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	stored := pod.DeepCopy()
	kind := watch.Added
	if old := c.pods[key]; old != nil {
		kind = watch.Modified
		stored.UID, stored.CreationTimestamp = old.UID, old.CreationTimestamp
	} else {
		c.uids++
		stored.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", c.uids))
		stored.CreationTimestamp = metav1.NewTime(time.Now().Truncate(time.Second))
	}
	c.pods[key] = stored
	c.changed(kind, stored)
	return stored.DeepCopy()
}

// Gone takes the pod away.
func (c *Cluster) Gone(namespace, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if pod := c.pods[key]; pod != nil {
		delete(c.pods, key)
		c.changed(watch.Deleted, pod.DeepCopy())
	}
}

// changed gives the pod a new revision and tells the watchers.
func (c *Cluster) changed(kind watch.EventType, pod *corev1.Pod) {
	c.revision++
	pod.ResourceVersion = strconv.Itoa(c.revision)
	e := change{c.revision, watch.Event{Type: kind, Object: pod.DeepCopy()}}
	c.history = append(c.history, e)
	for w := range c.watchers {
		w.send(e)
	}
}

// asked notes a request and lets the hook speak.
func (c *Cluster) asked(ctx context.Context, verb string, pod repair.Ref) error {
	c.mu.Lock()
	c.requests = append(c.requests, verb+" "+pod.String())
	hook := c.hook
	c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if hook != nil {
		return hook(verb, pod)
	}
	return nil
}

// find returns the stored pod if it is the one meant.
func (c *Cluster) find(r repair.Ref) (*corev1.Pod, error) {
	pod := c.pods[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}]
	switch {
	case pod == nil:
		return nil, apierrors.NewNotFound(pods, r.Name)
	case r.UID != pod.UID:
		return nil, apierrors.NewConflict(pods, r.Name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s)", r.UID, pod.UID))
	case r.ResourceVersion != "" && r.ResourceVersion != pod.ResourceVersion:
		return nil, apierrors.NewConflict(pods, r.Name, fmt.Errorf("the resource version is %s, not %s", pod.ResourceVersion, r.ResourceVersion))
	}
	return pod, nil
}

// Pod implements repair.Cluster.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if err := c.asked(ctx, "get", repair.Ref{Namespace: namespace, Name: name}); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pod := c.pods[types.NamespacedName{Namespace: namespace, Name: name}]
	if pod == nil {
		return nil, apierrors.NewNotFound(pods, name)
	}
	return pod.DeepCopy(), nil
}

// Label implements repair.Cluster.
func (c *Cluster) Label(ctx context.Context, r repair.Ref, key, value string) (*corev1.Pod, error) {
	if err := c.asked(ctx, "label", r); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pod, err := c.find(r)
	if err != nil {
		return nil, err
	}
	old, had := pod.Labels[key]
	if had == (value != "") && old == value {
		return pod.DeepCopy(), nil
	}
	pod = pod.DeepCopy()
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[key] = value
	if value == "" {
		delete(pod.Labels, key)
	}
	c.pods[types.NamespacedName{Namespace: r.Namespace, Name: r.Name}] = pod
	c.changed(watch.Modified, pod)
	return pod.DeepCopy(), nil
}

// Evict implements repair.Cluster. As with a real one, budgets protect running
// pods only: one that has not started, or has ended, serves nobody.
func (c *Cluster) Evict(ctx context.Context, r repair.Ref) error {
	if err := c.asked(ctx, "evict", r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pod, err := c.find(r)
	if err != nil {
		return err
	}
	if c.blocked[r.Namespace] && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
		return apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	}
	c.remove(pod)
	return nil
}

// Delete implements repair.Cluster.
func (c *Cluster) Delete(ctx context.Context, r repair.Ref) error {
	if err := c.asked(ctx, "delete", r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pod, err := c.find(r)
	if err != nil {
		return err
	}
	c.remove(pod)
	return nil
}

func (c *Cluster) remove(pod *corev1.Pod) {
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if c.LeaveAtOnce || pod.Spec.NodeName == "" {
		delete(c.pods, key)
		c.changed(watch.Deleted, pod.DeepCopy())
		return
	}
	if pod.DeletionTimestamp != nil {
		return
	}
	pod = pod.DeepCopy()
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	pod.DeletionTimestamp = &now
	c.pods[key] = pod
	c.changed(watch.Modified, pod)
}
