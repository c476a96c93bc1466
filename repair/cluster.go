package repair

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Ref names one pod in the state in which it was read.
type Ref struct {
	Namespace, Name string
	// UID tells it from others of the same name. Must not be empty.
	UID types.UID
	// ResourceVersion is the state; empty is any.
	ResourceVersion string
}

// RefTo names the pod as it is.
func RefTo(pod *corev1.Pod) Ref {
	return Ref{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
}

// String returns namespace/name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Cluster is what the actions need of the API server; [*Kube] is one, and package
// repairtest has one in memory. Errors are those of the API machinery:
//
//	apierrors.IsNotFound(err)        // there is no pod of the name
//	apierrors.IsConflict(err)        // another UID or resource version
//	apierrors.IsTooManyRequests(err) // eviction: a disruption budget is in the way
//	apierrors.IsForbidden(err)       // a permission is missing
type Cluster interface {
	// Pod reads the pod from the server, not from a cache.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Label sets a label through the pod's status, or removes it when the value
	// is empty, and returns the pod as it is then.
	Label(ctx context.Context, pod Ref, key, value string) (*corev1.Pod, error)
	// Evict deletes the pod if disruption budgets allow it.
	Evict(ctx context.Context, pod Ref) error
	// Delete deletes the pod whatever the budgets say.
	Delete(ctx context.Context, pod Ref) error
}

// Permission is one that an action needs.
type Permission struct {
	// Verb, Group, Resource and Subresource are as in a Role; the core group is
	// empty.
	Verb, Group, Resource, Subresource string
	// Namespace and Name restrict it; empty is all.
	Namespace, Name string
}

// String returns for example "patch pods/status".
func (p Permission) String() string {
	s := p.Verb + " " + p.Resource
	if p.Group != "" {
		s += "." + p.Group
	}
	if p.Subresource != "" {
		s += "/" + p.Subresource
	}
	if p.Name != "" {
		s += " " + p.Name
	}
	if p.Namespace != "" {
		s += " in namespace " + p.Namespace
	}
	return s
}

// Permissions are what the action needs. Force is for deleting what may not be
// evicted.
func Permissions(a Action, force bool) []Permission {
	all := []Permission{
		{Verb: "get", Resource: "pods"}, {Verb: "list", Resource: "pods"}, {Verb: "watch", Resource: "pods"},
		{Verb: "create", Resource: "events"}, {Verb: "patch", Resource: "events"},
	}
	switch a {
	case ActionLabel:
		all = append(all, Permission{Verb: "patch", Resource: "pods", Subresource: "status"})
	case ActionDelete:
		all = append(all, Permission{Verb: "create", Resource: "pods", Subresource: "eviction"})
		if force {
			all = append(all, Permission{Verb: "delete", Resource: "pods"})
		}
	case ActionNone, ActionRepair:
	}
	return all
}
