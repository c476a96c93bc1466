//go:build linux

package nodeagent

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/node/api"
)

// TestPlaces: a directory that is not there, is a file or may not be written is said to be.
func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
	require.NoError(t, os.Mkdir(dir+"/net.d", 0o755))
	s := Config{Config: installer.Config{CNIBinDirs: []string{"/host/nowhere/bin", "/proc/sys"}, CNIConfDir: dir + "/net.d", CNICacheDir: dir + "/file", RunDir: dir + "/run"}}
	s.Ambient.Enabled, s.Ambient.ZDSSocket = true, dir+"/z/z.sock"
	got := map[string]string{}
	for _, p := range s.places() {
		got[p.Flag+" "+strings.TrimPrefix(p.Host, dir)] = p.Error
		assert.Equal(t, p.Flag != "cni-cache-dir", p.Writes)
	}
	readOnly := got["cni-bin-dir /proc/sys"]
	delete(got, "cni-bin-dir /proc/sys")
	assert.Equal(t, map[string]string{
		"cni-bin-dir /nowhere/bin": "it is not there", "cni-conf-dir /net.d": "", "cni-cache-dir /file": "it is not a directory",
		"run-dir /run": "it is not there", "zds-socket /z": "it is not there",
	}, got)
	assert.NotEmpty(t, readOnly, "nobody may make files there")
}

// TestOwnTokenOfThePlugin: where the API server binds no tokens to nodes, the agent has to have the plugin's rights.
func TestOwnTokenOfThePlugin(t *testing.T) {
	_, o := node(t)
	o.Config.Node = "n1"
	all, err := o.withDefaults().permissions(o.Config, true)
	require.NoError(t, err)
	assert.Equal(t, "get pods", all[0].Account+api.Text(all[0].Attributes))
}
