package redirectcmd_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// bothPod has the sidecars of two meshes.
const bothPod = `{"metadata": {"name": "cart", "namespace": "shop", "annotations": {"sidecar.istio.io/status": "{}"}},
	"spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}, {"name": "linkerd-proxy"}]}}`

const plainPod = `{"metadata": {"name": "cart", "namespace": "shop"}, "spec": {"containers": [{"name": "app"}]}}`

var listCall = call{files: map[string]string{
	"both": bothPod, "plain": plainPod, "plain namespace": `{"metadata": {"name": "shop"}}`,
	"ambient namespace": `{"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}}}`,
}}

// TestSeveralDialects: explain says what each mesh says, and what comes after goes by who has the pod.
func TestSeveralDialects(t *testing.T) {
	t.Parallel()
	const contested = "linkerd would select the pod too; istio has it, which is asked first"
	got := listCall.run(t, "explain", "-f", "both", "--namespace-file", "plain namespace", "--dialect", "ambient,istio,linkerd")
	require.Zero(t, got.code, got.errOut)
	_, plan, ok := strings.Cut(got.out, "\n\n")
	require.True(t, ok)
	assert.True(t, strings.HasPrefix(plan, `pod shop/cart is in the mesh (istio)
  selected: container "istio-proxy" and annotation sidecar.istio.io/status are there
  dialect ambient: has-sidecar: annotation sidecar.istio.io/status is there: the pod has a proxy of its own
  dialect istio: selected: container "istio-proxy" and annotation sidecar.istio.io/status are there
  dialect linkerd: selected: container "linkerd-proxy" is there
`), got.out)
	assert.Contains(t, got.out, "  warning: "+contested+"\n")
	assert.Contains(t, got.out, "-j ISTIO_OUTPUT")
	assert.NotContains(t, got.out, "PROXY_INIT_")

	got = listCall.run(t, "explain", "-f", "both", "--namespace-file", "plain namespace", "--dialect", "linkerd,ambient", "--dialect", "ambient,istio,linkerd", "-o", "json")
	require.Zero(t, got.code, got.errOut)
	var x struct {
		Dialect  string
		Decision struct{ Reason string }
		Answers  []struct {
			Dialect, Reason, Detail string
			Selected                bool
		}
		Warnings []string
	}
	require.NoError(t, json.Unmarshal([]byte(got.out), &x))
	assert.Equal(t, "istio", x.Dialect)
	assert.Equal(t, "selected", x.Decision.Reason)
	require.Len(t, x.Answers, 3)
	assert.Equal(t, []any{"ambient", false, "has-sidecar", "istio", true, "linkerd", true},
		[]any{x.Answers[0].Dialect, x.Answers[0].Selected, x.Answers[0].Reason, x.Answers[1].Dialect, x.Answers[1].Selected, x.Answers[2].Dialect, x.Answers[2].Selected})
	assert.Contains(t, x.Warnings, contested)

	got = listCall.run(t, "explain", "-f", "plain", "--namespace-file", "plain namespace", "--dialect", "ambient,istio")
	require.Zero(t, got.code, got.errOut)
	_, plan, _ = strings.Cut(got.out, "\n\n")
	assert.Equal(t, `pod shop/cart is not in the mesh (ambient,istio)
  dialect ambient: not-enabled: no selector matches the labels of the pod and its namespace
  dialect istio: no-proxy: no container is named istio-proxy
  configuration: none (no directory /nonexistent/net.d), so flags and defaults
`, plan)
	got = listCall.run(t, "explain", "-f", "plain", "--namespace-file", "ambient namespace", "--dialect", "istio,ambient")
	require.Zero(t, got.code, got.errOut)
	assert.Contains(t, got.out, "pod shop/cart is in the mesh (ambient)\n")

	got = listCall.run(t, "explain", "-f", "plain", "--dialect", "ambient,istio")
	assert.Equal(t, 1, got.code)
	assert.Contains(t, got.out, "is refused (ambient)")
	assert.Contains(t, got.out, "\n  pod shop/cart: its namespace is not known, so it cannot be told whether ambient selects it")
	assert.Contains(t, got.out, "--namespace-file")

	for _, one := range []string{"istio", "linkerd"} {
		got = listCall.run(t, "explain", "-f", "both", "--namespace-file", "plain namespace", "--dialect", one, "-o", "json")
		require.Zero(t, got.code, got.errOut)
		assert.NotContains(t, got.out, "answers", "one mesh says what it has always said")
	}

	for list, prefix := range map[string]string{"istio,linkerd": "ISTIO_", "linkerd, istio": "PROXY_INIT_"} {
		got = listCall.run(t, "rules", "-f", "both", "--namespace-file", "plain namespace", "--dialect", list)
		require.Zero(t, got.code, got.errOut)
		assert.Contains(t, got.out, ":"+prefix+"OUTPUT")
		assert.Contains(t, got.errOut, "would select the pod too")
		got = listCall.run(t, "trace", "-f", "both", "--namespace-file", "plain namespace", "--dialect", list, "--dst", "10.96.5.5", "--dport", "80", "--uid", "1000")
		require.Zero(t, got.code, got.errOut)
		assert.Contains(t, got.out, prefix+"OUTPUT")
	}
	got = listCall.run(t, "trace", "-f", "plain", "--namespace-file", "plain namespace", "--dialect", "ambient,istio", "--dst", "10.96.5.5", "--dport", "80")
	require.Zero(t, got.code, got.errOut)
	assert.Contains(t, got.out, "pass: not-enabled: ambient: no selector matches")

	saved := listCall.run(t, "rules", "-f", "both", "--namespace-file", "plain namespace", "--dialect", "linkerd")
	c := listCall
	c.stdin = saved.out
	got = c.run(t, "compare", "-f", "both", "--namespace-file", "plain namespace", "--dialect", "linkerd,istio", "--from-rules", "-", "-o", "json")
	assert.Contains(t, got.out, `"dialect": "linkerd"`)
	assert.Contains(t, got.out, `"selected": true`)
}

// TestInstalledList: the dialects of the installed configuration count, and a flag takes their place.
func TestInstalledList(t *testing.T) {
	t.Parallel()
	dir := node(t, map[string]string{"10-calico.conflist": list(`{"type":"meshcni","dialect":["linkerd","istio"]}`)})
	got := listCall.run(t, "explain", "-f", "both", "--namespace-file", "plain namespace", "--config", dir)
	require.Zero(t, got.code, got.errOut)
	assert.Contains(t, got.out, "pod shop/cart is in the mesh (linkerd)\n")
	assert.Contains(t, got.out, "  dialect istio: selected:")
	got = listCall.run(t, "explain", "-f", "both", "--config", dir, "--dialect", "istio")
	require.Zero(t, got.code, got.errOut)
	assert.Contains(t, got.out, "pod shop/cart is in the mesh (istio)\n")
	assert.NotContains(t, got.out, "  dialect ")

	wrong := node(t, map[string]string{"10-calico.conflist": list(`{"type":"meshcni","dialect":["osm","istio","nginx"]}`)})
	got = listCall.run(t, "explain", "-f", "both", "--config", wrong)
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.errOut, `unknown dialect "osm"`)
	assert.Contains(t, got.errOut, `unknown dialect "nginx"`)
}

func TestListUsage(t *testing.T) {
	t.Parallel()
	for list, says := range map[string][]string{
		"istio,osm,nginx": {`unknown dialect "osm"`, `unknown dialect "nginx"`},
		"istio,,kuma":     {`unknown dialect ""`},
		"istio,istio":     {`dialect "istio" is named twice`},
	} {
		got := listCall.run(t, "rules", "-f", "both", "--namespace-file", "plain namespace", "--dialect", list)
		assert.Equal(t, 2, got.code)
		for _, s := range says {
			assert.Contains(t, got.errOut, s)
		}
	}
	got := listCall.run(t, "rules", "-p", "15001", "--dialect", "istio,linkerd")
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.errOut, "--dialect istio,linkerd: without -f nothing says which of them the rules are for")
	got = listCall.run(t, "cleanup", "--dry-run", "--dialect", "istio,ambient,linkerd")
	require.Zero(t, got.code, got.errOut)
	assert.Equal(t, 1, strings.Count(got.out, "named PROXY_INIT_*"))
}
