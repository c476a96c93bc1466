package kubectlcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// installation is the agents' DaemonSet, which is looked for once a run.
type installation struct {
	known bool
	set   *appsv1.DaemonSet
}

// errWhichAgents means that it cannot be told which DaemonSet is the agents'.
var errWhichAgents = errors.New("it cannot be told which DaemonSet is the agents'")

// daemonSet returns the agents' DaemonSet; nil if there is none. Its namespace is the one that the caller names, or else one that
// the installation's ClusterRoleBinding names, or else the default one. Labels alone, which anybody may give a DaemonSet, choose
// none: then errors.Is(err, errWhichAgents).
func (c *cluster) daemonSet(ctx context.Context) (*appsv1.DaemonSet, error) {
	i := &c.installed
	c.finding.Lock()
	defer c.finding.Unlock()
	if i.known {
		return i.set, nil
	}
	set, err := c.findDaemonSet(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the agents: %w", err)
	}
	i.set, i.known = set, true
	return set, nil
}

func (c *cluster) findDaemonSet(ctx context.Context) (*appsv1.DaemonSet, error) {
	namespaces, unknown := []string{c.agentNamespace}, ""
	if c.agentNamespace == "" {
		var err error
		if namespaces, unknown, err = c.boundNamespaces(ctx); err != nil {
			return nil, err
		}
	}
	named := len(namespaces) > 0
	if !named {
		namespaces = []string{c.Identity.Namespace}
	}
	var all []*appsv1.DaemonSet
	for _, namespace := range namespaces {
		some, err := c.listDaemonSets(ctx, namespace)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1 && len(namespaces) > 1:
		return nil, fmt.Errorf("%w: there are %s; --agent-namespace chooses one", errWhichAgents, namesOf(all))
	case len(all) > 1:
		return nil, fmt.Errorf("%w: there are %s; --agent-selector chooses one by its pods' labels", errWhichAgents, namesOf(all))
	case named:
		return nil, nil
	}
	others, err := c.listDaemonSets(ctx, metav1.NamespaceAll)
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: %s, %s has none, and you may not look in others; --agent-namespace names the installation's: %w", errWhichAgents, unknown, c.Identity.Namespace, err)
	case err == nil && len(others) > 0:
		return nil, fmt.Errorf("%w: %s, and the labels of %s prove nothing; --agent-namespace names the installation's namespace", errWhichAgents, unknown, namesOf(others))
	}
	return nil, err
}

// boundNamespaces are those of the service accounts of the installation's ClusterRoleBinding, to which the chart, the manifests and
// deploy/rbac give the name of the plugin's account. It belongs to no namespace, so nobody can write it who may write in one only.
// Without any, unknown says why.
func (c *cluster) boundNamespaces(ctx context.Context) (all []string, unknown string, err error) {
	name := c.Identity.PluginAccount
	binding, err := c.client.RbacV1().ClusterRoleBindings().Get(ctx, name, metav1.GetOptions{})
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
func (c *cluster) listDaemonSets(ctx context.Context, namespace string) (all []*appsv1.DaemonSet, err error) {
	wanted, err := labels.Parse(c.agentSelector)
	if err != nil {
		return nil, fmt.Errorf("--agent-selector: %w", err)
	}
	err = list(ctx, c.client.AppsV1().DaemonSets(namespace).List, metav1.ListOptions{}, func(ds *appsv1.DaemonSet) {
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

// podsOf are the pods that a DaemonSet controls on a node; an empty name is all nodes.
func (c *cluster) podsOf(ctx context.Context, set *appsv1.DaemonSet, node string) (pods []corev1.Pod, err error) {
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("DaemonSet %s/%s: %w", set.Namespace, set.Name, err)
	}
	o := metav1.ListOptions{LabelSelector: selector.String()}
	if node != "" {
		o.FieldSelector = "spec.nodeName=" + node
	}
	err = list(ctx, c.client.CoreV1().Pods(set.Namespace).List, o, func(pod *corev1.Pod) {
		if metav1.IsControlledBy(pod, set) && (node == "" || pod.Spec.NodeName == node) {
			pods = append(pods, *pod)
		}
	})
	return pods, err
}
