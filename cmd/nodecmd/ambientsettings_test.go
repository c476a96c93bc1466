package nodecmd

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// TestAmbientSettings: the dialect's settings come from flags, the environment and the file, and reach the plugin's entry.
func TestAmbientSettings(t *testing.T) {
	const want = `{"dns_capture": false, "ipv6": false, "probe_ipv4": "198.18.0.1", "probe_ipv6": "2001:db8::7",
		"enablement_selectors": [{"podSelector": {"matchLabels": {"tier": "web"}}}]}`
	equal := func(c netconf.Config, what string) {
		t.Helper()
		assert.JSONEq(t, want, string(c.Meshes["ambient"]), what)
	}
	file := filepath.Join(t.TempDir(), "config.yaml")
	for name, text := range map[string]string{
		"a list": "ambient-enablement-selectors:\n- podSelector: {matchLabels: {tier: web}}\n",
		"text":   `ambient-enablement-selectors: '[{"podSelector": {"matchLabels": {"tier": "web"}}}]'`,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text+"\nambient-dns-capture: false\nambient-ipv6: false\nambient-probe-ipv4: 198.18.0.1\nambient-probe-ipv6: 2001:db8::7\n"), 0o600))
		s, err := parsed(map[string]string{"MESHCNI_CONFIG": file})
		require.NoError(t, err, name)
		equal(s.Plugin, name)
		equal(s.Effective(), name)
	}
	s, err := parsed(map[string]string{
		"MESHCNI_AMBIENT_IPV6": "false", "MESHCNI_AMBIENT_ENABLEMENT_SELECTORS": "- podSelector: {matchLabels: {tier: web}}", "MESHCNI_AMBIENT_PROBE_IPV4": "198.18.0.1",
	}, "--ambient-dns-capture=false", "--ambient-probe-ipv6=2001:db8::7")
	require.NoError(t, err)
	equal(s.Plugin, "environment and flags")

	entry, err := s.Entry()
	require.NoError(t, err)
	c, unknown, err := netconf.Parse(entry, meshcni.Identity{})
	require.NoError(t, err)
	assert.Equal(t, []string{"ambient"}, unknown)
	equal(c, "entry")

	// A template that says nothing of them gets them too.
	s.PluginConfig = `{"type": "meshcni"}`
	entry, err = s.Entry()
	require.NoError(t, err)
	c, _, err = netconf.Parse(entry, meshcni.Identity{})
	require.NoError(t, err)
	equal(c, "template")

	s, err = parsed(nil, "--ambient-enablement-selectors=[]")
	require.NoError(t, err)
	assert.JSONEq(t, `{"enablement_selectors": []}`, string(s.Plugin.Meshes["ambient"]), "nobody")

	_, err = parsed(nil, "--ambient-dns-capture=perhaps")
	require.Error(t, err)
	for flag, says := range map[string]string{
		`--ambient-enablement-selectors=[{"podselector": {}}]`: "ambient-enablement-selectors: [0].podselector: unknown key",
		"--ambient-enablement-selectors={}":                    "want a list of objects",
		"--ambient-probe-ipv4=ten":                             `ambient-probe-ipv4: "ten" is not an IP address`,
	} {
		_, err = parsed(nil, flag)
		assert.ErrorContains(t, err, says)
	}
}

// TestDrainTimeout: 0 is no default, but at once.
func TestDrainTimeout(t *testing.T) {
	for flag, want := range map[string]time.Duration{"": 12 * time.Second, "--ambient-drain-timeout=0": 0, "--ambient-drain-timeout=1m5s": 65 * time.Second} {
		args := []string{"--ambient", "--node-name=a"}
		if flag != "" {
			args = append(args, flag)
		}
		s, err := parsed(nil, args...)
		require.NoError(t, err, flag)
		assert.Equal(t, want, s.Ambient.DrainTimeout, flag)
	}
	s, err := parsed(map[string]string{"MESHCNI_AMBIENT_DRAIN_TIMEOUT": "3s"}, "--ambient", "--node-name=a")
	require.NoError(t, err)
	assert.Equal(t, 3*time.Second, s.Ambient.DrainTimeout)
	_, err = parsed(nil, "--ambient", "--node-name=a", "--ambient-drain-timeout=-1s")
	require.ErrorContains(t, err, "ambient-drain-timeout -1s: must not be negative")
	s, err = parsed(nil, "--ambient", "--node-name=a", "--ambient-drain-minimum=7s")
	require.NoError(t, err)
	assert.Equal(t, 7*time.Second, s.Ambient.DrainMinimum)
	_, err = parsed(nil, "--ambient", "--node-name=a", "--ambient-drain-minimum=0")
	require.ErrorContains(t, err, "ambient-drain-minimum 0s: must be more than 0")
}
