package taintcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"

	"github.com/meshcni/meshcni/internal/readytaint"
	"github.com/meshcni/meshcni/internal/unheard"
)

// api is the API server, as far as it is asked.
type api struct {
	*settings
	client kubernetes.Interface
}

func newAPI(config *rest.Config, s *settings) (*api, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("prepare to ask the API server: %w", err)
	}
	return &api{settings: s, client: client}, nil
}

// informers are the watches: of all nodes, of the agents and of their DaemonSet. changed is called after each change, note with the result
// of each request.
func (a *api) informers(changed func(), note func(watch string, err error)) (nodes, agents, sets cache.SharedInformer, err error) {
	of := func(client cache.Getter, resource, namespace string, object runtime.Object, options func(*metav1.ListOptions)) cache.SharedInformer {
		lw := cache.NewFilteredListWatchFromClient(client, resource, namespace, options)
		i := cache.NewSharedInformer(unheard.ListWatch(lw, func(err error) { note(resource, err) }), object, 0)
		_, errAdd := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() },
		})
		err = errors.Join(err, errAdd, i.SetTransform(trim))
		return i
	}
	core := a.client.CoreV1().RESTClient()
	nodes = of(core, "nodes", "", &corev1.Node{}, func(*metav1.ListOptions) {})
	agents = of(core, "pods", a.namespace, &corev1.Pod{}, func(o *metav1.ListOptions) { o.LabelSelector = a.selector })
	sets = of(a.client.AppsV1().RESTClient(), "daemonsets", a.namespace, &appsv1.DaemonSet{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", a.daemonSet).String()
	})
	return nodes, agents, sets, err
}

// trim leaves of objects what is looked at: a large cluster's nodes are mostly lists of images.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Labels: o.Labels},
			Spec:       corev1.NodeSpec{Taints: o.Spec.Taints},
			Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: o.Status.NodeInfo.BootID, OperatingSystem: o.Status.NodeInfo.OperatingSystem}},
		}, nil
	case *corev1.Pod:
		o.ManagedFields, o.Annotations = nil, nil
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName}
	}
	return object, nil
}

// fresh reads a node and its agents as the API server has them now, whatever the watches have told yet.
func (a *api) fresh(ctx context.Context, name string) (*corev1.Node, []*corev1.Pod, error) {
	node, err := a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read node %s: %w", name, err)
	}
	list, err := a.client.CoreV1().Pods(a.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: a.selector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the agents of node %s: %w", name, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return node, pods, nil
}

// ours reports whether a taint is to go when the agent is ready.
func (s *settings) ours(t corev1.Taint) bool {
	return t.Key == s.key || slices.Contains(s.alsoRemove, t.Key)
}

// taints returns a node's taints after a change.
func (s *settings) taints(node *corev1.Node, change readytaint.Change) []corev1.Taint {
	taints := slices.Clone(node.Spec.Taints)
	if change == readytaint.Add {
		return append(taints, corev1.Taint{Key: s.key, Value: readytaint.PutBack, Effect: corev1.TaintEffectNoSchedule})
	}
	return slices.DeleteFunc(taints, s.ours)
}

// patch changes the taints of exactly this state of the node: the resource version and UID in it are preconditions, so no taint
// that another program sets meanwhile is lost. A list is replaced as a whole by a merge patch. If the node has changed,
// apierrors.IsConflict(err).
func (a *api) patch(ctx context.Context, node *corev1.Node, change readytaint.Change) (*corev1.Node, error) {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion, "uid": node.UID},
		"spec":     map[string]any{"taints": a.taints(node, change)},
	})
	if err != nil {
		return nil, err
	}
	out, err := a.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s taint %s of node %s: %w", change, a.key, node.Name, err)
	}
	return out, nil
}

// removeAll takes the taint from every node, and returns from how many.
func (a *api) removeAll(ctx context.Context, log *slog.Logger) (removed int, err error) {
	nodes, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("list nodes: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		node := &nodes.Items[i]
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			if !slices.ContainsFunc(node.Spec.Taints, a.ours) {
				return nil
			}
			_, err := a.patch(ctx, node, readytaint.Remove)
			if err == nil {
				log.Info("taint removed", "node", node.Name)
				removed++
			}
			if apierrors.IsConflict(err) { // another program changes the node, too
				if now, errGet := a.client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{}); errGet == nil {
					node = now
				}
			}
			return err
		})
		if !apierrors.IsNotFound(err) { // the node is gone
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}
