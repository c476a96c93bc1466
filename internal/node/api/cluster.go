package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// The kinds of which the agent reads the metadata of one object: a role may grant that by name, but for namespaces, of which it may be any.
var (
	Namespaces     = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	DaemonSets     = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	Policies       = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}
	PolicyBindings = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}
)

// MayList allows ListOne.
func MayList(kind schema.GroupVersionResource) Right { return may("list", kind) }

// ListOne lists the metadata of what has the name: it is there or it is not. Namespace is empty for what has none.
func (c *Client) ListOne(ctx context.Context, kind schema.GroupVersionResource, namespace, name string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return c.meta.Resource(kind).Namespace(namespace).List(ctx, o)
}

// MayWatch allows WatchOne.
func MayWatch(kind schema.GroupVersionResource) Right { return may("watch", kind) }

// WatchOne watches the same.
func (c *Client) WatchOne(ctx context.Context, kind schema.GroupVersionResource, namespace, name string, o metav1.ListOptions) (watch.Interface, error) {
	o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return c.meta.Resource(kind).Namespace(namespace).Watch(ctx, o)
}

// MayGet allows GetOne and DaemonSet.
func MayGet(kind schema.GroupVersionResource) Right { return may("get", kind) }

// GetOne reads the metadata of an object.
func (c *Client) GetOne(ctx context.Context, kind schema.GroupVersionResource, namespace, name string) (*metav1.PartialObjectMetadata, error) {
	return c.meta.Resource(kind).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
}

func may(verb string, kind schema.GroupVersionResource) Right {
	return Right{Verb: verb, Group: kind.Group, Resource: kind.Resource}
}

// DaemonSet reads a DaemonSet whole.
func (c *Client) DaemonSet(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	out := &appsv1.DaemonSet{}
	return out, c.apps.Get().Namespace(namespace).Resource("daemonsets").Name(name).Do(ctx).Into(out)
}

// MayGetNodes allows Node.
var MayGetNodes = Right{Verb: "get", Resource: "nodes"}

// Node reads the node.
func (c *Client) Node(ctx context.Context) (*corev1.Node, error) {
	if c.node == "" {
		return nil, errors.New("the node's name is not known: see --node-name")
	}
	out := &corev1.Node{}
	return out, c.core.Get().Resource("nodes").Name(c.node).Do(ctx).Into(out)
}

// MayGetConfigMaps allows ConfigMap. No role of ours has it: see docs.
var MayGetConfigMaps = Right{Verb: "get", Resource: "configmaps"}

// maxConfigMap bounds what is read of one, in bytes. Kubernetes keeps no larger one.
const maxConfigMap = 2 << 20

// ConfigMap reads the text of a ConfigMap.
func (c *Client) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	body, err := c.core.Get().Namespace(namespace).Resource("configmaps").Name(name).SetHeader("Accept", runtime.ContentTypeJSON).Stream(ctx)
	var refused apierrors.APIStatus
	switch {
	case errors.As(err, &refused):
		code := int(refused.Status().Code)
		return nil, fmt.Errorf("the API server says %d %s", code, http.StatusText(code))
	case err != nil:
		return nil, fmt.Errorf("no answer of the API server: %w", err)
	}
	defer func() { _ = body.Close() }()
	var m struct{ Data map[string]string }
	if err := json.NewDecoder(io.LimitReader(body, maxConfigMap)).Decode(&m); err != nil {
		return nil, fmt.Errorf("the API server's answer is no ConfigMap: %w", err)
	}
	return m.Data, nil
}
