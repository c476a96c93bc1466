package deploy_test

import (
	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// TestAmbientSettings: the chart's values reach the agent by its configuration file, and defaults are not written there.
func TestAmbientSettings(t *testing.T) {
	t.Parallel()
	read := func(v values) string {
		text := settingsOf(t, mustRender(t, v)).Data["config.yaml"]
		file := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		s, err := nodecmd.Program{}.Parse([]string{"run", "--kubernetes-service-host=::1", "--config=" + file})
		require.NoError(t, err)
		return string(s.Plugin.Meshes["ambient"])
	}
	assert.Empty(t, read(values{}))
	assert.JSONEq(t, `{"dns_capture": false, "ipv6": false, "probe_ipv4": "198.18.0.1", "probe_ipv6": "2001:db8::7",
		"enablement_selectors": [{"podSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}}]}`, read(values{"ambient": values{
		"dnsCapture": false, "ipv6": false, "probeIPv4": "198.18.0.1", "probeIPv6": "2001:db8::7",
		"enablementSelectors": []values{{"podSelector": values{"matchExpressions": []values{{"key": "tier", "operator": "In", "values": []string{"a", "b"}}}}}},
	}}))
	assert.JSONEq(t, `{"enablement_selectors": []}`, read(values{"ambient": values{"enablementSelectors": []values{}}}))
}

// TestAmbientDefaults: what values.yaml says is what the dialect does without settings.
func TestAmbientDefaults(t *testing.T) {
	t.Parallel()
	text := readAll(t, chart)["templates/_config.tpl"]
	_, text, found := strings.Cut(text, `{{- define "meshcni.ambientSelectors" -}}`)
	require.True(t, found)
	text, _, _ = strings.Cut(text, "{{- end -}}")
	_, rest, found := strings.Cut(readAll(t, chart)["values.yaml"], "  enablementSelectors:\n")
	require.True(t, found)
	for line := range strings.Lines(strings.TrimSpace(text)) {
		assert.Contains(t, rest, strings.TrimSpace(line), "values.yaml and the template have the same default")
	}
	c, _, err := netconf.Parse([]byte(`{"ambient": {"enablement_selectors": [
		{"podSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}},
		{"podSelector": {"matchExpressions": [{"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["none"]}]},
		 "namespaceSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}]}}`), meshcni.Identity{})
	require.NoError(t, err)
	set, err := dialect.Configure(builtin.All(), c)
	require.NoError(t, err)
	assert.Equal(t, ambient.Selectors(), set.Others().Lookup(ambient.Name).Policy.Selectors)
}
