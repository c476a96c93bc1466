//go:build linux

package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/rights"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestFeatures: each feature is tried by rules that need it, in a namespace of its own, and what was not tried is not known.
func TestFeatures(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	own, err := netnsexec.Current()
	require.NoError(t, err)
	defer func() { _ = own.Close() }()
	var f features
	all := f.of(t.Context(), apply.Options{Backend: ruleset.BackendNftables}, true, true)
	names := map[agentapi.FeatureName]agentapi.Feature{}
	for _, got := range all {
		names[got.Name] = got
		assert.Equal(t, agentapi.Yes, got.Has, "%+v", got)
		assert.Equal(t, got.Name != agentapi.IPv6, got.Backend == "nftables", got.Name)
	}
	assert.Len(t, names, 6)
	live, err := apply.Live(t.Context(), own, apply.Options{Backend: ruleset.BackendNftables})
	require.NoError(t, err)
	for _, r := range live {
		assert.NotContains(t, r.Text, "MESH_", "nothing was made here")
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, got := range f.of(ended, apply.Options{Backend: ruleset.BackendNftables}, true, false)[1:] {
		assert.Equal(t, agentapi.Unknown, got.Has, "%+v", got)
	}
	assert.Len(t, f.of(t.Context(), apply.Options{Backend: ruleset.BackendNftables}, false, true), 2, "the one of before was no answer, and sidecars are not asked for")
	for _, got := range f.of(t.Context(), apply.Options{Backend: ruleset.BackendAuto, Root: "/"}, true, false)[1:] {
		assert.Equal(t, agentapi.Yes, got.Has, "by whatever is here: %+v", got)
		assert.NotEmpty(t, got.Backend)
	}
	for _, got := range f.of(t.Context(), apply.Options{Backend: ruleset.BackendAuto}, true, false)[1:] {
		assert.Equal(t, agentapi.Unknown, got.Has)
		assert.Contains(t, got.Detail, "does not see the host's programs")
	}
}

// TestFeatureMissing: a kernel that refuses rules has not what they need, and says why.
func TestFeatureMissing(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	dir := t.TempDir() // programs of a host whose kernel has no tables
	for _, name := range []string{"iptables-legacy-restore", "ip6tables-legacy-restore", "iptables-legacy-save", "ip6tables-legacy-save", "iptables-legacy", "ip6tables-legacy"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "usr/sbin"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "usr/sbin", name), []byte("#!/bin/sh\necho 'No chain/target/match by that name.' >&2\nexit 1\n"), 0o755)) //nolint:gosec // a program
	}
	var f features
	o := apply.Options{Backend: ruleset.BackendIptablesLegacy, Root: "/", Path: filepath.Join(dir, "usr/sbin")}
	all := f.of(t.Context(), o, true, false)
	require.NotEmpty(t, all)
	for _, got := range all[1:] {
		assert.Equal(t, agentapi.No, got.Has, "%+v", got)
		assert.Equal(t, "iptables-legacy", got.Backend)
		assert.Contains(t, got.Detail, "No chain/target/match")
	}

	o.Path = "" // what is missing is believed for a while, and then looked for again
	assert.Equal(t, all, f.of(t.Context(), o, true, false))
	f.again = time.Now().Add(-time.Second)
	for _, got := range f.of(t.Context(), o, true, false)[1:] {
		assert.Equal(t, agentapi.Yes, got.Has, "%+v", got)
	}
	assert.Zero(t, f.again)
}

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
	assert.Equal(t, "get pods", all[0].Account+rights.Text(all[0].Attributes))
}
