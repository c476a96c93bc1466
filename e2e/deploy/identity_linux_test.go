package deploy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/selection"
)

// TestIdentity: the chart of a product whose names do not follow from its own reaches the product's agent, and that of another names is refused by it.
func TestIdentity(t *testing.T) {
	t.Parallel()
	gateway := meshcni.Identity{
		Name: "gate-way", Plugin: "gateway.cni", Agent: "gw", LabelPrefix: "mesh.example/", MetricPrefix: "gw2_", EnvPrefix: "GW_",
	}
	own := values{"pluginServiceAccount": values{"name": "gate-way-plugin"}, "product": gateway.Name, "dialect": "gateway", "taint": values{"enabled": true}, "identity": values{
		"plugin": gateway.Plugin, "agent": gateway.Agent, "labelPrefix": gateway.LabelPrefix, "metricPrefix": gateway.MetricPrefix, "envPrefix": gateway.EnvPrefix,
	}, "metrics": values{"prometheusRule": values{"enabled": true}}}
	mesh := []dialect.Dialect{{Name: "gateway", Policy: selection.Policy{ProxyContainers: []string{"gateway"}}}}
	parse := func(v values, id meshcni.Identity) (runDir, daemonSet string, err error) {
		m := newMachine(t, mustRender(t, v))
		c, err := nodecmd.Program{Identity: id, Dialects: mesh, Env: m.env}.Parse(append([]string{"run"}, m.args()...))
		return strings.TrimPrefix(c.RunDir, m.dir), c.DaemonSetName, err
	}
	runDir, daemonSet, err := parse(own, gateway)
	require.NoError(t, err)
	assert.Equal(t, []string{"/var/run/gateway.cni", "gw"}, []string{runDir, daemonSet}, "by a variable with the identity's prefix, too")

	all := mustRender(t, own)
	assert.Equal(t, "gw", agentOf(t, all).Name)
	assert.Contains(t, agentOf(t, all).Spec.Template.Annotations, "mesh.example/settings")
	taint := all.of("Deployment")
	require.Len(t, taint, 1)
	text, err := taint[0].MarshalJSON()
	require.NoError(t, err)
	assert.Contains(t, string(text), "--taint-key=mesh.example/agent-not-ready")
	rules, err := all.of("PrometheusRule")[0].MarshalJSON()
	require.NoError(t, err)
	assert.Contains(t, string(rules), "gw2_ready")
	for _, theirs := range []string{"meshcni_", "Meshcni", `"name":"meshcni-`} {
		assert.NotContains(t, string(rules), theirs)
	}
	assert.Contains(t, string(rules), `alertname=\"GateWayAgentDown\"`)
	pod, err := agentOf(t, all).Spec.Template.Spec.Containers[0].Marshal()
	require.NoError(t, err)
	assert.NotContains(t, string(pod), "/etc/meshcni")

	_, _, err = parse(own, meshcni.Identity{Name: gateway.Name})
	require.Error(t, err)
	for _, each := range []string{
		`Plugin "gateway.cni", and this program's is "gate-way-cni"`, `Agent "gw", and this program's is "gate-way-node"`, `LabelPrefix "mesh.example/", and`,
		`MetricPrefix "gw2_", and`, `EnvPrefix "GW_", and this program's is "GATE_WAY_"`,
	} {
		assert.ErrorContains(t, err, each)
	}
	_, _, err = parse(values{"product": gateway.Name, "dialect": "gateway"}, gateway)
	assert.ErrorContains(t, err, `EnvPrefix "GATE_WAY_", and this program's is "GW_"`)
	_, _, err = parse(nil, gateway)
	assert.ErrorContains(t, err, `Name "meshcni", and this program's is "gate-way"`)

	m := newMachine(t, all)
	_, err = nodecmd.Program{Identity: gateway, Dialects: mesh, Env: m.env}.Parse(slices.Concat([]string{"run"}, m.args(), []string{"--identity=Nmae=x"}))
	assert.ErrorContains(t, err, `identity "Nmae=x": want one of Agent, EnvPrefix`)
}
