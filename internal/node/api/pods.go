package api

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/meshcni/meshcni/internal/node/api/podlist"
	"github.com/meshcni/meshcni/internal/node/api/podpatch"
)

// nodeField is the field by which pods are selected by their node. RBAC cannot restrict reads to it, other authorizers can.
const nodeField = "spec.nodeName"

func (c *Client) onNode(o metav1.ListOptions) *metav1.ListOptions {
	o.FieldSelector = fields.OneTermEqualSelector(nodeField, c.node).String()
	return &o
}

// MayListPods allows ListPods and Pod.
var MayListPods = Right{Verb: "list", Resource: "pods"}

// ListPods lists the node's pods. Each is cut down by keep before the next is read: a node's pods may be a thousand times larger than what is
// kept of them.
func (c *Client) ListPods(ctx context.Context, o metav1.ListOptions, keep func(*corev1.Pod) *corev1.Pod) (*corev1.PodList, error) {
	body, err := c.core.Get().Resource("pods").VersionedParams(c.onNode(o), metav1.ParameterCodec).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	list, err := podlist.Decode(body, keep)
	if err != nil {
		return nil, fmt.Errorf("read the list of the node's pods: %w", err)
	}
	return list, nil
}

// Pod reads a pod of the node from the server. It lists what has the name there: an API server looks that up like a get, and an authorizer that
// binds reads to the node sees that this one is.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	one := fields.SelectorFromSet(fields.Set{metav1.ObjectNameField: name, nodeField: c.node})
	list := &corev1.PodList{}
	err := c.core.Get().Namespace(namespace).Resource("pods").
		VersionedParams(&metav1.ListOptions{FieldSelector: one.String()}, metav1.ParameterCodec).Do(ctx).Into(list)
	switch {
	case err != nil:
		return nil, err
	case len(list.Items) == 0:
		return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
	}
	return &list.Items[0], nil
}

// MayWatchPods allows WatchPods.
var MayWatchPods = Right{Verb: "watch", Resource: "pods"}

// WatchPods watches the node's pods.
func (c *Client) WatchPods(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.core.Get().Resource("pods").VersionedParams(c.onNode(o), metav1.ParameterCodec).Watch(ctx)
}

// MayPatchStatus allows Label, Annotate and PatchPodStatus.
var MayPatchStatus = Right{Verb: "patch", Resource: "pods", Subresource: "status"}

// Label sets a label of the pod with that UID and resource version, of any version if that is empty, or removes it if the value is empty. It
// returns the changed pod. It patches the pod's status, which leaves the spec alone.
func (c *Client) Label(ctx context.Context, pod *corev1.Pod, key, value string) (*corev1.Pod, error) {
	return c.patchStatus(ctx, pod, "labels", key, value)
}

// Annotate does the same with an annotation of the pod with that UID, of any version.
func (c *Client) Annotate(ctx context.Context, pod *corev1.Pod, key, value string) error {
	named := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
	_, err := c.patchStatus(klog.NewContext(ctx, klog.Logger{}), named, "annotations", key, value) // the error says it all
	if err != nil {
		return fmt.Errorf("write annotation %s of pod %s/%s: %w", key, pod.Namespace, pod.Name, err)
	}
	return nil
}

func (c *Client) patchStatus(ctx context.Context, pod *corev1.Pod, in, key, value string) (*corev1.Pod, error) {
	patch, err := podpatch.Patch(pod.UID, pod.ResourceVersion, in, key, value)
	if err != nil {
		return nil, err
	}
	out := &corev1.Pod{}
	err = c.core.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("status").Body(patch).Do(ctx).Into(out)
	return out, podpatch.Answer(pod.Name, err)
}

// PatchPodStatus applies a JSON merge patch to the status of a pod, annotations among it.
func (c *Client) PatchPodStatus(ctx context.Context, namespace, name string, patch []byte) error {
	return podpatch.Answer(name, c.core.Patch(types.MergePatchType).Namespace(namespace).Resource("pods").Name(name).SubResource("status").Body(patch).Do(ctx).Error())
}

// MayEvict allows Evict and EvictNobody.
var MayEvict = Right{Verb: "create", Resource: "pods", Subresource: "eviction"}

// Evict deletes the pod with that UID and resource version, of any version if that is empty, if disruption budgets allow it. It does not wait
// and retry when the server answers 429, as client-go would.
func (c *Client) Evict(ctx context.Context, pod *corev1.Pod) error {
	return c.evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: deleteOptions(pod)})
}

// EvictNobody asks for the eviction of a pod with annotations on the request, as a dry run and for a UID that no pod has: for what refuses it.
func (c *Client) EvictNobody(ctx context.Context, namespace, name string, annotations map[string]string) error {
	nobody := deleteOptions(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: NoPod}})
	nobody.DryRun = []string{metav1.DryRunAll}
	return c.evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations}, DeleteOptions: nobody})
}

// NoPod is the UID of no pod.
const NoPod = types.UID("no-pod-has-this-uid")

func (c *Client) evict(ctx context.Context, e *policyv1.Eviction) error {
	r := c.core.Post().Namespace(e.Namespace).Resource("pods").Name(e.Name).SubResource("eviction").Body(e).MaxRetries(0)
	for _, dry := range e.DeleteOptions.DryRun {
		r.Param("dryRun", dry)
	}
	return r.Do(ctx).Error()
}

// MayDelete allows Delete.
var MayDelete = Right{Verb: "delete", Resource: "pods"}

// Delete deletes the pod with that UID and resource version, of any version if that is empty, regardless of disruption budgets.
func (c *Client) Delete(ctx context.Context, pod *corev1.Pod) error {
	return c.core.Delete().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Body(deleteOptions(pod)).Do(ctx).Error()
}

func deleteOptions(pod *corev1.Pod) *metav1.DeleteOptions {
	o := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
	if pod.ResourceVersion != "" {
		o.Preconditions.ResourceVersion = &pod.ResourceVersion
	}
	return o
}
