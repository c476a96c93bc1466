package agents

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/internal/apilist"
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

// DaemonSet returns the agents' DaemonSet; nil if there is none. It is looked for once, until [Finder.Forget]. Labels alone, which anybody
// may give a DaemonSet, choose none: then errors.As(err, new(*WhichError)).
func (f *Finder) DaemonSet(ctx context.Context) (*appsv1.DaemonSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known {
		return f.set, nil
	}
	set, err := f.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the agents: %w", err)
	}
	f.set, f.known = set, true
	return set, nil
}

// Forget makes the next question look for the DaemonSet anew: it may have been installed again.
func (f *Finder) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set, f.known = nil, false
}

func (f *Finder) find(ctx context.Context) (*appsv1.DaemonSet, error) {
	namespaces, unknown := []string{f.Namespace}, ""
	if f.Namespace == "" {
		var err error
		if namespaces, unknown, err = f.boundNamespaces(ctx); err != nil {
			return nil, err
		}
	}
	named := len(namespaces) > 0
	if !named {
		namespaces = []string{f.Identity.WithDefaults().Namespace}
	}
	var all []*appsv1.DaemonSet
	for _, namespace := range namespaces {
		some, err := f.listDaemonSets(ctx, namespace)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1 && len(namespaces) > 1:
		return nil, &WhichError{Why: "there are " + namesOf(all), By: "Namespace"}
	case len(all) > 1:
		return nil, &WhichError{Why: "there are " + namesOf(all), By: "Selector"}
	case named:
		return nil, nil
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

// boundNamespaces are those of the service accounts of the installation's ClusterRoleBinding, to which the chart, the manifests and
// deploy/rbac give the name of the plugin's account. It belongs to no namespace, so nobody can write it who may write in one only.
// Without any, unknown says why.
func (f *Finder) boundNamespaces(ctx context.Context) (all []string, unknown string, err error) {
	name := f.Identity.WithDefaults().PluginAccount
	binding, err := f.Client.RbacV1().ClusterRoleBindings().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, "there is no ClusterRoleBinding " + name + ", which names the installation's namespace", nil
	case apierrors.IsForbidden(err):
		return nil, "you may not read the ClusterRoleBinding " + name + ", which names the installation's namespace", nil
	case err != nil:
		return nil, "", fmt.Errorf("read ClusterRoleBinding %s: %w", name, err)
	}
	for _, s := range binding.Subjects {
		if s.Kind == rbacv1.ServiceAccountKind && s.Namespace != "" && !slices.Contains(all, s.Namespace) {
			all = append(all, s.Namespace)
		}
	}
	return all, "the ClusterRoleBinding " + name + " names no service account", nil
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
