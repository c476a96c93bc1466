package deploy_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/repair"
)

// machine is a node's directories and a pod's, in a temporary one, as the
// rendered pod mounts them.
type machine struct {
	t    testing.TB
	dir  string
	c    corev1.Container
	conf string // host path of the network's configuration
}

// newMachine lays out what the container sees: host directories where they are
// mounted, with a network, and the ConfigMap's files.
func newMachine(t testing.TB, all objects) *machine {
	t.Helper()
	pod := agentOf(t, all).Spec.Template.Spec
	dir, err := os.MkdirTemp("", "m") // t.TempDir has the test's name in it, and a socket's path has its limit
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{t: t, dir: dir, c: pod.Containers[0]}
	for host, mount := range hostPaths(t, pod) {
		at, _, _ := strings.Cut(mount, " ")
		require.NoError(t, os.MkdirAll(m.path(at), 0o755))
		if slices.Contains(m.c.Args, "--cni-conf-dir="+at) {
			m.conf = host
		}
	}
	m.write("/host"+m.conf+"/10-net.conflist", `{"cniVersion": "0.4.0", "name": "net", "plugins": [{"type": "bridge"}]}`)
	m.write("/opt/meshcni/bin/meshcni", "the plugin")
	at := ""
	for _, v := range m.c.VolumeMounts {
		if v.Name == "config" {
			at = v.MountPath
		}
	}
	m.write("/var/run/secrets/kubernetes.io/serviceaccount/token", "token")
	m.write("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "ca")
	for name, text := range settingsOf(t, all).Data {
		m.write(at+"/"+name, text)
	}
	return m
}

func (m *machine) path(at string) string { return filepath.Join(m.dir, at) }

func (m *machine) write(at, text string) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(filepath.Dir(m.path(at)), 0o755))
	require.NoError(m.t, os.WriteFile(m.path(at), []byte(text), 0o755)) //nolint:gosec // a program among them
}

// args are the container's after "run", with its paths in the temporary directory.
func (m *machine) args() (args []string) {
	m.t.Helper()
	require.Equal(m.t, "run", m.c.Args[0])
	for _, arg := range m.c.Args[1:] {
		name, at, ok := strings.Cut(expand(arg), "=")
		if ok && strings.HasPrefix(at, "/") {
			at = m.path(at)
		}
		args = append(args, name+"="+strings.NewReplacer("$(NODE_NAME)", "node-1", "$(POD_IP)", "10.0.0.1").Replace(at))
	}
	for flag, at := range map[string]string{"bin-source-dir": "/opt/meshcni/bin", "service-account-dir": "/var/run/secrets/kubernetes.io/serviceaccount"} {
		args = append(args, "--"+flag+"="+m.path(at))
	}
	return args
}

// env is the container's environment, and what the kubelet adds.
func (m *machine) env(name string) (string, bool) {
	for _, e := range m.c.Env {
		if e.Name == name && e.ValueFrom != nil {
			v, ok := map[string]string{"spec.nodeName": "node-1", "metadata.namespace": namespace, "status.podIP": "10.0.0.1"}[e.ValueFrom.FieldRef.FieldPath]
			return v, ok
		}
	}
	if v, ok := value(m.c, name); ok {
		return v, true
	}
	v, ok := map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}[name]
	return v, ok
}

// settingsCases are the profiles, ways of chaining, backends and options, with their names.
func settingsCases(t testing.TB) (names []string, all []values) {
	t.Helper()
	cases := map[string]values{}
	for _, profile := range profiles(t) {
		cases["profile "+profile] = values{"profile": profile}
	}
	for name, v := range chaining {
		cases[name] = v
	}
	for _, backend := range backends {
		cases["backend "+backend] = values{"backend": backend}
	}
	for _, name := range dialectNames {
		cases["dialect "+name] = values{"dialect": name}
	}
	for _, mode := range repairModes {
		for _, mesh := range everyMesh {
			cases["repair "+mode.name+", "+mesh] = mode.in(mesh)
		}
	}
	maps.Copy(cases, options)
	names = slices.Sorted(maps.Keys(cases))
	for _, name := range names {
		all = append(all, cases[name])
	}
	return names, all
}

// TestTheAgentTakesEverySetting installs with the rendered arguments,
// environment and ConfigMap, by the agent's own command line, into directories
// that are where the rendered mounts are; and the plugin reads the entry that
// comes of it and finds there what was asked for.
func TestTheAgentTakesEverySetting(t *testing.T) {
	t.Parallel()
	names, all := settingsCases(t)
	for i, rendered := range renderAll(t, all) {
		// A comma in a directory's name would make two of it.
		t.Run(strings.ReplaceAll(names[i], ",", ""), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, rendered)
			var errOut bytes.Buffer
			app := nodecmd.Program{Env: m.env, Stderr: &errOut}
			if slices.Contains(m.c.Args, "--alone=true") {
				assert.Equal(t, 1, app.Main(t.Context(), append([]string{"install", "--once"}, m.args()...)))
				assert.Contains(t, errOut.String(), "nothing is to be installed")
				s, err := app.Parse(append([]string{"run"}, m.args()...))
				require.NoError(t, err)
				assert.True(t, s.Alone)
				return
			}
			require.Equal(t, 0, app.Main(t.Context(), append([]string{"install", "--once"}, m.args()...)), "%s", &errOut)
			for _, arg := range flagsOf(m.c, "cni-bin-dir") {
				_, at, _ := strings.Cut(arg, "=")
				assert.FileExists(t, m.path(at+"/meshcni"))
			}
			sameSettings(t, m, configOf(t, rendered))
		})
	}
}

// sameSettings compares the plugin's configuration with the ConfigMap's.
func sameSettings(t testing.TB, m *machine, want map[string]any) {
	t.Helper()
	entry := m.entry()
	got, unknown, err := netconf.Parse(entry, meshcni.Identity{})
	require.NoError(t, err)
	meshes, err := dialect.Configure(builtin.All(), got)
	require.NoError(t, err)
	assert.Empty(t, meshes.Unknown(unknown))
	if slices.Contains(m.c.Args, "--plugin-config=/etc/meshcni/plugin.json") {
		return // the entry is the user's own
	}
	assert.Equal(t, namespace, got.PodNamespace)
	var dialects netconf.Dialects
	switch named := want["dialect"].(type) {
	case string:
		dialects = netconf.Dialects{named}
	case []any:
		for _, name := range named {
			dialects = append(dialects, name.(string))
		}
	}
	assert.Equal(t, dialects, got.Dialects)
	assert.Equal(t, want["backend"], string(got.Backend))
	assert.Equal(t, want["log-level"], string(got.LogLevel))
	deadline, err := time.ParseDuration(want["add-deadline"].(string))
	require.NoError(t, err)
	assert.Equal(t, deadline, time.Duration(got.AddDeadline))
	var excluded []any
	for _, ns := range got.Kubernetes.ExcludeNamespaces {
		excluded = append(excluded, ns)
	}
	assert.ElementsMatch(t, want["exclude-namespaces"], excluded)
	selector, _ := want["exclude-namespace-selector"].(string)
	assert.Equal(t, selector, got.Kubernetes.ExcludeNamespaceSelector)
	assert.Equal(t, want["uncaptured-family"] == "drop", got.UncapturedFamily == redirect.UncapturedDrop)
	assert.Equal(t, want["refuse-proxy-uid"] == true, got.RefuseProxyUID)
	assert.Equal(t, want["refuse-net-raw"] == true, got.RefuseNetRaw)
	assert.Equal(t, want["write-status"] == true, got.WriteStatus)
	assert.Equal(t, want["ready-without-agent"] == true, got.ReadyWithoutAgent)
}

// entry is the plugin's, in whichever file of the configuration directory it is.
func (m *machine) entry() []byte {
	m.t.Helper()
	files, err := filepath.Glob(m.path("/host"+m.conf) + "/*")
	require.NoError(m.t, err)
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(m.t, err)
		list, err := conflist.ParseFile(path, text)
		require.NoError(m.t, err)
		for _, p := range list.Plugins() {
			if p.Type == "meshcni" {
				var whole struct{ Plugins []json.RawMessage }
				require.NoError(m.t, json.Unmarshal(text, &whole))
				if whole.Plugins == nil {
					return text
				}
				return whole.Plugins[len(whole.Plugins)-1]
			}
		}
	}
	require.Fail(m.t, "no entry of the plugin", "%v", files)
	return nil
}

// TestRepairTakesEverySetting: each variable of repair is one that there is, with
// a value that the controller takes and that says what the user said.
func TestRepairTakesEverySetting(t *testing.T) {
	t.Parallel()
	names, all := settingsCases(t)
	for i, rendered := range renderAll(t, all) {
		m := newMachine(t, rendered)
		asked := map[string]bool{}
		program := nodecmd.Program{Env: func(name string) (string, bool) {
			asked[name] = true
			return m.env(name)
		}}
		settings, err := program.Parse(append([]string{"run"}, m.args()...))
		require.NoError(t, err, names[i])
		for _, e := range m.c.Env {
			if strings.HasPrefix(e.Name, "MESHCNI_REPAIR_") {
				assert.True(t, asked[e.Name], "%s: nothing reads %s", names[i], e.Name)
			}
		}
		r := settings.Repair
		decides := settings.Effective()
		assert.Equal(t, settings.Plugin.UncapturedFamily, decides.UncapturedFamily, "%s: repair decides as the plugin", names[i])
		assert.Equal(t, settings.Plugin.RefuseNetRaw, decides.RefuseNetRaw, "%s: repair decides as the plugin", names[i])
		assert.Equal(t, settings.Plugin.RefuseProxyUID, decides.RefuseProxyUID, "%s: repair decides as the plugin", names[i])
		if names[i] == "repair, finer" {
			c := r.Criteria["istio"]
			assert.Equal(t, []any{[]string{"check"}, []int32{95, 126}, "no redirection: $(x) $$", "", "a in (b,c),!d", "metadata.namespace!=dev", "/proc/1/root"},
				[]any{c.Containers, c.ExitCodes, c.Message, c.Annotation, c.Labels.String(), c.Fields.String(), settings.HostRoot})
			assert.Equal(t, []any{repair.Budget{PerMinute: 0.5, Burst: 2}, true, false, 2 * time.Minute}, []any{r.NodeBudget, r.SpareUnmanaged, r.Force, r.VerifyInterval})
		}
	}
}
