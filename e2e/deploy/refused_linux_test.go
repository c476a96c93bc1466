package deploy_test

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/nodecmd"
)

// TestTheChartRefuses: what the agent would refuse at its start, on each node, the chart refuses before anything is replaced; and what neither
// Kubernetes nor a node could bear.
func TestTheChartRefuses(t *testing.T) {
	t.Parallel()
	rolling := func(v values) values { return values{"updateStrategy": values{"rollingUpdate": v}} }
	for says, all := range map[string][]values{
		"addDeadline ":               {set("addDeadline", "0s"), set("addDeadline", "0h0.0ms")},
		"ambient.verifyInterval ":    {ambientOn.with(set("ambient.verifyInterval", "1ms")), set("ambient.verifyInterval", "0s"), set("ambient.verifyInterval", "999999us")},
		"repair.verifyInterval ":     {set("repair.verifyInterval", "1ms")},
		"excludeNamespaceSelector ":  {set("excludeNamespaceSelector", "a in b"), set("excludeNamespaceSelector", "a=b,"), set("excludeNamespaceSelector", "a==b c"), set("excludeNamespaceSelector", "-a")},
		"repair.labelSelector ":      {set("repair.labelSelector", "app=(x")},
		"repair.fieldSelector ":      {set("repair.fieldSelector", "metadata.label=x"), set("repair.fieldSelector", "metadata.name")},
		"pluginConfig is no JSON":    {set("pluginConfig", "type: meshcni"), set("pluginConfig", `["meshcni"]`), set("pluginConfig", `{"type": "meshcni"`)},
		`pluginConfig has no "type"`: {set("pluginConfig", `{}`), set("pluginConfig", `{"type": 1}`), set("pluginConfig", `{"type": "../x"}`)},
		`has no such flag`:           {set("extraArgs", []string{"--nope"}), set("extraArgs", []string{"--log-levels=debug"})},
		"are both 0":                 {rolling(values{"maxSurge": 0, "maxUnavailable": 0}), rolling(values{"maxSurge": "0%", "maxUnavailable": 0}), rolling(values{"maxUnavailable": 0})},
		"Kubernetes refuses both":    {rolling(values{"maxSurge": 1, "maxUnavailable": "10%"})},
		"needs 64Mi at least":        {set("resources.limits.memory", "20Mi"), set("resources.limits.memory", "60000k"), set("resources.limits.memory", 1000)},
	} {
		for _, v := range all {
			_, err := render(t, v)
			require.ErrorContains(t, err, "these values cannot work", "%v", v)
			assert.ErrorContains(t, err, says, "%v", v)
		}
	}
	ok := []values{
		set("addDeadline", "0h0.5s"), ambientOn.with(set("ambient.verifyInterval", "1s")), set("repair.verifyInterval", "0"), set("excludeNamespaceSelector", "!a.b/c_d, x notin ( , y ) ,z>3,w!="),
		set("repair.fieldSelector", "metadata.namespace!=dev,spec.nodeName=x"), set("pluginConfig", `{"type": "meshcni", "port": __KUBERNETES_SERVICE_PORT__}`),
		set("extraArgs", []string{"--log-level=debug", "--write-status"}), rolling(values{"maxSurge": 0}), rolling(values{"maxUnavailable": "10%"}), set("resources.limits.memory", "64Mi"),
		set("resources.limits.memory", nil), set("resources.limits.memory", 268435456),
	}
	_, err := tryRenderAll(t, ok)
	assert.NoError(t, err)
}

// TestTheAgentRefusesThem: of the values above those that are the agent's, it refuses as the chart does; the others it takes.
func TestTheAgentRefusesThem(t *testing.T) {
	t.Parallel()
	m := newMachine(t, mustRender(t, nil))
	for _, arg := range []string{
		"--add-deadline=0s", "--exclude-namespace-selector=a in b", "--exclude-namespace-selector=a=b,", "--exclude-namespace-selector=a==b c", "--exclude-namespace-selector=-a", "--nope", "--log-levels=debug",
	} {
		_, err := nodecmd.Program{Env: m.env}.Parse(append(append([]string{"run"}, m.args()...), arg))
		assert.Error(t, err, arg)
	}
	for _, text := range []string{"type: meshcni", `["meshcni"]`, `{}`, `{"type": "../x"}`} {
		m.write("/etc/meshcni/plugin.json", text)
		_, err := nodecmd.Program{Env: m.env}.Parse(append(append([]string{"run"}, m.args()...), "--plugin-config="+m.path("/etc/meshcni/plugin.json")))
		assert.Error(t, err, text)
	}
	for _, arg := range []string{"--add-deadline=0h0.5s", "--exclude-namespace-selector=!a.b/c_d, x notin ( , y ) ,z>3,w!="} {
		_, err := nodecmd.Program{Env: m.env}.Parse(append(append([]string{"run"}, m.args()...), arg))
		assert.NoError(t, err, arg)
	}
}

// TestTheChartKnowsTheFlags: extraArgs may be any flag that there is.
func TestTheChartKnowsTheFlags(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.Equal(t, 0, nodecmd.Program{Stdout: &out}.Main(t.Context(), []string{"run", "--help"}))
	want := map[string]bool{}
	for _, found := range regexp.MustCompile(`(?m)^  (?:-[a-z], )?--([a-z0-9-]+)`).FindAllStringSubmatch(out.String(), -1) {
		want[found[1]] = true
	}
	require.True(t, want["config"])
	_, after, ok := strings.Cut(readAll(t, chart)["templates/_validate.tpl"], "{{- define \"meshcni.flags\" -}}\n")
	require.True(t, ok)
	line, _, _ := strings.Cut(after, "\n")
	assert.ElementsMatch(t, slices.Sorted(maps.Keys(want)), strings.Fields(line))
}
