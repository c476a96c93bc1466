//go:build linux

package installer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const acme = `{"type": "acme-cni", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}`

// cached writes an attachment into libcni's cache, as a runtime does.
func (n *node) cached(name, list string, more map[string]any) string {
	n.t.Helper()
	results := filepath.Join(n.CNICacheDir, "results")
	require.NoError(n.t, os.MkdirAll(results, 0o700))
	info := map[string]any{"kind": "cniCacheV1", "containerId": name, "ifName": "eth0", "networkName": "n1", "config": []byte(list)}
	for key, value := range more {
		info[key] = value
	}
	data, err := json.Marshal(info)
	require.NoError(n.t, err)
	path := filepath.Join(results, "n1-"+name+"-eth0")
	n.write(path, string(data), 0o600)
	return path
}

// What was installed under another name is taken back by an uninstall that is not told it: the entry, the kubeconfig and the
// binary, in each mode, and also when the plugin has had several names.
func TestUninstallWithoutTheSettingsOfTheInstall(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"chained":  func(*Config) {},
		"own file": func(c *Config) { c.OwnFile = SwitchOn },
		"for Multus": func(c *Config) {
			c.Chained = false
			c.PluginConfig = strings.Replace(acme, "{", `{"name": "acme", "cniVersion": "1.0.0", `, 1)
		},
		"a second name": func(c *Config) { c.PluginConfig = strings.ReplaceAll(acme, "acme-cni", "acme-cni-2") },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			plain := n.Config
			n.PluginConfig = acme
			n.install()
			change(&n.Config)
			n.install()
			assert.FileExists(t, filepath.Join(n.CNIBinDirs[0], "acme-cni"))
			plain.Chained, plain.OwnFile, n.Config = n.Chained, n.OwnFile, plain
			n.uninstall()
			assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
			for _, dir := range []string{n.RunDir, n.CNIBinDirs[0]} {
				assert.Empty(t, n.left(dir))
			}
			assert.Len(t, n.tree(), 1)
		})
	}
}

// An entry that is not known to be ours stays, and with it all that it names. The uninstall says so and fails.
func TestNothingThatAnEntryNamesIsRemoved(t *testing.T) {
	const ours = `{"type": "meshcni", "kubernetes": {"kubeconfig": "KUBECONFIG"}}`
	const foreign = `{"type": "theirs", "auth": [{"file": "KUBECONFIG"}]}`
	list := func(entry string) string {
		return `{"name": "n", "cniVersion": "1.0.0", "plugins": [{"type": "a"}, ` + entry + `]}`
	}
	for name, tc := range map[string]struct{ file, data, says string }{
		"another type with our kubeconfig":         {"20-theirs.conflist", list(foreign), `type "theirs" with our kubeconfig`},
		"one that is loaded":                       {"05-theirs.conflist", list(foreign), `type "theirs" with our kubeconfig`},
		"a file of one plugin":                     {"20-theirs.conf", foreign, `type "theirs" with our kubeconfig`},
		"a copy under another name":                {"10-calico.conflist.bak", list(ours), `an entry of type "meshcni"`},
		"a list that is switched off":              {"00-meshcni.conflist.disabled", list(ours), `an entry of type "meshcni"`},
		"a delegate":                               {"20-multus.conf", `{"name": "m", "type": "multus", "delegates": [` + list(ours) + `]}`, `an entry of type "meshcni"`},
		"a delegate that is one plugin":            {"20-flannel.conflist", list(`{"type": "flannel", "delegate": ` + ours + `}`), `an entry of type "meshcni"`},
		"a file that is to be mended":              {"20-theirs.conflist", list(ours) + ",", "no JSON"},
		"likewise, with the kubeconfig":            {"20-theirs.conflist", list(foreign)[1:], "no JSON"},
		"a type in capitals, which libcni decodes": {"20-theirs.conflist.old", list(`{"Type": "meshcni"}`), `an entry of type "meshcni"`},
		"a plugin in a list's directory":           {"n/10-ours.conf", ours, `an entry of type "meshcni"`},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			n.install()
			if dir := filepath.Dir(n.conf(tc.file)); dir != n.CNIConfDir {
				require.NoError(t, os.Mkdir(dir, 0o755))
			}
			data := strings.ReplaceAll(tc.data, "KUBECONFIG", n.kubeconfig())
			n.write(n.conf(tc.file), data, 0o644)
			_, err := Uninstall(t.Context(), n.Config, discard)
			assert.Equal(t, []string{"still-named"}, codes(err))
			require.ErrorContains(t, err, n.conf(tc.file))
			require.ErrorContains(t, err, tc.says)
			assert.FileExists(t, n.binary())
			assert.FileExists(t, n.kubeconfig())
			assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")), "ours goes")
			assert.Equal(t, data, n.read(n.conf(tc.file)), "theirs stays")

			require.NoError(t, os.Remove(n.conf(tc.file)))
			n.uninstall()
			assert.NoFileExists(t, n.binary())
			assert.NoFileExists(t, n.kubeconfig())
		})
	}
}

// What cannot be read may name them.
func TestWhatCannotBeReadMayNameThem(t *testing.T) {
	for name, tc := range unreadable {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			n.install()
			tc.make(t, n, n.conf("20-pods.conflist"))
			_, err := Uninstall(t.Context(), n.Config, discard)
			assert.Equal(t, []string{"still-named"}, codes(err))
			require.ErrorContains(t, err, tc.says)
			assert.FileExists(t, n.binary())
			assert.FileExists(t, n.kubeconfig())
			assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
		})
	}
	t.Run("the directory", func(t *testing.T) {
		n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
		n.install()
		n.CNIConfDir += "-of-another-name"
		_, err := Uninstall(t.Context(), n.Config, discard)
		assert.Equal(t, []string{"conf-dir"}, codes(err))
		assert.FileExists(t, n.binary())
		assert.FileExists(t, n.kubeconfig())
	})
	t.Run("the cache", func(t *testing.T) {
		n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
		n.install()
		require.NoError(t, os.MkdirAll(n.CNICacheDir, 0o755))
		n.write(filepath.Join(n.CNICacheDir, "results"), "a file", 0o644)
		_, err := Uninstall(t.Context(), n.Config, discard)
		assert.Equal(t, []string{"still-named"}, codes(err))
		assert.FileExists(t, n.binary())
	})
}

// A list that a runtime keeps of an attachment counts as one in the directory does.
func TestCachedListThatNamesTheKubeconfig(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.install()
	path := n.cached("c1", `{"name": "n1", "plugins": [{"type": "theirs", "kubeconfig": "`+n.kubeconfig()+`"}]}`, nil)
	_, err := Uninstall(t.Context(), n.Config, discard)
	assert.Equal(t, []string{"still-named"}, codes(err))
	require.ErrorContains(t, err, "n1/c1/eth0")
	assert.FileExists(t, n.kubeconfig())
	require.NoError(t, os.Remove(path))
	n.uninstall()
	assert.NoFileExists(t, n.kubeconfig())
}

// Another mesh's agent on the node goes without taking anything of ours, and the other way round.
func TestTwoAgentsOfTwoMeshes(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.install()
	alone := n.read(n.conf("10-calico.conflist"))
	theirs := *n
	theirs.RunDir, theirs.PluginConfig = filepath.Join(t.TempDir(), "acme"), acme
	theirs.install()
	assert.Contains(t, n.read(n.conf("10-calico.conflist")), "acme-cni")
	theirs.uninstall()
	assert.Equal(t, alone, n.read(n.conf("10-calico.conflist")))
	assert.FileExists(t, n.binary())
	assert.FileExists(t, n.kubeconfig())
	assert.NoFileExists(t, filepath.Join(n.CNIBinDirs[0], "acme-cni"))
}

// TestAgentsOwnPodKeepsNoBinary: the agent that uninstalls was itself attached with the plugin, unless it was the node's
// first. Only of containerd is it known that it will not call it; CRI-O hands over a pod's annotations, too.
func TestAgentsOwnPodKeepsNoBinary(t *testing.T) {
	annotations := map[string]any{netconf.AnnotationsCapability: map[string]string{}}
	crio := map[string]any{netconf.AnnotationsCapability: map[string]string{}, "cgroupPath": "/kubepods/pod1"}
	const byContainerd, byCRIO = "/var/run/netns/cni-6d4bd5a7-8f4b-7c1e-2b0a-0d7e0a5f9a11", "/var/run/netns/6d4bd5a7-8f4b-4c1e-8b0a-0d7e0a5f9a11"
	for name, c := range map[string]struct {
		namespace, pod, netns string
		capabilities          any
		stays                 bool
	}{
		"the agent's":                       {"meshcni-system", "meshcni-node-x2x", byContainerd, annotations, false},
		"another's":                         {"shop", "cart", byContainerd, annotations, true},
		"of its name, elsewhere":            {"shop", "meshcni-node-x2x", byContainerd, annotations, true},
		"of its namespace":                  {"meshcni-system", "other", byContainerd, annotations, true},
		"the agent's, by CRI-O":             {"meshcni-system", "meshcni-node-x2x", byCRIO, crio, true},
		"the agent's, nobody knows by whom": {"meshcni-system", "meshcni-node-x2x", "", annotations, true},
		"the agent's, by an older runtime":  {"meshcni-system", "meshcni-node-x2x", byContainerd, map[string]any{"portMappings": []any{}}, true},
		"nobody says whose":                 {"", "", byContainerd, nil, true},
	} {
		for _, from := range []string{"netns", "result"} {
			t.Run(name+"/"+from, func(t *testing.T) {
				n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
				n.install()
				info := map[string]any{
					"cniArgs":        [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", c.namespace}, {"K8S_POD_NAME", c.pod}},
					"capabilityArgs": c.capabilities,
					"result":         map[string]any{"interfaces": []any{map[string]any{"name": "veth1"}, map[string]any{"name": "eth0"}}},
				}
				if from == "netns" {
					info["netns"] = c.netns
				} else { // before libcni 1.2
					info["result"] = map[string]any{"interfaces": []any{map[string]any{"name": "veth1"}, map[string]any{"name": "eth0", "sandbox": c.netns}}}
				}
				n.cached("c1", n.read(n.conf("10-calico.conflist")), info)
				n.uninstall()
				_, err := os.Stat(n.binary())
				assert.Equal(t, c.stays, err == nil)
				assert.NoFileExists(t, n.kubeconfig())
			})
		}
	}
}

// An agent of one's own has its pods' names and namespace in one place each: what the plugin is told and made with.
func TestAgentOfOnesOwnKeepsNoBinary(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.PluginConfig = `{"type": "acme-cni", "pod_namespace": "acme-system"}`
	n.Identity = meshcni.Identity{Name: "acme"}
	n.install()
	binary := filepath.Join(n.CNIBinDirs[0], "acme-cni")
	attached := func(namespace, pod string) string {
		return n.cached(pod, n.read(n.conf("10-calico.conflist")), map[string]any{
			"cniArgs":        [][2]string{{"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", pod}},
			"capabilityArgs": map[string]any{netconf.AnnotationsCapability: map[string]string{}}, "netns": "/run/netns/cni-1",
		})
	}
	attached("acme-system", "acme-node-x2x")
	other := attached("meshcni-system", "meshcni-node-x2x")
	n.uninstall()
	assert.FileExists(t, binary, "that pod is not of this agent")
	require.NoError(t, os.Remove(other))
	n.uninstall()
	assert.NoFileExists(t, binary)
}

// What the plugin has noted of attachments goes with it, and not before.
func TestNotesOfAttachmentsGoWithThePlugin(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.install()
	note := filepath.Join(n.RunDir, "attachments", "c1-eth0")
	require.NoError(t, os.Mkdir(filepath.Dir(note), 0o700))
	n.write(note, "{}", 0o600)
	path := n.cached("c1", n.read(n.conf("10-calico.conflist")), nil)
	n.uninstall()
	assert.FileExists(t, note)
	require.NoError(t, os.Remove(path))
	n.uninstall()
	left, err := os.ReadDir(n.RunDir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// An agent that an uninstall told to rest takes the remainder back when it is free.
func TestRestingAgentTakesTheRemainderBack(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	a, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	theirs := n.conf("20-theirs.conf")
	n.write(theirs, `{"type": "theirs", "kubeconfig": "`+n.kubeconfig()+`"}`, 0o644)
	_, err := Uninstall(t.Context(), n.Config, discard)
	assert.Equal(t, []string{"still-named"}, codes(err))
	within(t, patience, "the agent says so too", func() bool {
		return assert.ObjectsAreEqual([]string{"uninstalled", "still-named"}, codes(a.Ready()))
	})
	assert.FileExists(t, n.kubeconfig())
	require.NoError(t, os.Remove(theirs))
	within(t, patience, "gone", func() bool { _, err := os.Stat(n.kubeconfig()); return err != nil })
	within(t, patience, "resting", func() bool { return assert.ObjectsAreEqual([]string{"uninstalled"}, codes(a.Ready())) })
}

// An attachment in a form that is not expected counts all the same, and a pipe is not waited for.
func TestAttachmentsOfAnotherForm(t *testing.T) {
	for key, value := range map[string]any{
		"result": map[string]any{"interfaces": map[string]any{"eth0": "x"}}, "cniArgs": map[string]any{"a": "b"}, "netns": 3,
		"capabilityArgs": []any{},
	} {
		n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
		n.install()
		n.cached("c1", n.read(n.conf("10-calico.conflist")), map[string]any{key: value})
		n.uninstall()
		assert.FileExists(t, n.binary(), key)
	}
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.install()
	require.NoError(t, os.MkdirAll(filepath.Join(n.CNICacheDir, "results"), 0o700))
	require.NoError(t, unix.Mkfifo(filepath.Join(n.CNICacheDir, "results", "n1-c1-eth0"), 0o600))
	_, err := Uninstall(t.Context(), n.Config, discard)
	assert.Equal(t, []string{"still-named"}, codes(err))
	assert.FileExists(t, n.binary())
}
