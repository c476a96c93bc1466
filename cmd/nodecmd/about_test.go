//go:build linux

package nodecmd

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
	s := Settings{Config: installer.Config{CNIBinDirs: []string{"/host/nowhere/bin", "/proc/sys"}, CNIConfDir: dir + "/net.d", CNICacheDir: dir + "/file", RunDir: dir + "/run"}}
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

// TestRights: each setting that needs a right asks for it, and without it nobody does.
func TestRights(t *testing.T) {
	_, env := node(t)
	env["NODE_NAME"], env["POD_NAMESPACE"] = "n1", "mesh"
	app := Program{Env: lookup(env)}
	asked := func(args ...string) map[string]bool {
		s, err := app.Parse(append([]string{"run"}, args...))
		require.NoError(t, err)
		all, err := app.Rights(s)
		require.NoError(t, err)
		got := map[string]bool{}
		for _, r := range all {
			got[strings.TrimSpace(r.Account+" "+rights.Text(r.Attributes))] = true
			assert.NotEmpty(t, r.For)
			if selector := r.Attributes.FieldSelector; selector != nil {
				assert.Equal(t, []string{"n1"}, selector.Requirements[0].Values)
			}
		}
		return got
	}
	usual := asked()
	assert.Equal(t, map[string]bool{
		"meshcni-plugin get pods": true, "create serviceaccounts/token meshcni-plugin in namespace mesh": true, "list pods": true, "watch pods": true,
		"create events": true, "patch events": true, "create events in namespace default": true, "patch events in namespace default": true,
	}, usual)
	env["CNI_NETWORK_CONFIG"] = `{"type": "meshcni", "kubernetes": {"exclude_namespace_selector": "mesh=off"}}`
	assert.True(t, asked()["meshcni-plugin get namespaces"], "the plugin goes by the template, whatever the flags are")
	delete(env, "CNI_NETWORK_CONFIG")
	for args, more := range map[string][]string{
		"--repair=delete":                       {"create pods/eviction"},
		"--repair=label":                        {"patch pods/status"},
		"--write-status":                        {"meshcni-plugin patch pods/status"},
		"--exclude-namespace-selector=mesh=off": {"meshcni-plugin get namespaces", "list namespaces", "watch namespaces", "get namespaces"},
		"--uninstall-on-exit=auto":              {"get daemonsets.apps meshcni-node in namespace mesh", "list daemonsets.apps meshcni-node in namespace mesh", "watch daemonsets.apps meshcni-node in namespace mesh", "get namespaces mesh in namespace mesh"},
	} {
		want := map[string]bool{}
		for right := range usual {
			want[right] = true
		}
		for _, right := range more {
			want[right] = true
		}
		assert.Equal(t, want, asked(args), args)
	}
	assert.NotContains(t, asked("--agent=require"), "meshcni-plugin get pods")
	assert.NotContains(t, asked("--agent=off", "--detect=false"), "list pods")
	assert.Contains(t, asked("--plugin-service-account="), "get pods", "the plugin has the agent's token")
	s, err := app.Parse([]string{"run"})
	require.NoError(t, err)
	app.setDefaults()
	all, err := app.rights(s, true)
	require.NoError(t, err)
	assert.Equal(t, "get pods", all[0].Account+rights.Text(all[0].Attributes), "the API server binds no tokens to nodes")
}
