package nodecontrol

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/meshcni/meshcni/internal/podpatch"
	"github.com/meshcni/meshcni/nodeproxy"
)

// The rate of an [APIStatus], those of Istio's own agent. At a start, each of a node's pods may need one request.
const (
	statusQPS   = 80
	statusBurst = 160
)

// statusTime bounds one request.
const statusTime = 5 * time.Second

// APIStatus is a [Status] behind an API server. It patches the pod's subresource "status", which accepts annotations and leaves
// the spec alone: the right that it needs is "patch" on "pods/status".
type APIStatus struct{ client rest.Interface }

// NewAPIStatus returns the APIStatus of the server that config is for. It sends no request.
func NewAPIStatus(config *rest.Config) (*APIStatus, error) {
	c := rest.CopyConfig(config)
	c.QPS, c.Burst = statusQPS, statusBurst
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("prepare to write pods' status: %w", err)
	}
	return &APIStatus{client}, nil
}

// Set implements [Status]. The UID is a precondition: a pod that has taken the name since is left alone.
func (s *APIStatus) Set(ctx context.Context, pod nodeproxy.PodID, key, value string) error {
	patch, err := podpatch.Patch(pod.UID, "", "annotations", key, value)
	if err == nil {
		ctx, cancel := context.WithTimeout(klog.NewContext(ctx, klog.Logger{}), statusTime) // the error says it all
		defer cancel()
		err = podpatch.Answer(pod.Name, s.client.Patch(types.MergePatchType).Namespace(pod.Namespace).Resource("pods").Name(pod.Name).
			SubResource("status").Body(patch).Do(ctx).Error())
	}
	if err != nil {
		return fmt.Errorf("write annotation %s of pod %s/%s: %w", key, pod.Namespace, pod.Name, err)
	}
	return nil
}
