//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/repair"
)

// TestRepairFollowsTheConfiguration: repair starts anew with settings that it knows, its metrics and readiness with it, and for no others. What
// is wrong, or needs another agent, changes nothing.
func TestRepairFollowsTheConfiguration(t *testing.T) {
	dir, o := node(t)
	o.Config.Node, o.Config.Repair.Action = "n", repair.ActionLabel
	started := make(chan repair.Options)
	o.open = func(r repair.Options) (controller, error) {
		r.Metrics.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "repairs_total", Help: "x"}))
		return fake(func(ctx context.Context) error {
			select {
			case started <- r:
			case <-ctx.Done():
				return ctx.Err()
			}
			<-ctx.Done()
			return nil
		}), nil
	}
	agent := start(t, o)
	next := func() repair.Options {
		t.Helper()
		select {
		case r := <-started:
			return r
		case <-time.After(netnstest.Patience):
			require.Fail(t, "repair does not start")
		}
		return repair.Options{}
	}
	assert.Equal(t, "istio", next().Meshes.String())
	c := o.Config
	c.Plugin.LogLevel, c.Plugin.AddDeadline = "debug", netconf.Duration(5*time.Second)
	require.NoError(t, agent.Reload(c))
	require.Eventually(t, func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, "net.d/10-calico.conflist"))
		return strings.Contains(string(data), `"add_deadline":"5s"`)
	}, netnstest.Patience, 2*time.Millisecond)
	c.Plugin.Dialects, c.Plugin.UncapturedFamily = netconf.Dialects{"linkerd"}, redirect.UncapturedDrop
	c.Plugin.Kubernetes.ExcludeNamespaces, c.Plugin.Kubernetes.ExcludeNamespaceSelector = []string{"a"}, "mesh=off,!on"
	require.NoError(t, agent.Reload(c))
	r := next() // not the one with another log level
	assert.Equal(t, []any{"linkerd", redirect.UncapturedDrop}, []any{r.Meshes.String(), r.Meshes.Options().UncapturedFamily})
	assert.Contains(t, r.Meshes.Lookup("linkerd").Policy.ExcludedNamespaces, "a")
	assert.Len(t, r.Meshes.Lookup("linkerd").Policy.ExcludedNamespaceLabels, 1)
	c.Plugin.Backend = netconf.Backend(ruleset.BackendNftables)
	require.NoError(t, agent.Reload(c))
	assert.Equal(t, ruleset.BackendNftables, next().Backend)

	for says, change := range map[string]func(*Config){
		"unknown dialect":  func(c *Config) { c.Plugin.Dialects = netconf.Dialects{"klingon"} },
		"need a restart":   func(c *Config) { c.Node = "m" },
		"needs a restart":  func(c *Config) { c.Chained = false },
		"token-lifetime":   func(c *Config) { c.TokenLifetime = 1 },
		"repair-host-root": func(c *Config) { c.HostRoot = "host" },
	} {
		wrong := c
		change(&wrong)
		require.ErrorContains(t, agent.Reload(wrong), says)
	}
	require.NoError(t, agent.Reload(c))
	c.Plugin.RefuseProxyUID = true
	require.NoError(t, agent.Reload(c))
	assert.True(t, next().Meshes.Options().RefuseProxyUID, "nothing else was begun meanwhile")
	require.NoError(t, agent.end())
}

func TestRepairThatEndsEndsTheAgent(t *testing.T) {
	_, o := node(t)
	o.Config.Node, o.Config.Repair.Action = "n", repair.ActionLabel
	a, err := New(o.opens(fake(func(context.Context) error { return errors.New("no right") })))
	require.NoError(t, err)
	require.EqualError(t, a.Run(t.Context()), "no right")
}

// TestRepairAlone: an agent need not install anything, and acts at once.
func TestRepairAlone(t *testing.T) {
	dir, o := node(t)
	o.Config.InstalledElsewhere, o.Config.Node = true, "n"
	runs := make(chan struct{})
	agent := start(t, o.opens(fake(func(ctx context.Context) error { close(runs); <-ctx.Done(); return nil })))
	<-runs
	require.Eventually(t, func() bool { return agent.Ready() == nil }, netnstest.Patience, 10*time.Millisecond)
	require.NoError(t, agent.Healthy())
	assert.NoFileExists(t, dir+"/bin/meshcni")
	require.NoError(t, agent.end())
}
