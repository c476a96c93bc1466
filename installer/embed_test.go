//go:build linux

package installer

import (
	"bytes"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// acmeNode is a node of a mesh of one's own, with nothing of meshcni's names in it.
func acmeNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, map[string]string{"10-x.conf": bridgeConf})
	n.Plugin.Type, n.Plugin.Dialects, n.Plugin.PodNamespace = "acme-cni", netconf.Dialects{"acme"}, "acme-system"
	n.BinaryName, n.KubeconfigName, n.Identity = "acme-plugin", "acme.kubeconfig", meshcni.Identity{Name: "acme"}
	require.NoError(t, os.Rename(filepath.Join(n.BinSourceDir, pluginName), filepath.Join(n.BinSourceDir, "acme-plugin")))
	return n
}

// In each mode, the file that the runtime loads has an entry of that type, which the plugin understands, and everything on
// the node has the mesh's own names. Nothing stays after an uninstall.
func TestPluginTypeOfOnesOwn(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		file   string
	}{
		"chained":    {func(*Config) {}, "10-x.conflist"},
		"own file":   {func(c *Config) { c.OwnFile = SwitchOn }, "00-acme-cni.conflist"},
		"for Multus": {func(c *Config) { c.Chained = false }, "acme-cni.conf"},
		"the binary has the plugin's name": {func(c *Config) {
			_ = os.Rename(filepath.Join(c.BinSourceDir, c.BinaryName), filepath.Join(c.BinSourceDir, "acme-cni"))
			c.BinaryName = ""
		}, "10-x.conflist"},
	} {
		t.Run(name, func(t *testing.T) {
			n := acmeNode(t)
			tc.change(&n.Config)
			before := n.tree()
			plan := n.install()
			assert.Equal(t, tc.file, plan.Target)
			entry := n.pluginAsLoaded(tc.file)
			conf, unknown, err := netconf.Parse(entry, meshcni.Identity{})
			require.NoError(t, err)
			assert.Empty(t, unknown)
			assert.Equal(t, []string{"acme-cni", "acme", "acme-system"}, []string{conf.Type, conf.Dialects.String(), conf.PodNamespace})
			assert.Equal(t, filepath.Join(n.RunDir, "acme.kubeconfig"), conf.Kubernetes.Kubeconfig)
			assert.Equal(t, []string{"istio-system"}, conf.Kubernetes.ExcludeNamespaces)

			assert.Equal(t, "#!/bin/true\n", n.read(filepath.Join(n.CNIBinDirs[0], "acme-cni")))
			kubeconfig := n.read(conf.Kubernetes.Kubeconfig)
			assert.Contains(t, kubeconfig, "# Written by acme-node;")
			assert.NotContains(t, kubeconfig, "meshcni")
			inodes := inodesOf(t, n)
			n.install()
			assert.Equal(t, inodes, inodesOf(t, n), "the second install wrote something")

			n.uninstall()
			assert.Equal(t, before, n.tree())
			for _, dir := range []string{n.RunDir, n.CNIBinDirs[0]} {
				assert.Empty(t, n.left(dir))
			}
		})
	}
}

// pluginAsLoaded is the acme-cni plugin of a file as the runtime library hands it over.
func (n *node) pluginAsLoaded(file string) []byte {
	n.t.Helper()
	if filepath.Ext(file) == ".conf" {
		conf, err := libcni.NetworkPluginConfFromBytes([]byte(n.read(n.conf(file))))
		require.NoError(n.t, err)
		return conf.Bytes
	}
	files, err := libcni.ConfFiles(n.CNIConfDir, []string{".conf", ".conflist", ".json"})
	require.NoError(n.t, err)
	require.NotEmpty(n.t, files)
	assert.Equal(n.t, n.conf(file), files[0], "what the runtime loads first")
	list, err := libcni.ConfListFromFile(files[0])
	require.NoError(n.t, err)
	last := list.Plugins[len(list.Plugins)-1]
	require.Equal(n.t, "acme-cni", last.Network.Type)
	return last.Bytes
}

// An agent of one's own keeps a plugin of one's own beside ours.
func TestAgentOfOnesOwn(t *testing.T) {
	n := acmeNode(t)
	a, stop := n.agent(func(o *Options) { onEvents(o); o.UninstallOnExit = true })
	within(t, patience, "ready", ready(a))
	require.NoError(t, os.Remove(filepath.Join(n.CNIBinDirs[0], "acme-cni")))
	require.NoError(t, os.Remove(filepath.Join(n.RunDir, "acme.kubeconfig")))
	within(t, patience, "repaired", func() bool {
		_, noBinary := os.Stat(filepath.Join(n.CNIBinDirs[0], "acme-cni"))
		_, noKubeconfig := os.Stat(filepath.Join(n.RunDir, "acme.kubeconfig"))
		return noBinary == nil && noKubeconfig == nil
	})
	ours := *n
	ours.Config = nodeConfig(filepath.Dir(n.CNIConfDir))
	ours.RunDir = filepath.Join(t.TempDir(), "run")
	ours.write(filepath.Join(n.BinSourceDir, pluginName), "#!/bin/true\n", 0o755)
	ours.install()
	list := n.read(n.conf("10-x.conflist"))
	assert.Contains(t, list, `"acme-cni"`)
	assert.Contains(t, list, `"meshcni"`)
	stop()
	assert.NotContains(t, n.read(n.conf("10-x.conflist")), `"acme-cni"`)
	assert.True(t, ours.captured())
}

// TestNamesOfOnesOwn: no file that an agent of another product makes or keeps has a name of meshcni's, not even while it writes. What it, or
// one that was killed, has left goes with an uninstall.
func TestNamesOfOnesOwn(t *testing.T) {
	for name, own := range map[string]Switch{"chained": SwitchOff, "own file": SwitchOn, "auto": SwitchAuto} {
		t.Run(name, func(t *testing.T) {
			n := acmeNode(t)
			n.OwnFile = own
			require.NoError(t, os.MkdirAll(n.RunDir, 0o755))
			before := n.tree()
			dirs := []string{n.CNIConfDir, n.CNIBinDirs[0], n.RunDir}
			names, err := fsnotify.NewWatcher()
			require.NoError(t, err)
			for _, dir := range dirs {
				require.NoError(t, names.Add(dir))
			}
			left := filepath.Join(n.CNIConfDir, ".10-x.conflist"+diskfile.TempMark+"1")
			require.NoError(t, os.WriteFile(left, []byte("{"), 0o600))
			a, stop := n.agent(onEvents)
			within(t, patience, "ready", ready(a))
			there := func(name string) func() bool {
				return func() bool { _, err := os.Stat(n.conf(name)); return err == nil }
			}
			within(t, patience, "a reserve", there(".acme-reserve-3"))
			assert.NoFileExists(t, left)
			if own != SwitchOn {
				assert.FileExists(t, n.conf("10-x.conf.acme-saved"))
			}
			stop()
			if own == SwitchOff { // as an agent leaves a .conf whose owner's plugin was away
				require.NoError(t, os.Rename(n.conf("10-x.conf.acme-saved"), n.conf("10-x.conf.acme-gone")))
				require.NoError(t, os.Remove(n.conf("10-x.conflist")))
			}
			n.uninstall()
			assert.Equal(t, before, n.tree())
			require.NoError(t, os.WriteFile(n.conf("end"), nil, 0o600))
			seen := map[string]bool{}
			for !seen["end"] {
				select {
				case ev := <-names.Events:
					seen[filepath.Base(ev.Name)] = true
				case err := <-names.Errors:
					require.NoError(t, err)
				}
			}
			require.NoError(t, names.Close())
			assert.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(seen)), diskfile.IsTemp), "%v", seen)
			for name := range seen {
				assert.NotContains(t, name, pluginName)
			}
		})
	}
}

func TestInvalidNames(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"the type":               func(c *Config) { c.Plugin.Type = "../acme" },
		"no type":                func(c *Config) { c.Plugin.Type = "" },
		"the binary":             func(c *Config) { c.BinaryName = "a/b" },
		"the kubeconfig":         func(c *Config) { c.KubeconfigName = ".." },
		"a path of the plugin's": func(c *Config) { c.Plugin.RunDir = "/run/acme" },
		"a deadline":             func(c *Config) { c.Plugin.AddDeadline = -1 },
	} {
		c := Default(meshcni.Identity{})
		change(&c)
		require.Error(t, c.Validate(), name)
	}
}

// A first install is not the repair of an entry that somebody has removed.
func TestFirstInstallIsNoRepair(t *testing.T) {
	for file, data := range map[string]string{"10-calico.conflist": calicoList, "10-x.conf": bridgeConf} {
		n := newNode(t, map[string]string{file: data})
		var log bytes.Buffer
		_, err := Install(t.Context(), n.Config, slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		assert.Contains(t, log.String(), "cause="+string(causeFirstInstall))
		for _, cause := range losses {
			assert.NotContains(t, log.String(), "cause="+string(cause))
		}
	}
}

// A missing file is named, and not the directory in which it should be; of a missing directory, the highest.
func TestWhatIsMissingIsNamed(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.BinaryName = "acme-plugin"
	_, err := Install(t.Context(), n.Config, discard)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "("+filepath.Join(n.BinSourceDir, "acme-plugin")+" does not exist")
	n.BinSourceDir = filepath.Join(n.RunDir, "a", "b")
	_, err = Install(t.Context(), n.Config, discard)
	require.ErrorContains(t, err, "("+filepath.Join(n.RunDir, "a")+" does not exist")
}

// A run directory that is full when the agent begins keeps it from capturing pods, and from nothing else: it reports why,
// and goes on when there is room.
func TestFullRunDirectoryAtTheStart(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	require.NoError(t, os.Mkdir(n.RunDir, 0o755))
	mount(t, n.RunDir, "size=16k")
	filler := fill(t, n.RunDir)
	a, _ := n.agent(onEvents)
	within(t, patience, "looked", func() bool { return code(a) == string(codeWriteFailed) })
	assert.FileExists(t, n.binary())
	assert.Contains(t, strings.Join(strings.Fields(scrape(t, a)), " "), `meshcni_failures_total{step="lease"} `)
	require.NoError(t, os.Remove(filler))
	within(t, patience, "ready", ready(a))
	assert.True(t, n.captured())
	within(t, patience, "the lease is taken", func() bool { _, err := os.Stat(filepath.Join(n.RunDir, "agent")); return err == nil })
}
