package agents

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/api/apilist"
)

// WhichError means that it cannot be told which DaemonSet is the agents'. By is the field of [Finder] that chooses one; who has a flag for
// it may put that there. Err is the cause, if there is one.
type WhichError struct {
	Why, By string
	Err     error
}

func (e *WhichError) Error() string {
	text := "it cannot be told which DaemonSet is the agents': " + e.Why + "; " + e.By + " chooses one"
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *WhichError) Unwrap() error { return e.Err }

// DaemonSets returns those of the agents, one for each installation of the cluster: a canary's nodes have agents of its own. They are looked
// for once, until [Finder.Forget]. Labels alone, which anybody may give a DaemonSet, choose none: then errors.As(err, new(*WhichError)).
func (f *Finder) DaemonSets(ctx context.Context) ([]*appsv1.DaemonSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known {
		return f.sets, nil
	}
	sets, err := f.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the agents: %w", err)
	}
	f.sets, f.known = sets, true
	return sets, nil
}

// Forget makes the next question look for the DaemonSets anew: they may have been installed again.
func (f *Finder) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sets, f.known = nil, false
}

func (f *Finder) find(ctx context.Context) ([]*appsv1.DaemonSet, error) {
	bound, unknown := []installation{{namespace: f.Namespace}}, ""
	if f.Namespace == "" {
		var err error
		if bound, unknown, err = f.bound(ctx); err != nil {
			return nil, err
		}
	}
	named := len(bound) > 0
	if !named {
		bound = []installation{{namespace: f.Identity.WithDefaults().Namespace}}
	}
	all := map[types.UID]*appsv1.DaemonSet{} // of each once
	for _, where := range bound {
		some, err := f.listDaemonSets(ctx, where.namespace)
		if err != nil {
			return nil, err
		}
		some = slices.DeleteFunc(some, func(ds *appsv1.DaemonSet) bool {
			if where.daemonSet != "" {
				return ds.Name != where.daemonSet
			}
			return slices.Contains(bound, installation{where.namespace, ds.Name}) // another's
		})
		if len(some) > 1 {
			return nil, &WhichError{Why: "there are " + namesOf(some), By: "Selector"}
		}
		for _, ds := range some {
			all[ds.UID] = ds
		}
	}
	if len(all) > 0 || named {
		return slices.SortedFunc(maps.Values(all), func(a, b *appsv1.DaemonSet) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		}), nil
	}
	others, err := f.listDaemonSets(ctx, metav1.NamespaceAll)
	switch {
	case apierrors.IsForbidden(err):
		return nil, &WhichError{Why: fmt.Sprintf("%s, %s has none, and you may not look in others", unknown, f.Identity.WithDefaults().Namespace), By: "Namespace", Err: err}
	case err == nil && len(others) > 0:
		return nil, &WhichError{Why: fmt.Sprintf("%s, and the labels of %s prove nothing", unknown, namesOf(others)), By: "Namespace"}
	}
	return nil, err
}

// installation is one release of the agents in the cluster.
type installation struct {
	namespace string
	// daemonSet is the name of a further release's; empty: the only one there.
	daemonSet string
}

// bound are the installations that ClusterRoleBindings name: by the plugin's account, to which the chart, the manifests and deploy/rbac give
// that name, or, of a further release, that name and what its DaemonSet's has more. A binding belongs to no namespace, so nobody can write
// it who may write in one only. Who may not list them sees the first alone. Without any, unknown says why.
func (f *Finder) bound(ctx context.Context) (all []installation, unknown string, err error) {
	id := f.Identity.WithDefaults()
	name := id.PluginAccount
	unknown = "the ClusterRoleBinding " + name + " names no service account"
	found := false
	add := func(b *rbacv1.ClusterRoleBinding) {
		more, ours := strings.CutPrefix(b.Name, name)
		if !ours || more != "" && (!strings.HasPrefix(more, "-") || b.RoleRef.Kind != "ClusterRole" || b.RoleRef.Name != b.Name) {
			return
		}
		found = found || more == ""
		set := ""
		if more != "" {
			set = id.Agent + more
		}
		for _, s := range b.Subjects {
			where := installation{s.Namespace, set}
			if s.Kind == rbacv1.ServiceAccountKind && s.Namespace != "" && !slices.Contains(all, where) {
				all = append(all, where)
			}
		}
	}
	bindings := f.Client.RbacV1().ClusterRoleBindings()
	err = apilist.Each(ctx, bindings.List, metav1.ListOptions{}, add)
	if f.alone = apierrors.IsForbidden(err); f.alone {
		var one *rbacv1.ClusterRoleBinding
		if one, err = bindings.Get(ctx, name, metav1.GetOptions{}); err == nil {
			add(one)
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, "you may not read the ClusterRoleBinding " + name + ", which names the installation's namespace", nil
	case err != nil && !apierrors.IsNotFound(err):
		return nil, "", fmt.Errorf("read ClusterRoleBinding %s: %w", name, err)
	case !found:
		unknown = "there is no ClusterRoleBinding " + name + ", which names the installation's namespace"
	}
	return all, unknown, nil
}

// listDaemonSets are those whose pods have the agents' labels.
func (f *Finder) listDaemonSets(ctx context.Context, namespace string) (all []*appsv1.DaemonSet, err error) {
	wanted, err := labels.Parse(f.selector())
	if err != nil {
		return nil, fmt.Errorf("the agents' labels %q: %w", f.selector(), err)
	}
	err = apilist.Each(ctx, f.Client.AppsV1().DaemonSets(namespace).List, metav1.ListOptions{}, func(ds *appsv1.DaemonSet) {
		if wanted.Matches(labels.Set(ds.Spec.Template.Labels)) {
			all = append(all, ds.DeepCopy())
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list daemonsets: %w", err)
	}
	return all, nil
}

// maxNamed bounds the DaemonSets that a message names: anybody may have made them.
const maxNamed = 5

func namesOf(sets []*appsv1.DaemonSet) string {
	var names []string
	for _, ds := range sets[:min(len(sets), maxNamed)] {
		names = append(names, "DaemonSet "+ds.Namespace+"/"+ds.Name)
	}
	text := strings.Join(names, " and ")
	if more := len(sets) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Pods are the pods that a DaemonSet controls on a node; an empty name is all nodes.
func (f *Finder) Pods(ctx context.Context, set *appsv1.DaemonSet, node string) (pods []corev1.Pod, err error) {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("DaemonSet %s/%s: %w", set.Namespace, set.Name, err)
	}
	o := metav1.ListOptions{LabelSelector: selector.String()}
	if node != "" {
		o.FieldSelector = "spec.nodeName=" + node
	}
	err = apilist.Each(ctx, f.Client.CoreV1().Pods(set.Namespace).List, o, func(pod *corev1.Pod) {
		if metav1.IsControlledBy(pod, set) && (node == "" || pod.Spec.NodeName == node) {
			pods = append(pods, *pod)
		}
	})
	return pods, err
}
