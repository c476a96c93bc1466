//go:build linux

package nodeagent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kernel/backends"
	"github.com/meshcni/meshcni/internal/testing/hostroottest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// trying returns what an agent with the settings has tried.
func trying(t *testing.T, change func(*Config)) *tried {
	t.Helper()
	netnstest.Require(t, netnstest.Root)
	_, o := node(t)
	change(&o.Config)
	o = o.withDefaults()
	f := o.newTried(func() Config { return o.Config })
	f.update(t.Context())
	return f
}

// TestBackends: each backend is tried by the rules of every mesh, in a namespace of its own, and what was not tried is not known.
func TestBackends(t *testing.T) {
	own, err := netnsexec.Current()
	require.NoError(t, err)
	defer func() { _ = own.Close() }()
	f := trying(t, func(c *Config) {
		c.Plugin.Backend, c.Plugin.Dialects, c.Ambient.Enabled = "nftables", netconf.Dialects{"ambient", "istio", "linkerd", "kuma", "consul"}, true
	})
	require.NoError(t, f.why())
	assert.Equal(t, ruleset.BackendNftables, f.used(t.Context()))
	assert.Empty(t, f.found.First(ruleset.BackendNftables).Refused)
	live, err := apply.Live(t.Context(), own, apply.Options{Backend: ruleset.BackendNftables})
	require.NoError(t, err)
	for _, r := range live {
		assert.NotContains(t, r.Text, "MESH_", "nothing was made here")
	}

	f = trying(t, func(c *Config) { c.CNIBinDirs = []string{"/host/opt/cni/bin"} })
	require.NoError(t, f.why(), "what cannot be told is no reason")
	assert.Empty(t, f.used(t.Context()))
	assert.ErrorContains(t, f.found.First(ruleset.BackendAuto).Unknown, "does not see the host's programs")
	assert.Equal(t, 1, testutil.CollectAndCount(f), "nftables needs none")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, o := node(t)
	o = o.withDefaults()
	f = o.newTried(func() Config { return o.Config })
	require.ErrorContains(t, f.why(), "the backends have not been tried yet")
	f.update(ended)
	require.Error(t, f.why())
	f.update(t.Context())
	require.NoError(t, f.why(), "the one of before was no answer")
}

// lacksModules are the programs of a host whose kernel has no extensions of xtables.
const lacksModules = `#!/usr/sbin/sh
case $0 in *-save) exit 0;; esac
while read -r line; do case $line in *REDIRECT*|*owner*)
  echo "RULE_APPEND failed (No such file or directory): rule in chain OUTPUT" >&2; exit 4;; esac; done
`

// el10 is the root of such a host, and what mends its programs.
func el10(t *testing.T) (root string, mend func()) {
	t.Helper()
	programs := map[string]string{"sh": "sh", "cat": "cat"}
	for _, p := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"-save", "-restore"} {
			programs[p+"-nft"+verb] = p + "-nft" + verb
		}
	}
	dir := hostroottest.New(t, programs)
	sbin := filepath.Join(dir, "usr/sbin")
	links := map[string]string{}
	for name := range programs {
		if !strings.Contains(name, "tables") {
			continue
		}
		path := filepath.Join(sbin, name)
		to, err := os.Readlink(path)
		require.NoError(t, err)
		links[path] = to
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.WriteFile(path, []byte(lacksModules), 0o755)) //nolint:gosec // a program
	}
	return hostroottest.Process(t, dir), func() {
		for path, to := range links {
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink(to, path))
		}
	}
}

// TestHostWithoutModules: an agent on a host whose iptables is there and takes no rules of pods has the plugin use nftables, and is ready. With
// iptables asked for it is not, does not take the place of an agent that works, and says what would; it is once the programs work.
func TestHostWithoutModules(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	root, mend := el10(t)
	_, o := node(t)
	o.Config.HostRoot, o.Config.HealthAddress = root, ""
	older := start(t, o)
	require.Eventually(t, func() bool { return older.Ready() == nil }, netnstest.Patience, netnstest.Patience/1000)
	require.Eventually(t, func() bool { _, ok := backends.Read(o.Config.RunDir, ruleset.BackendAuto); return ok }, netnstest.Patience, netnstest.Patience/1000)
	broken, _ := backends.Read(o.Config.RunDir, ruleset.BackendAuto)
	assert.Contains(t, broken[ruleset.BackendIptablesNFT], "RULE_APPEND failed")
	n := older.api().node()
	assert.Equal(t, []string{"auto", "nftables", ""}, []string{n.Backend, n.BackendUsed, n.BackendError})
	require.NoError(t, testutil.CollectAndCompare(older.kernel, strings.NewReader(`# HELP meshcni_backend_usable 1: the backend has written pods' rules in an empty network namespace of this host; 0: it has refused them. One that cannot be tried is missing.
# TYPE meshcni_backend_usable gauge
meshcni_backend_usable{backend="iptables-nft"} 0
meshcni_backend_usable{backend="nftables"} 1
`)))

	o.Config.Plugin.Backend = "iptables"
	newer := start(t, o)
	require.Eventually(t, func() bool { err := newer.Ready(); return err != nil && strings.Contains(err.Error(), "works here") }, netnstest.Patience, netnstest.Patience/1000)
	require.ErrorContains(t, newer.Ready(), "no-backend: ")
	require.ErrorContains(t, newer.Ready(), "set backend: nftables, which works here: iptables-nft refuses pods' rules: redirect: ")
	acts, _, _ := newer.turn.now()
	assert.False(t, acts)
	require.NoError(t, older.Ready())
	n = newer.api().node()
	assert.Contains(t, n.BackendError, "set backend: nftables")

	mend()
	require.Eventually(t, func() bool { return newer.Ready() == nil }, netnstest.Patience, netnstest.Patience/1000)
	acts, _, _ = newer.turn.now()
	assert.True(t, acts)
	broken, ok := backends.Read(o.Config.RunDir, ruleset.BackendIptables)
	assert.True(t, ok || broken == nil)
}
