//go:build linux

package installer

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// listOf is a network's list with plugins of these types.
func listOf(types ...string) string {
	return `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"` + strings.Join(types, `"},{"type":"`) + `"}]}`
}

func TestNeighbours(t *testing.T) {
	const file = "10-x.conflist"
	for name, tc := range map[string]struct {
		files map[string]string
		given func(*node)
		want  []string // plugin, position, file
	}{
		"alone":  {map[string]string{file: listOf("calico", "portmap", "cilium-cni")}, nil, nil},
		"before": {map[string]string{file: listOf("calico", "linkerd-cni", "portmap")}, nil, []string{"linkerd-cni before " + file}},
		"after":  {map[string]string{file: listOf("calico", "meshcni", "istio-cni")}, nil, []string{"istio-cni after " + file}},
		"several, one of them twice": {map[string]string{file: listOf("calico", "kuma-cni", "meshcni", "consul-cni", "kuma-cni")}, nil,
			[]string{"kuma-cni before " + file, "consul-cni after " + file}},
		"a single configuration, which becomes a list": {map[string]string{"10-x.conf": `{"name":"n","type":"kmesh-cni"}`}, nil, []string{"kmesh-cni before " + file}},
		"in a file that the runtime does not load":     {map[string]string{file: listOf("calico"), "20-y.conflist": listOf("calico", "istio-cni")}, nil, nil},
		"delegated to": {map[string]string{file: `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"multus","delegates":[{"name":"d","plugins":[{"type":"istio-cni"}]}]}]}`},
			nil, []string{"istio-cni before " + file}},
		"only named": {map[string]string{file: `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"calico","args":{"type":"istio-cni"},"log":"istio-cni"}]}`}, nil, nil},
		"in the list's directory": {map[string]string{file: listOf("calico")}, func(n *node) {
			require.NoError(n.t, os.Mkdir(n.conf("n"), 0o755))
			n.write(n.conf("n/10-istio.conf"), `{"type":"istio-cni"}`, 0o644)
		}, []string{"istio-cni after " + file}},
		"in a directory that the list does not load": {map[string]string{file: strings.Replace(listOf("calico"), `"name"`, `"loadOnlyInlinedPlugins":true,"name"`, 1)}, func(n *node) {
			require.NoError(n.t, os.Mkdir(n.conf("n"), 0o755))
			n.write(n.conf("n/10-istio.conf"), `{"type":"istio-cni"}`, 0o644)
		}, nil},
		"with a list of our own": {map[string]string{file: listOf("calico", "istio-cni")}, func(n *node) { n.OwnFile = SwitchOn },
			[]string{"istio-cni before 00-meshcni.conflist"}},
		"delegated to ourselves": {map[string]string{file: listOf("calico", "istio-cni")}, func(n *node) { n.Chained = false }, []string{"istio-cni beside " + file}},
		"a type of the embedder's": {map[string]string{file: listOf("calico", "acme-cni", "acme")}, func(n *node) { n.MeshPlugins = []string{"acme-cni"} },
			[]string{"acme-cni before " + file}},
		"ours has the type of a mesh's": {map[string]string{file: listOf("calico", "istio-cni", "meshcni")}, func(n *node) {
			n.Plugin.Type, n.BinaryName = "istio-cni", "meshcni"
		}, []string{"meshcni after " + file}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, tc.files)
			if tc.given != nil {
				tc.given(n)
			}
			n.install()
			plan := planInstall(n.Config, newObserver().lookForInstall(n.Config))
			require.NoError(t, join(plan.Blocked), "it is a warning")
			var got []string
			for _, other := range plan.Neighbours {
				got = append(got, other.Plugin+" "+other.Position+" "+strings.TrimPrefix(other.File, n.CNIConfDir+"/"))
				assert.Contains(t, other.Text(), other.File)
				assert.Contains(t, other.Text(), "uninstall the other")
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

// The agent says when another mesh's plugin comes into the list and when it is gone, and is ready all the while: our entry is
// in force.
func TestAgentTellsOfANeighbour(t *testing.T) {
	const file = "10-x.conflist"
	n := newNode(t, map[string]string{file: listOf("calico")})
	var log proctest.Buffer
	a, _ := n.agent(listening(&log))
	within(t, patience, "ready", ready(a))
	assert.Empty(t, a.State().Neighbours)
	assert.NotContains(t, scrape(t, a), "meshcni_other_mesh{")

	ours := n.read(n.conf(file))
	n.put(n.conf(file), strings.Replace(ours, "]}", `,{"type":"istio-cni"}]}`, 1))
	within(t, patience, "told", func() bool { return said(a, news.OtherMesh) != "" })
	require.NoError(t, a.Ready())
	assert.Contains(t, said(a, news.OtherMesh), `"istio-cni" (Istio), after our entry in `+n.conf(file))
	assert.Contains(t, log.String(), "code=other-mesh plugin=istio-cni")
	require.Len(t, a.State().Neighbours, 1)
	assert.Contains(t, scrape(t, a), "\nmeshcni_other_mesh{plugin=\"istio-cni\"} 1\n")

	// What cannot be read is not gone.
	require.NoError(t, os.Mkdir(n.conf("00-x.conflist.d"), 0o755))
	require.NoError(t, os.Symlink("/proc/self/mem", n.conf("00-x.conflist")))
	within(t, patience, "not ready", func() bool { return code(a) == "conf-unreadable" })
	require.Len(t, a.State().Neighbours, 1)
	require.NoError(t, os.Remove(n.conf("00-x.conflist")))
	within(t, patience, "ready again", ready(a))
	assert.NotEmpty(t, said(a, news.OtherMesh))

	n.put(n.conf(file), ours)
	within(t, patience, "gone", func() bool { return len(a.News()) == 0 })
	assert.Empty(t, a.State().Neighbours)
	assert.NotContains(t, scrape(t, a), "meshcni_other_mesh{")
}
