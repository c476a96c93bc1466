package kubectlcmd

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// staticUID is one that a kubelet makes.
const staticUID = "7d793037a0760186574b0282f2f435e7"

// TestMirrorOfAnothersPod: what a pod says that it mirrors makes nothing of another pod's its own.
func TestMirrorOfAnothersPod(t *testing.T) {
	t.Parallel()
	pod := func(name, mirrors string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: "0d5e7b1c-aaaa-4bbb-8ccc-000000000001", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: mirrors},
		}}
	}
	named := status.ID{Namespace: "shop", Name: "far", UID: staticUID}
	recorded := agentapi.Pod{Records: []attachment.Record{{Pod: named}}}
	known := agentapi.Pod{State: &status.Pod{ID: named}}
	for _, told := range []agentapi.Pod{recorded, known} {
		require.NoError(t, kubectl.Theirs(pod("far", staticUID), told))
		require.ErrorContains(t, kubectl.Theirs(pod("evil", staticUID), told), "another pod")
	}
	require.NoError(t, kubectl.Theirs(pod("evil", staticUID), agentapi.Pod{}), "the agent knows nothing")
	assert.Equal(t, staticUID, kubectl.RuntimeUID(pod("far", staticUID)))
	assert.Equal(t, "0d5e7b1c-aaaa-4bbb-8ccc-000000000001", kubectl.RuntimeUID(pod("evil", "1d5e7b1c-aaaa-4bbb-8ccc-000000000002")), "that is a pod of the API server")
}
