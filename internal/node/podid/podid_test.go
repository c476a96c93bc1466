package podid_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/podid"
)

func pod(namespace, name, uid, mirrors string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	if mirrors != "" {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: mirrors}
	}
	return p
}

const (
	own    = "3d1f0a6e-1c35-4c8b-9a35-0e6d6c2f7a11"
	victim = "77d0b9d4-5f0e-4f3b-8c1d-51a2f1e9b0c7"
	static = "9c0b7e3f5a1d4e2b8f6a0c9d7e5b3a1f"
)

// TestMirrored: nothing but what a kubelet makes counts as a static pod's UID, and never that of another pod of the API server.
func TestMirrored(t *testing.T) {
	t.Parallel()
	for _, not := range []string{
		"", victim, strings.ToUpper(static), static[1:], static + "0", strings.ReplaceAll(victim, "-", "_"), strings.Repeat("a", 200<<10), "g" + static[1:],
		static[:31] + "\n", "../" + static[3:],
	} {
		assert.Empty(t, podid.Mirrored(pod("a", "b", own, not)), "%.40q", not)
	}
	assert.Equal(t, types.UID(static), podid.Mirrored(pod("a", "b", own, static)))
	assert.Empty(t, podid.Mirrored(pod("a", "b", own, "")))
}

// TestIs: names and UID together mean a pod; a mirror's static pod is meant by the same names only.
func TestIs(t *testing.T) {
	t.Parallel()
	mirror := pod("kube-system", "proxy-n1", own, static)
	assert.True(t, podid.Is(mirror, "kube-system", "proxy-n1", static))
	assert.True(t, podid.Is(mirror, "kube-system", "proxy-n1", own))
	assert.False(t, podid.Is(mirror, "tenant", "proxy-n1", static))
	assert.False(t, podid.Is(mirror, "kube-system", "proxy-n2", static))
	assert.False(t, podid.Is(mirror, "kube-system", "proxy-n1", ""))
	assert.False(t, podid.Is(pod("tenant", "x", own, victim), "tenant", "x", victim), "that is another pod's")
	assert.False(t, podid.Is(pod("tenant", "x", "", ""), "tenant", "x", ""))
}
