package explain_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/internal/explain"
	"github.com/meshcni/meshcni/internal/playground"
	"github.com/meshcni/meshcni/selection"
)

// verdict asks the named meshes about a pod.
func verdict(t *testing.T, pod, namespace string, names ...string) explain.Verdict {
	t.Helper()
	l, err := dialects.All().Find(names...)
	require.NoError(t, err)
	p, err := explain.Pod([]byte(pod))
	require.NoError(t, err)
	n, err := explain.Namespace([]byte(namespace))
	require.NoError(t, err)
	target := explain.Target{Pod: p, Mesh: &l[0], Addrs: explain.Addrs(p)}
	x, err := target.Explain(l, explain.NoConfiguration, target.Ask(context.Background(), l, n, dialect.Options{}))
	require.NoError(t, err)
	return x.Verdict()
}

// TestAdvice: there is something to do about every reason, for every mesh.
func TestAdvice(t *testing.T) {
	for _, r := range selection.Reasons {
		for _, mesh := range append(dialects.Names(), "acme") {
			assert.Equal(t, r != selection.Selected, explain.Advice(mesh, r) != "", "%s of %s", r, mesh)
		}
	}
	assert.Empty(t, explain.Advice("istio", "a-reason-of-acme"))
	for _, mesh := range dialects.Names() {
		assert.NotEqual(t, mesh, explain.Title(mesh))
	}
	assert.Equal(t, "acme", explain.Title("acme"))
}

// TestVerdict: each of the page's first examples is summed up, and each way past the mesh comes with how to close it.
func TestVerdict(t *testing.T) {
	want := map[string]explain.State{
		"A pod that no mesh knows of": explain.Outside, "A pod in an Istio mesh": explain.Captured, "Settings that are wrong": explain.Refused,
		"IPv6 gets past the mesh": explain.Captured, "On the host's network": explain.Outside, "An init container sets the rules": explain.Outside,
	}
	seen := 0
	for _, e := range playground.Examples() {
		state, ok := want[e.Title]
		if !ok {
			continue
		}
		seen++
		v := verdict(t, e.Pod, e.Namespace, dialects.Names()...)
		assert.Equal(t, state, v.State, e.Title)
		assert.NotEmpty(t, v.Because, e.Title)
		assert.Equal(t, state != explain.Captured, len(v.Do) > 0, e.Title)
		assert.Equal(t, e.Title == "IPv6 gets past the mesh", len(v.Past) > 0, e.Title)
		for _, p := range v.Past {
			assert.NotEmpty(t, p.Do, p.Code)
		}
	}
	assert.Equal(t, len(want), seen)

	// One mesh alone says its own reason; of several, only those that the pod has to do with.
	plain := `{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "linkerd-proxy"}, {"name": "linkerd-init"}]}}`
	v := verdict(t, plain, playground.Namespace, "istio")
	assert.Equal(t, []string{"no container is named istio-proxy"}, v.Because)
	v = verdict(t, plain, playground.Namespace, dialects.Names()...)
	assert.Equal(t, []string{`container "linkerd-init" sets the rules itself`}, v.Because)
	require.Len(t, v.Do, 1)
	assert.Contains(t, v.Do[0], "CNI mode")
	v = verdict(t, `{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "istio-proxy"}, {"name": "app", "securityContext": {"runAsUser": 1337}}]}}`, playground.Namespace, "istio")
	assert.Equal(t, explain.Outside, v.State, "it has no annotation of the injector")
}

// TestPodsOnly: what is no pod is refused, and says what it is.
func TestPodsOnly(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "it is empty",
		"kind: Deployment":                     `it is a "Deployment"`,
		"kind: Pod\n---\nkind: Pod":            "more than one document",
		`{"metadata": {"name": "a\nb"}}`:       "is no name",
		"a: &x [1]\nb: *x":                     "alias",
		"kind: Pod\nmetadata:\n  name: [1, 2]": "cannot unmarshal",
	} {
		_, err := explain.Pod([]byte(text))
		assert.ErrorContains(t, err, want, text)
	}
	p, err := explain.Pod([]byte("metadata: {name: a}\nstatus: {podIP: 10.0.0.1}"))
	require.NoError(t, err)
	assert.Equal(t, explain.PodName{Namespace: "default", Name: "a"}, explain.Name(p))
	assert.Len(t, explain.Addrs(p), 1)
}
