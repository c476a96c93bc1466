package uninstallwait

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// API is a [Cluster] behind an API server.
type API struct {
	client          rest.Interface
	namespace, name string
}

// Connect returns the API of the server that config is for. It sends no request.
func Connect(config *rest.Config, namespace, daemonSet string) (*API, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare to ask the API server: %w", err)
	}
	return &API{client: client, namespace: namespace, name: daemonSet}, nil
}

// get reads JSON. Errors are those of the Kubernetes API.
func (a *API) get(ctx context.Context, into any, path ...string) error {
	text, err := a.client.Get().AbsPath(path...).Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// DaemonSet implements [Cluster].
func (a *API) DaemonSet(ctx context.Context) (*appsv1.DaemonSet, error) {
	var set appsv1.DaemonSet
	return &set, a.get(ctx, &set, "apis/apps/v1/namespaces", a.namespace, "daemonsets", a.name)
}

// Pods implements [Cluster].
func (a *API) Pods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := a.get(ctx, &list, "api/v1/namespaces", a.namespace, "pods")
	return list.Items, err
}

// DeletePod deletes a pod, which need not be there.
func (a *API) DeletePod(ctx context.Context, name string) error {
	err := a.client.Delete().AbsPath("api/v1/namespaces", a.namespace, "pods", name).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
