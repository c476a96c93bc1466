package explain_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// TestAdviceInTheMeshsOwnWords: whatever a mesh is called, and whatever its words, nobody is told another's.
func TestAdviceInTheMeshsOwnWords(t *testing.T) {
	t.Parallel()
	policy := selection.Policy{
		InjectKey: "net.example/join", InjectOn: []string{"ja"}, InjectOff: []string{"nein"}, ForeignAnnotation: "net.example/own-proxy",
		Selectors: []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"net.example/mesh": "an"}}}},
	}
	yes := true
	for want, annotations := range map[string]map[string]string{
		`net.example/mesh=an`:     nil,
		`"net.example/join":"ja"`: {"net.example/join": "nein"},
		`leave the pod out`:       {"net.example/own-proxy": ""},
	} {
		l := dialect.SetOf(dialect.Dialect{Name: "fabric", Policy: policy, Names: redirect.Default().Names, Build: dialect.FromSchema(redirect.Schema{Defaults: redirect.Default()})})
		pod, err := json.Marshal(corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{
			Name: "cart-0", Namespace: "shop", Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "cart", Controller: &yes}},
		}})
		require.NoError(t, err)
		text, err := json.Marshal(ask(t, l, string(pod), `{"kind": "Namespace", "metadata": {"name": "shop"}}`).Verdict)
		require.NoError(t, err)
		v := strings.ReplaceAll(string(text), `\"`, `"`)
		assert.Contains(t, v, want)
		for _, others := range []string{"istio", "ambient", "enablement", "without a restart", "true\""} {
			assert.False(t, strings.Contains(v, others), "%q in %s", others, v)
		}
	}
}
