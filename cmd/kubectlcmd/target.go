package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/text/visible"
)

var errNoSelector = errors.New("it is empty")

// kinds are those that have pods, by their short names.
var kinds = map[string]string{"po": "pod", "deploy": "deployment", "sts": "statefulset", "ds": "daemonset", "rs": "replicaset", "job": "job"}

// split reads POD, KIND/NAME or KIND NAME.
func split(args []string) (kind, name string, err error) {
	switch len(args) {
	case 1:
		var typed bool
		if kind, name, typed = strings.Cut(args[0], "/"); !typed {
			kind, name = "pod", args[0]
		}
	case 2:
		kind, name = args[0], args[1]
	default:
		return "", "", cli.Usagef("name one pod, or one deployment as deploy/NAME")
	}
	word := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(kind), ".apps"), ".batch")
	for short, known := range kinds {
		if word != short && strings.TrimSuffix(word, "s") != known {
			continue
		}
		if name == "" || strings.Contains(name, "/") {
			return "", "", cli.Usagef("%q is no name of a %s", name, known)
		}
		return known, name, nil
	}
	return "", "", cli.Usagef("%q is none of pod, deployment, statefulset, daemonset, replicaset and job", kind)
}

// find returns the pod that the arguments name: of several of a workload, the one that is chosen, and what is said of it. Without choose
// it is one that runs.
func (c *cluster) find(ctx context.Context, args []string, choose func([]corev1.Pod) (*corev1.Pod, string)) (*corev1.Pod, error) {
	kind, name, err := split(args)
	if err != nil {
		return nil, err
	}
	namespace, err := c.namespace()
	if err != nil {
		return nil, err
	}
	if kind == "pod" {
		pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("namespace %s: %w (a workload is named with its kind, such as deployment/%s; -n names another namespace)", namespace, err, name)
		}
		return pod, err
	}
	selector, err := c.selector(ctx, kind, namespace, name)
	if err != nil {
		return nil, err
	}
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: apilist.PageSize})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s/%s: %w", kind, name, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("%s/%s in namespace %s has no pods", kind, name, namespace)
	}
	if len(list.Items) == 1 {
		return &list.Items[0], nil
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Name, b.Name))
	})
	chosen, why := &list.Items[0], ""
	if choose != nil {
		chosen, why = choose(list.Items)
	}
	visible.To(c.Stderr).Printf("pod %s, one of %d of %s/%s%s\n", chosen.Name, len(list.Items), kind, name, why)
	return chosen, nil
}

// rank is lower for a pod that there is more to say of.
func rank(p *corev1.Pod) int {
	switch {
	case p.DeletionTimestamp != nil:
		return 2
	case p.Status.Phase == corev1.PodRunning:
		return 0
	}
	return 1
}

// selector is that of a workload's pods.
func (c *cluster) selector(ctx context.Context, kind, namespace, name string) (string, error) {
	from := c.client.AppsV1().RESTClient()
	if kind == "job" {
		from = c.client.BatchV1().RESTClient()
	}
	var workload struct {
		Spec struct{ Selector *metav1.LabelSelector }
	}
	if err := getJSON(ctx, from.Get().Namespace(namespace).Resource(kind+"s").Name(name), &workload); err != nil {
		return "", err
	}
	s := workload.Spec.Selector
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil || selector.Empty() || s == nil {
		return "", fmt.Errorf("the selector of %s/%s selects no pods of its own: %w", kind, name, cmp.Or(err, errNoSelector))
	}
	return selector.String(), nil
}
