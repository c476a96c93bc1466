package taintcmd

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// The taint goes from every node; one that goes away meanwhile is no error, one that cannot be changed is, and keeps nobody waiting.
func TestRemoveAll(t *testing.T) {
	t.Parallel()
	const key = "acme.io/not-ready"
	node := func(name string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Spec.Taints = []corev1.Taint{{Key: "other", Effect: corev1.TaintEffectNoSchedule}, {Key: key, Effect: corev1.TaintEffectNoSchedule}}
		return n
	}
	client := fake.NewClientset(node("a-gone"), node("b-forbidden"), node("c"))
	refused := errors.New("refused")
	client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch name := action.(clienttesting.PatchAction).GetName(); name {
		case "a-gone":
			return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
		case "b-forbidden":
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, name, refused)
		}
		return false, nil, nil
	})
	c := &controller{settings: &settings{key: key}, client: client, log: slog.New(slog.DiscardHandler)}
	removed, err := c.removeAll(t.Context())
	assert.Equal(t, 1, removed)
	require.ErrorContains(t, err, "b-forbidden")
	assert.NotContains(t, err.Error(), "a-gone")
	left, err := client.CoreV1().Nodes().Get(t.Context(), "c", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, []corev1.Taint{{Key: "other", Effect: corev1.TaintEffectNoSchedule}}, left.Spec.Taints)
}
