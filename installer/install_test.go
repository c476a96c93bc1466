//go:build linux

package installer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

// Every node file of the corpus, byte for byte through install, install, uninstall, in each mode.
func TestNodeFilesThereAndBack(t *testing.T) {
	paths, err := filepath.Glob("../conflist/testdata/nodes/*")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, own := range []Switch{SwitchOff, SwitchOn, SwitchAuto} {
		for _, path := range paths {
			name := filepath.Base(path)
			t.Run("own-file="+string(own)+"/"+name, func(t *testing.T) {
				data, err := os.ReadFile(path)
				require.NoError(t, err)
				n := newNode(t, map[string]string{name: string(data), "notes.txt": "x"})
				n.OwnFile = own
				if own == SwitchOn && name < n.ownName() {
					n.CNIConfName = "00-00.conflist"
				}
				if os.Geteuid() == 0 {
					require.NoError(t, os.Chown(n.conf(name), 1234, 4321))
				}
				before := n.tree()
				was := n.loaded()

				if own == SwitchOn && delegating(was.File) != "" {
					_, err := Install(t.Context(), n.Config, discard)
					require.ErrorContains(t, err, "self-delegating: ")
					assert.Equal(t, before, n.tree())
					return
				}
				steps := n.install()
				is := n.loaded()
				assert.Equal(t, steps.Target, is.Name)
				require.True(t, n.captured())
				assert.Equal(t, was.File.Network(), is.File.Network())
				_, err = libcni.ConfListFromFile(n.conf(is.Name))
				require.NoError(t, err)
				if own == SwitchOn {
					assert.Equal(t, string(data), n.read(n.conf(name)), "the owner's file is left alone")
				}

				after := n.tree()
				inodes := inodesOf(t, n)
				n.install()
				assert.Equal(t, after, n.tree())
				assert.Equal(t, inodes, inodesOf(t, n), "the second install wrote something")

				n.uninstall()
				assert.Equal(t, before, n.tree())
				assert.NoFileExists(t, n.binary())
				assert.NoFileExists(t, n.kubeconfig())
			})
		}
	}
}

func inodesOf(t *testing.T, n *node) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, dir := range []string{n.CNIConfDir, n.CNIBinDirs[0], n.RunDir} {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			var st unix.Stat_t
			require.NoError(t, unix.Lstat(filepath.Join(dir, e.Name()), &st))
			out[dir+"/"+e.Name()] = st.Ino
		}
	}
	return out
}

func TestInstallWritesWhatThePluginReads(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.KubernetesHost, n.KubernetesPort = "fd00::1", "6443"
	n.install()
	p := pluginOf(t, n.loaded().File, pluginName)
	var got map[string]any
	require.NoError(t, json.Unmarshal(p.Raw, &got))
	assert.Equal(t, map[string]any{
		"type": "meshcni", "dialect": "istio", "backend": "auto", "log_level": "info", "run_dir": n.RunDir,
		"pod_namespace": "meshcni-system", "add_deadline": "30s",
		"kubernetes": map[string]any{
			"kubeconfig": n.RunDir + "/kubeconfig", "exclude_namespaces": []any{"istio-system"}, "cni_bin_dir": n.CNIBinDirs[0],
		},
		"capabilities": map[string]any{"io.kubernetes.cri.pod-annotations": true},
	}, got)
	kubeconfig := n.read(n.kubeconfig())
	assert.Contains(t, kubeconfig, `server: "https://[fd00::1]:6443"`)
	assert.Contains(t, kubeconfig, `token: "token-1"`)
	assert.Contains(t, kubeconfig, base64.StdEncoding.EncodeToString([]byte("the CA")))
	info, err := os.Stat(n.kubeconfig())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	info, err = os.Stat(n.binary())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o755), info.Mode())
}

// The entry of the defaults, as it has been since the first version; what it leaves out means the same to the plugin.
func TestDefaultEntry(t *testing.T) {
	c := Default(meshcni.Identity{})
	entry, err := c.Entry()
	require.NoError(t, err)
	assert.Equal(t, `{
  "type": "meshcni",
  "dialect": "istio",
  "backend": "auto",
  "log_level": "info",
  "run_dir": "/var/run/meshcni",
  "pod_namespace": "meshcni-system",
  "add_deadline": "30s",
  "kubernetes": {
    "kubeconfig": "/var/run/meshcni/kubeconfig",
    "exclude_namespaces": [],
    "cni_bin_dir": "/opt/cni/bin"
  },
  "capabilities": {
    "io.kubernetes.cri.pod-annotations": true
  }
}
`, string(entry))
	c.PluginConfig = `{"type": "acme"}`
	assert.Equal(t, "meshcni-system", c.agentNamespace())
	require.NoError(t, Default(meshcni.Identity{}).Validate())
}

func TestOnHost(t *testing.T) {
	c := Default(meshcni.Identity{})
	entry, err := c.Entry()
	require.NoError(t, err)
	assert.Contains(t, string(entry), `"cni_bin_dir": "/opt/cni/bin"`)
	assert.NotContains(t, string(entry), "/host")
}

func pluginOf(t *testing.T, f *conflist.File, typ string) conflist.Plugin {
	t.Helper()
	i := slices.IndexFunc(f.Plugins(), func(p conflist.Plugin) bool { return p.Type == typ })
	require.GreaterOrEqual(t, i, 0)
	return f.Plugins()[i]
}

func TestTemplate(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.Plugin.Kubernetes.ExcludeNamespaces = nil
	n.PluginConfig = `{"type": "istio-cni", "kubeconfig": "__KUBECONFIG_FILEPATH__", "log_level": "__LOG_LEVEL__"}`
	n.install()
	p := pluginOf(t, n.loaded().File, "istio-cni")
	assert.JSONEq(t, `{"type": "istio-cni", "kubeconfig": "`+n.kubeconfig()+`", "log_level": "info"}`, string(p.Raw))
	assert.FileExists(t, filepath.Join(n.CNIBinDirs[0], "istio-cni"), "the binary is named as the entry's type")
	n.uninstall()
	assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))

	for _, bad := range []string{`{`, `{"type": "../evil"}`, `[]`, `{"name": "x"}`} {
		n.PluginConfig = bad
		_, err := Install(t.Context(), n.Config, discard)
		require.ErrorIs(t, err, conflist.ErrInvalid, bad)
	}
}

// A template has the settings that it does not state itself, and the plan notes those that it states otherwise.
func TestSettingsBesideATemplate(t *testing.T) {
	for name, tc := range map[string]struct{ template, want, note string }{
		"added": {
			`{"type": "acme-cni", "mtu": 18446744073709551615}`,
			`{"type": "acme-cni", "mtu": 18446744073709551615, "dialect": "acme", "kubernetes": {"exclude_namespaces": ["a&b"]}}`, "",
		},
		"added to an object": {
			`{"type": "acme-cni", "dialect": "acme", "kubernetes": {"kubeconfig": "k"}}`,
			`{"type": "acme-cni", "dialect": "acme", "kubernetes": {"kubeconfig": "k", "exclude_namespaces": ["a&b"]}}`, "",
		},
		"stated": {
			`{"type": "acme-cni",  "dialect": "acme", "kubernetes": {"exclude_namespaces": ["a&b"]}}`,
			`{"type": "acme-cni",  "dialect": "acme", "kubernetes": {"exclude_namespaces": ["a&b"]}}`, "",
		},
		"stated otherwise": {
			`{"type": "acme-cni", "dialect": "kuma", "kubernetes": {"exclude_namespaces": []}}`,
			`{"type": "acme-cni", "dialect": "kuma", "kubernetes": {"exclude_namespaces": []}}`,
			"the template's dialect, exclude_namespaces",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			n.Plugin.Dialects, n.Plugin.Kubernetes.ExcludeNamespaces = netconf.Dialects{"acme"}, []string{"a&b"}
			n.PluginConfig = tc.template
			plan := n.install()
			p := pluginOf(t, n.loaded().File, "acme-cni")
			require.JSONEq(t, tc.want, string(p.Raw))
			if tc.template == tc.want {
				entry, err := n.Entry()
				require.NoError(t, err)
				assert.Equal(t, tc.template, string(entry), "what adds nothing changes no byte")
			}
			assert.Equal(t, strings.Contains(tc.want, "18446744073709551615"), strings.Contains(string(p.Raw), "18446744073709551615"), "no float64 can hold it")
			notes := strings.Join(plan.Notes, "\n")
			assert.Contains(t, notes, tc.note)
			assert.Equal(t, tc.note != "", strings.Contains(notes, "template"))
		})
	}
}

func TestInstallBlocked(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		given func(*node)
		code  string
		says  []string
	}{
		{"nothing there", nil, nil, "no-network", []string{"no .conf"}},
		{"nothing valid", map[string]string{"10-a.conflist": "", "20-b.conf": "{}"}, nil, "no-network", []string{"10-a.conflist", "empty", "20-b.conf", `"type"`}},
		{"no directory", nil, func(n *node) { os.RemoveAll(n.CNIConfDir) }, "conf-dir", []string{"net.d", "--cni-conf-dir"}},
		{"no binary directory", nil, func(n *node) { os.RemoveAll(n.CNIBinDirs[0]) }, "bin-dir", []string{"bin", "--cni-bin-dir"}},
		{"no binary", nil, func(n *node) { os.RemoveAll(n.BinSourceDir) }, "no-binary", []string{"image/meshcni", "--bin-source-dir"}},
		{"no token", nil, func(n *node) { os.RemoveAll(n.ServiceAccountDir) }, "no-credentials", []string{"token", "--service-account-dir"}},
		{"no address", nil, func(n *node) { n.KubernetesHost = "" }, "no-api-server", []string{"KUBERNETES_SERVICE_HOST"}},
		{"named file missing", map[string]string{"10-a.conflist": calicoList}, func(n *node) { n.CNIConfName = "20-b.conf" }, "named-file-missing", []string{"20-b.conf"}},
		{"named file invalid", map[string]string{"10-a.conflist": "{"}, func(n *node) { n.CNIConfName = "10-a.conf" }, "named-file-missing", []string{"10-a.conflist", "line 1"}},
		{"drop-ins", map[string]string{"10-a.conflist": `{"name":"n"}`}, func(n *node) {
			_ = os.Mkdir(n.conf("n"), 0o755)
			n.write(n.conf("n/a.conf"), bridgeConf, 0o644)
		}, "no-inline-plugins", []string{"10-a.conflist"}},
		{"a version the plugin does not speak", map[string]string{"10-a.conflist": strings.Replace(calicoList, "0.3.1", "0.2.0", 1)}, func(n *node) {
			n.write(filepath.Join(n.BinSourceDir, pluginName), "#!/bin/sh\n[ $CNI_COMMAND = VERSION ] && echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.3.1\",\"1.0.0\"]}'\n", 0o755)
		}, "unsupported-version", []string{"10-a.conflist", "0.2.0", "0.3.1, 1.0.0"}},
		{"a version of its own that the plugin does not speak", nil, func(n *node) {
			n.Chained, n.OwnFile, n.PluginConfig = false, SwitchOff, `{"type": "meshcni", "cniVersion": "9.9.9"}`
			n.write(filepath.Join(n.BinSourceDir, pluginName), "#!/bin/sh\n[ $CNI_COMMAND = VERSION ] && echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.3.1\",\"1.0.0\"]}'\n", 0o755)
		}, "unsupported-version", []string{"template", "9.9.9", "0.3.1, 1.0.0"}},
		{"own name taken", map[string]string{"00-meshcni.conflist": calicoList}, func(n *node) { n.OwnFile = SwitchOn }, "own-name-taken", []string{"00-meshcni.conflist"}},
		{"own name sorts later", map[string]string{"00-a.conflist": calicoList}, func(n *node) { n.OwnFile = SwitchOn }, "sorts-later", []string{"00-a.conflist", "--cni-conf-name"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, tc.files)
			if tc.given != nil {
				tc.given(n)
			}
			_, err := Install(t.Context(), n.Config, discard)
			var blocked *BlockedError
			require.ErrorAs(t, err, &blocked)
			assert.Equal(t, status.Code(tc.code), blocked.Code)
			for _, s := range tc.says {
				assert.ErrorContains(t, err, s)
			}
		})
	}
}

func TestNamedFileMaySwapItsSuffix(t *testing.T) {
	n := newNode(t, map[string]string{"05-cilium.conflist": ciliumList, "10-calico.conflist": calicoList})
	n.CNIConfName = "10-calico.conf"
	assert.Equal(t, "10-calico.conflist", n.install().Target)
	assert.Equal(t, ciliumList, n.read(n.conf("05-cilium.conflist")))
}

func TestStandalone(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.Chained = false
	before := n.tree()
	n.install()
	_, err := libcni.NetworkPluginConfFromBytes([]byte(n.read(n.conf("meshcni.conf"))))
	require.NoError(t, err)
	assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
	n.uninstall()
	assert.Equal(t, before, n.tree())
}

// A list of somebody else that stood in the shadow of a .conf of the same stem comes back too.
func TestListInTheShadowOfAConf(t *testing.T) {
	n := newNode(t, map[string]string{"10-x.conf": bridgeConf, "10-x.conflist": calicoList})
	before := n.tree()
	n.install()
	assert.Equal(t, "kubernetes", n.loaded().File.Network())
	require.True(t, n.captured())
	n.uninstall()
	assert.Equal(t, before, n.tree())
}

func TestOwnerWritesItsConfAnew(t *testing.T) {
	n := newNode(t, map[string]string{"10-x.conf": bridgeConf})
	n.install()
	changed := strings.Replace(bridgeConf, "0.4.0", "1.0.0", 1)
	n.put(n.conf("10-x.conf"), changed)
	n.install()
	assert.Equal(t, "1.0.0", n.loaded().File.CNIVersion())
	require.True(t, n.captured())
	n.uninstall()
	assert.Equal(t, changed, n.read(n.conf("10-x.conf")))
	assert.Len(t, n.tree(), 1)
}

func TestAnEarlierFileTakesOver(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.install()
	n.put(n.conf("05-cilium.conflist"), ciliumList)
	n.put(n.conf("99-x.conflist.cilium_bak"), n.read(n.conf("10-calico.conflist")))
	assert.Equal(t, "05-cilium.conflist", n.install().Target)
	assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")), "our entry is left behind nowhere")
	assert.Equal(t, calicoList, n.read(n.conf("99-x.conflist.cilium_bak")))
}

func TestFromChainedToOwnFileAndBack(t *testing.T) {
	n := newNode(t, map[string]string{"10-x.conf": bridgeConf})
	before := n.tree()
	n.install()
	n.OwnFile = SwitchOn
	assert.Equal(t, "00-meshcni.conflist", n.install().Target)
	assert.Equal(t, bridgeConf, n.read(n.conf("10-x.conf")))
	assert.Len(t, n.tree(), 2)
	n.OwnFile = SwitchOff
	assert.Equal(t, "10-x.conflist", n.install().Target)
	n.uninstall()
	assert.Equal(t, before, n.tree())
}

func TestBinaryStaysWhileAttachmentsNeedIt(t *testing.T) {
	for _, dir := range []string{"results", "cache/results"} { // the second is cri-dockerd's
		n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
		n.install()
		logs := []string{filepath.Join(n.RunDir, "plugin.log"), filepath.Join(n.RunDir, "plugin.log.1")}
		for _, path := range logs {
			n.write(path, "{}", 0o600)
		}
		results := filepath.Join(n.CNICacheDir, dir)
		require.NoError(t, os.MkdirAll(results, 0o700))
		cached := func(list []byte) string {
			data, err := json.Marshal(map[string]any{"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "n1", "config": list})
			require.NoError(t, err)
			return string(data)
		}
		n.write(results+"/n1-c1-eth0", cached([]byte(n.read(n.conf("10-calico.conflist")))), 0o600)
		n.write(results+"/n1-c2-eth0", cached([]byte(calicoList)), 0o600)
		n.write(results+"/garbage", "{", 0o600)
		steps := n.uninstall()
		assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
		assert.NoFileExists(t, n.kubeconfig())
		assert.FileExists(t, n.binary())
		assert.FileExists(t, logs[0], "it is written to still")
		require.Len(t, steps.Notes, 1)
		assert.Contains(t, steps.Notes[0], "n1/c1/eth0")

		require.NoError(t, os.Remove(results+"/n1-c1-eth0"))
		n.uninstall()
		assert.NoFileExists(t, n.binary())
		left, err := os.ReadDir(n.RunDir)
		require.NoError(t, err)
		assert.Empty(t, left)
	}
}

func TestWrongConfigurationIsReportedAtOnce(t *testing.T) {
	c := Default(meshcni.Identity{})
	c.Plugin.LogLevel, c.Plugin.Backend, c.RunDir, c.CNIConfName, c.OwnFile, c.Chained = "x", "y", "run", "../a.conf", SwitchOn, false
	err := c.Validate()
	for _, key := range []string{"log_level", "backend", "run-dir", "cni-conf-name", "own-file"} {
		require.ErrorContains(t, err, key)
	}
	_, err = Install(t.Context(), c, discard)
	var blocked *BlockedError
	assert.False(t, errors.As(err, &blocked))
	require.Error(t, err)
}
