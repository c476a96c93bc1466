//go:build linux

package nodecmd

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const calico = `{"name":"k8s","cniVersion":"1.0.0","plugins":[{"type":"calico"}]}`

type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// node makes a node's directories and the environment that points there.
func node(t *testing.T) (dir string, env map[string]string) {
	t.Helper()
	dir = t.TempDir()
	for name, data := range map[string]string{
		"image/meshcni": "#!/bin/true", "bin/calico": "#!/bin/true", "net.d/10-calico.conflist": calico, "sa/token": "t", "sa/ca.crt": "ca",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o755)) //nolint:gosec // some are programs
	}
	return dir, map[string]string{
		"MESHCNI_BIN_SOURCE_DIR": dir + "/image", "MESHCNI_CNI_BIN_DIR": dir + "/bin", "MESHCNI_CNI_CONF_DIR": dir + "/net.d",
		"MESHCNI_CNI_CACHE_DIR": dir + "/cache", "MESHCNI_RUN_DIR": dir + "/run", "MESHCNI_SERVICE_ACCOUNT_DIR": dir + "/sa",
		"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443",
	}
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) { v, ok := env[key]; return v, ok }
}

func run(t *testing.T, env map[string]string, args ...string) (int, string, string) {
	t.Helper()
	var stdout, stderr output
	code := Program{Env: lookup(env), Stdout: &stdout, Stderr: &stderr}.Main(t.Context(), args)
	return code, stdout.String(), stderr.String()
}

func TestInstallOnceAndUninstall(t *testing.T) {
	dir, env := node(t)
	file := filepath.Join(dir, "net.d/10-calico.conflist")
	code, _, stderr := run(t, env, "install", "--once", "--exclude-namespaces", "a,b", "--exclude-namespaces", "c")
	require.Equal(t, 0, code, stderr)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(data), `"exclude_namespaces":["a","b","c"]`)
	kubeconfig, err := os.ReadFile(filepath.Join(dir, "run/kubeconfig"))
	require.NoError(t, err)
	assert.Contains(t, string(kubeconfig), "https://[fd00::1]:6443")
	code, _, stderr = run(t, env, "uninstall")
	require.Equal(t, 0, code, stderr)
	data, err = os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, calico, string(data))
}

// An uninstall that is not told of the template finds the entry that the install made of it; of somebody else's it keeps
// what that names, and fails.
func TestUninstallWithoutTheTemplate(t *testing.T) {
	dir, env := node(t)
	file := filepath.Join(dir, "net.d/10-calico.conflist")
	template := filepath.Join(dir, "template.json")
	require.NoError(t, os.WriteFile(template, []byte(`{"type": "shop-cni", "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}}`), 0o600))
	code, _, stderr := run(t, env, "install", "--once", "--plugin-config", template)
	require.Equal(t, 0, code, stderr)
	require.FileExists(t, filepath.Join(dir, "bin/shop-cni"))

	theirs := filepath.Join(dir, "net.d/20-theirs.conf")
	require.NoError(t, os.WriteFile(theirs, []byte(`{"name": "n", "type": "theirs", "auth": "`+dir+`/run/kubeconfig"}`), 0o600))
	code, _, stderr = run(t, env, "uninstall")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "still-named")
	assert.Contains(t, stderr, theirs)
	assert.FileExists(t, filepath.Join(dir, "bin/shop-cni"))
	assert.FileExists(t, filepath.Join(dir, "run/kubeconfig"))

	require.NoError(t, os.Remove(theirs))
	code, _, stderr = run(t, env, "uninstall")
	require.Equal(t, 0, code, stderr)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, calico, string(data))
	assert.NoFileExists(t, filepath.Join(dir, "bin/shop-cni"))
	assert.NoFileExists(t, filepath.Join(dir, "run/kubeconfig"))
}

func TestInstallWaitsWithoutOnce(t *testing.T) {
	dir, env := node(t)
	file := filepath.Join(dir, "net.d/10-calico.conflist")
	require.NoError(t, os.Remove(file))
	code, _, stderr := run(t, env, "install", "--once")
	require.Equal(t, 1, code)
	assert.Contains(t, stderr, "no-network")
	done := make(chan int, 1)
	go func() { code, _, _ := run(t, env, "install"); done <- code }()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "run/log.sock")); return err == nil }, netnstest.Patience, time.Millisecond)
	require.NoError(t, os.WriteFile(file, []byte(calico), 0o644))
	assert.Equal(t, 0, <-done)
	f, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, string(f), "meshcni")
}

func TestUsage(t *testing.T) {
	_, env := node(t)
	for _, tc := range []struct {
		args []string
		env  map[string]string
		says string
	}{
		{nil, nil, "name a command"},
		{[]string{"fly"}, nil, `unknown command "fly"`},
		{[]string{"run", "--fly"}, nil, "--fly"},
		{[]string{"run", "now"}, nil, `"now"`},
		{[]string{"run", "--chained=perhaps"}, nil, "--chained"},
		{[]string{"run", "--dialect", "ambient"}, nil, `"ambient": its pods need an agent that hands their network namespaces`},
		{[]string{"run", "--dialect", "istio,ambient"}, nil, `"ambient": its pods need an agent that hands their network namespaces`},
		{[]string{"run", "--dialect", "ambient,osm,istio,istio"}, nil, "dialect: unknown dialect \"osm\": known is istio, ambient, linkerd, kuma, consul\n" +
			"meshcni-node: dialect \"istio\" is named twice\nmeshcni-node: dialect: \"ambient\": its pods need"},
		{[]string{"run"}, map[string]string{"CNI_NETWORK_CONFIG": `{"type": "meshcni", "dialect": ["istio", "ambient"]}`}, `"ambient": its pods need an agent`},
		{[]string{"run"}, map[string]string{"CNI_NETWORK_CONFIG": `{"type": "meshcni", "ambient": {"ipv6": "no"}}`}, `template: ambient.ipv6: want true or false, not "no"`},
		{[]string{"run", "--ambient-ipv6=no"}, nil, "--ambient-ipv6"},
		{[]string{"run"}, map[string]string{"MESHCNI_AMBIENT_PROBE_IPV4": "::1"}, `ambient-probe-ipv4: "::1" is not a single host's IPv4 address`},
		{[]string{"run", "--dialect", "istio,"}, nil, `unknown dialect ""`},
		{[]string{"run"}, map[string]string{"MESHCNI_REPAIR_NODE_RATE": "many"}, "MESHCNI_REPAIR_NODE_RATE"},
		{[]string{"run", "--repair", "sweep", "--node-name", "n"}, nil, `"sweep": not one of none, label, delete, repair`},
		{[]string{"run", "--repair", "delete"}, nil, "node-name"},
		{[]string{"run", "--dialect", "x", "--backend", "y"}, nil, `backend "y"`},
		{[]string{"run", "--dialect="}, nil, "--dialect"},
		{[]string{"run", "--backend="}, nil, "--backend"},
		{[]string{"run", "--log-level="}, nil, "--log-level"},
		{[]string{"run", "--pod-namespace="}, nil, "--pod-namespace"},
		{[]string{"run", "--repair="}, nil, "--repair"},
		{[]string{"run", "--add-deadline=0"}, nil, "--add-deadline"},
		{[]string{"install"}, map[string]string{"MESHCNI_ADD_DEADLINE": "0"}, "MESHCNI_ADD_DEADLINE"},
		{[]string{"install"}, map[string]string{"MESHCNI_ADD_DEADLINE": "soon"}, "MESHCNI_ADD_DEADLINE"},
		{[]string{"install"}, map[string]string{"MESHCNI_ADD_DEADLINE": "0s"}, `MESHCNI_ADD_DEADLINE="0s": want a duration above 0`},
		{[]string{"install"}, map[string]string{"MESHCNI_UNCAPTURED_FAMILY": "keep"}, "MESHCNI_UNCAPTURED_FAMILY"},
		{[]string{"install"}, map[string]string{"MESHCNI_CONFIG": "/nonexistent/config.yaml"}, "/nonexistent/config.yaml"},
		{[]string{"install"}, map[string]string{"CNI_NETWORK_CONFIG": "{"}, "template"},
		{[]string{"run", "--agent=require", "--node-name="}, nil, "agent=require needs node-name"},
		{[]string{"run", "--agent=never"}, nil, `agent "never": not one of prefer, off, require`},
		{[]string{"run", "--token-lifetime=9m"}, nil, "between 10m0s and 24h0m0s"},
		{[]string{"started"}, nil, "--start-socket"},
		{[]string{"look"}, nil, "--uid"},
		{[]string{"look", "--uid", "../x"}, nil, "no pod's UID"},
	} {
		all := map[string]string{}
		for _, m := range []map[string]string{env, tc.env} {
			for k, v := range m {
				all[k] = v
			}
		}
		code, _, stderr := run(t, all, tc.args...)
		assert.Equal(t, 2, code, tc.args)
		assert.Contains(t, stderr, tc.says, tc.args)
		assert.NotContains(t, stderr, "usage:")
	}
}

func TestHelpNamesEveryOption(t *testing.T) {
	for _, command := range []string{"run", "install", "uninstall"} {
		code, stdout, _ := run(t, nil, command, "--help")
		assert.Equal(t, 0, code)
		c, _, err := Program{}.command().Find([]string{command})
		require.NoError(t, err)
		groups := 0
		c.Flags().VisitAll(func(f *pflag.Flag) {
			assert.Contains(t, stdout, "\n  --"+f.Name)
			for _, name := range cli.Variables(f) {
				assert.Contains(t, stdout, name)
			}
		})
		for line := range strings.Lines(stdout) {
			if !strings.HasPrefix(line, " ") && strings.HasSuffix(line, ":\n") {
				groups++
			}
		}
		assert.GreaterOrEqual(t, groups, 6)
	}
}

// parsed are the settings of run with these arguments.
func parsed(env map[string]string, args ...string) (nodeagent.Config, error) {
	return Program{Env: lookup(env)}.Parse(append([]string{"run"}, args...))
}

func TestPrecedence(t *testing.T) {
	_, env := node(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte("dialect: linkerd\nbackend: nftables\nlog-level: debug\nown-file: true\nexclude-namespaces: [a, b]\nadd-deadline: 5s\n"), 0o644))
	env["MESHCNI_CONFIG"], env["MESHCNI_BACKEND"], env["MESHCNI_LOG_LEVEL"] = file, "iptables", "warn"
	env["CNI_CONF_NAME"] = "00-mine.conflist"
	s, err := parsed(env, "--log-level=error")
	require.NoError(t, err)
	assert.Equal(t, []string{"linkerd", "iptables", "error", "00-mine.conflist"}, []string{s.Plugin.Dialects.String(), string(s.Plugin.Backend), string(s.Plugin.LogLevel), s.CNIConfName})
	assert.Equal(t, []string{"a", "b"}, s.Plugin.Kubernetes.ExcludeNamespaces)
	assert.Equal(t, installer.SwitchOn, s.OwnFile)
	assert.Equal(t, "5s", s.Plugin.AddDeadline.String())

	// A ConfigMap mounted as a directory, one file a key.
	mounted := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(mounted, "dialect"), []byte("kuma\n"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(mounted, "..data"), 0o755))
	env["MESHCNI_CONFIG"] = mounted
	s, err = parsed(env)
	require.NoError(t, err)
	assert.Equal(t, "kuma", s.Plugin.Dialects.String())
	for _, bad := range []string{"dialekt: x", "dialect: {a: b}", "config: x", "- a", "own-file: perhaps", "add-deadline: 0s", "uncaptured-family: keep"} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o644))
		env["MESHCNI_CONFIG"] = file
		_, err = parsed(env)
		require.Error(t, err, bad)
	}
}

// An edit of the mounted file reaches the plugin's entry without a restart; a bad one is refused and leaves what was.
func TestLiveConfiguration(t *testing.T) {
	dir, env := node(t)
	config := filepath.Join(dir, "config/config.yaml")
	require.NoError(t, os.Mkdir(filepath.Dir(config), 0o755))
	edit := func(text string) {
		require.NoError(t, os.WriteFile(config+".tmp", []byte(text), 0o644))
		require.NoError(t, os.Rename(config+".tmp", config))
	}
	edit("dialect: istio\n")
	ctx, cancel := context.WithCancel(t.Context())
	var stderr output
	done := make(chan int, 1)
	go func() {
		done <- Program{Env: lookup(env), Stderr: &stderr}.Main(ctx, []string{"run", "--config", config, "--metrics-address", "", "--health-address", ""})
	}()
	entry := func() string {
		data, _ := os.ReadFile(filepath.Join(dir, "net.d/10-calico.conflist"))
		f, err := conflist.Parse(data)
		if err != nil {
			return ""
		}
		for _, p := range f.Plugins() {
			if p.Type == "meshcni" {
				return string(p.Raw)
			}
		}
		return ""
	}
	eventually := func(what string, cond func() bool) {
		t.Helper()
		require.Eventually(t, cond, netnstest.Patience, 2*time.Millisecond, what)
	}
	eventually("installed", func() bool { return strings.Contains(entry(), `"dialect":"istio"`) })
	edit("dialect: linkerd\nexclude-namespaces: [kube-system]\n")
	eventually("applied", func() bool {
		return strings.Contains(entry(), `"dialect":"linkerd"`) && strings.Contains(entry(), `["kube-system"]`)
	})
	edit("dialect: klingon\n")
	eventually("refused", func() bool { return strings.Contains(stderr.String(), "klingon") })
	warned := func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "run/status.json"))
		return err == nil && strings.Contains(string(text), `"code":"config-refused"`)
	}
	eventually("warned of", warned)
	edit("dialect: linkerd\nchained: false\n")
	eventually("refused", func() bool { return strings.Contains(stderr.String(), "needs a restart") })
	assert.Contains(t, entry(), `"dialect":"linkerd"`)
	edit("dialect: kuma\n")
	eventually("applied", func() bool { return strings.Contains(entry(), `"dialect":"kuma"`) })
	eventually("no more warned of", func() bool { return !warned() })
	cancel()
	assert.Equal(t, 0, <-done)
}
