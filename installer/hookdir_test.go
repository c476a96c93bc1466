//go:build linux

package installer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/hookfile"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// The plugin lies where the runtime starts it by itself, is kept there as it is to be, and goes with an uninstall, or when it is not wanted any more. What
// a runtime would take for a plugin is never there half-written.
func TestHookPlugin(t *testing.T) {
	for _, alone := range []bool{false, true} {
		t.Run(map[bool]string{true: "alone", false: "chained"}[alone], func(t *testing.T) {
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			n.HookDir, n.Preinstall, n.Alone = filepath.Join(t.TempDir(), "plugins"), "capture", alone
			require.NoError(t, os.Mkdir(n.HookDir, 0o755))
			at := hookfile.In(n.HookDir, "meshcni")
			whole := func(program string) func() bool {
				return func() bool {
					text, _ := os.ReadFile(at.Link)
					info, err := os.Stat(at.Link)
					return err == nil && info.Mode().Perm() == 0o755 && string(text) == program
				}
			}
			poll := func(o *Options) { o.Poll = 10 * time.Millisecond }
			a, stop := n.agent(poll)
			within(t, patience, "it is there", whole("#!/bin/true\n"))
			within(t, patience, "ready", ready(a))
			var s hookfile.Settings
			require.NoError(t, json.Unmarshal([]byte(n.read(at.Settings)), &s))
			assert.False(t, s.Gate)
			c, unknown, err := netconf.Parse(s.Entry, n.Identity)
			require.NoError(t, err)
			assert.Equal(t, n.RunDir, c.RunDir)
			assert.Empty(t, unknown)
			assert.Equal(t, alone, c.Agent == netconf.AgentRequire, "alone there are no credentials")
			assert.Equal(t, []string{".meshcni", "90-meshcni"}, n.left(n.HookDir))

			n.put(filepath.Join(n.BinSourceDir, pluginName), "v2")
			within(t, patience, "updated", whole("v2"))
			require.NoError(t, os.Remove(at.Settings))
			require.NoError(t, os.Remove(at.Link))
			n.put(at.Link, "another's")
			within(t, patience, "mended", func() bool {
				_, err := os.Stat(at.Settings)
				return err == nil && whole("v2")()
			})
			stop()

			n.Preinstall = "off"
			a, stop = n.agent(poll)
			within(t, patience, "it goes where it is not wanted", func() bool { return len(n.left(n.HookDir)) == 0 })
			within(t, patience, "ready", ready(a))
			stop()

			n.Preinstall = "gate"
			a, stop = n.agent(poll)
			within(t, patience, "it is there again", whole("v2"))
			within(t, patience, "ready", ready(a))
			stop()
			require.NoError(t, json.Unmarshal([]byte(n.read(at.Settings)), &s))
			assert.True(t, s.Gate)
			n.cached("pod-1", n.read(n.conf("10-calico.conflist")), nil)
			n.uninstall()
			assert.Empty(t, n.left(n.HookDir), "whatever pods are there")
		})
	}
}

func TestHookPluginSettings(t *testing.T) {
	n := newNode(t, nil)
	for says, change := range map[string]func(*Config){
		"preinstall=gate needs nri-plugin-dir": func(c *Config) { c.Preinstall = "gate" },
		`preinstall "yes"`:                     func(c *Config) { c.Preinstall = "yes" },
		`nri-plugin-dir "plugins"`:             func(c *Config) { c.HookDir = "plugins" },
	} {
		c := n.Config
		change(&c)
		assert.ErrorContains(t, c.Validate(), says)
	}
}
