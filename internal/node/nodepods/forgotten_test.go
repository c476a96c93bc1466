package nodepods

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a watch says at the moment in which its namespace is forgotten counts no more: nothing would ever take it back.
func TestForgottenNamespaceFailsNoLonger(t *testing.T) {
	w, err := New(Options{API: struct{ API }{}})
	require.NoError(t, err)
	w.running = context.Background()
	cart := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u1"}}
	require.NoError(t, podStore{w: w}.Replace([]any{cart}, "1"))
	shop := w.namespaces["shop"]
	w.failed(t.Context(), "namespace shop", &shop.failing, errors.New("not today"))
	require.ErrorContains(t, w.Ready(), "not today")
	require.Error(t, w.Outdated(0))
	require.NoError(t, podStore{w: w}.Delete(cart))
	require.NoError(t, w.Ready())
	require.NoError(t, w.Outdated(0))
	over, end := context.WithCancel(t.Context()) // as that of a watch is by then
	end()
	w.failed(over, "namespace shop", &shop.failing, errors.New("not today"))
	assert.NoError(t, w.Ready())
	assert.NoError(t, w.Outdated(0))
}
