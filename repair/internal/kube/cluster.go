package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Cluster has the controller's requests to the API server. A pod passed to Label,
// Evict or Delete means the pod with that UID in the state of its resource version; an empty version means any state.
// Errors are those of the Kubernetes API:
//
//	apierrors.IsNotFound(err)        // no pod has the name
//	apierrors.IsConflict(err)        // the UID or resource version differs
//	apierrors.IsTooManyRequests(err) // a disruption budget forbids the eviction
//	apierrors.IsForbidden(err)       // a permission is missing
type Cluster interface {
	// Pods lists and watches the pods of one node. An empty label selector matches all.
	Pods(node, labelSelector string) cache.ListerWatcher
	// Pod reads a pod from the server, not from a cache. A pod of another node need not be found.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Label sets a label through the pod's status, or removes it if the value is empty, and returns the changed pod.
	Label(ctx context.Context, pod *corev1.Pod, key, value string) (*corev1.Pod, error)
	// Evict deletes the pod if disruption budgets allow it.
	Evict(ctx context.Context, pod *corev1.Pod) error
	// Delete deletes the pod regardless of disruption budgets.
	Delete(ctx context.Context, pod *corev1.Pod) error
}
