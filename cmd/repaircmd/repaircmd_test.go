package repaircmd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/apiserver"
	"github.com/meshcni/meshcni/cmd/internal/repairflags"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/repair"
)

func env(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := pairs[name]; return v, ok }
}

// account makes a service account's directory.
func account(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte("token"), 0o600))
	return dir
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		env  map[string]string
		code int
		says string
	}{
		"help":                    {args: []string{"--help"}, code: 0},
		"version":                 {args: []string{"--version"}, code: 0},
		"unknown flag":            {args: []string{"--nope"}, code: 2, says: "unknown flag: --nope"},
		"argument":                {args: []string{"run"}, code: 2, says: `unexpected argument "run"`},
		"action":                  {args: []string{"--repair=destroy"}, code: 2, says: `--repair: repair action "destroy": not one of none, label, delete, repair`},
		"action, environment":     {env: map[string]string{"MESHCNI_REPAIR": "destroy"}, code: 2, says: "--repair"},
		"number, environment":     {env: map[string]string{"MESHCNI_REPAIR_NODE_RATE": "many"}, code: 2, says: "MESHCNI_REPAIR_NODE_RATE"},
		"dialect":                 {args: []string{"--dialect=esperanto"}, code: 2, says: "--dialect"},
		"backend":                 {args: []string{"--backend=ebpf"}, code: 2, says: "--backend"},
		"uncaptured family":       {args: []string{"--uncaptured-family=maybe"}, code: 2, says: "--uncaptured-family"},
		"empty family":            {args: []string{"--uncaptured-family="}, code: 2, says: "--uncaptured-family"},
		"refusal":                 {args: []string{"--refuse-proxy-uid=maybe"}, code: 2, says: "refuse-proxy-uid"},
		"refusal, environment":    {env: map[string]string{"MESHCNI_REFUSE_PROXY_UID": "maybe"}, code: 2, says: "MESHCNI_REFUSE_PROXY_UID"},
		"log level":               {args: []string{"--log-level=loud"}, code: 2, says: "--log-level"},
		"no API server":           {args: []string{"--repair=label", "--node-name=n"}, code: 1, says: "neither --kubeconfig nor --kubernetes-service-host"},
		"no credentials":          {args: []string{"--node-name=n", "--kubernetes-service-host=::1", "--service-account-dir=/nowhere"}, code: 1, says: "service account's token"},
		"no kubeconfig":           {args: []string{"--node-name=n", "--kubeconfig=/nowhere/config"}, code: 1, says: "read kubeconfig"},
		"no node name":            {args: []string{"--repair=label", "SA"}, code: 2, says: "--node-name: not set"},
		"exit codes":              {args: []string{"--node-name=n", "--repair-exit-codes=0", "SA"}, code: 2, says: "--repair-exit-codes"},
		"label":                   {args: []string{"--node-name=n", "--repair-label=broken", "SA"}, code: 2, says: "--repair-label"},
		"excluded labels":         {args: []string{"--node-name=n", "--exclude-namespace-selector=a in b", "SA"}, code: 2, says: `--exclude-namespace-selector: label selector "a in b"`},
		"label selector":          {args: []string{"--node-name=n", "--repair-label-selector=a in b", "SA"}, code: 2, says: "--repair-label-selector"},
		"field selector":          {args: []string{"--node-name=n", "--repair-field-selector=status.happy=true", "SA"}, code: 2, says: `pods are not selected by "status.happy"`},
		"node budget":             {args: []string{"--node-name=n", "--repair-node-rate=0", "SA"}, code: 2, says: "--repair-node-rate"},
		"address that is no good": {args: []string{"--node-name=n", "--metrics-address=nowhere:x", "--health-address=", "SA"}, code: 1, says: "--metrics-address"},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			for _, a := range c.args {
				if a == "SA" {
					args = append(args, "--kubernetes-service-host=127.0.0.1", "--kubernetes-service-protocol=http", "--service-account-dir="+account(t))
					continue
				}
				args = append(args, a)
			}
			var stdout, stderr proctest.Buffer
			code := Program{Env: env(c.env), Stdout: &stdout, Stderr: &stderr, Identity: meshcni.Identity{Version: "v1"}}.Main(t.Context(), args)
			assert.Equal(t, c.code, code, stderr.String())
			assert.Contains(t, stderr.String(), c.says)
			if c.code == 0 {
				assert.Contains(t, stdout.String(), "meshcni-repair")
			}
			if c.code == 2 {
				assert.Contains(t, stderr.String(), "see --help")
			}
		})
	}
}

// TestRun: with an API server that answers nothing useful the program stays, is
// alive, is not ready and says why, and ends when told to.
func TestRun(t *testing.T) {
	t.Parallel()
	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()
	host, port, _ := strings.Cut(strings.TrimPrefix(api.URL, "http://"), ":")
	ctx, stop := context.WithCancel(t.Context())
	var stderr proctest.Buffer
	code := make(chan int)
	go func() {
		p := Program{Stderr: &stderr, Env: env(map[string]string{
			"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "MESHCNI_KUBERNETES_SERVICE_PROTOCOL": "http",
			"MESHCNI_SERVICE_ACCOUNT_DIR": account(t), "NODE_NAME": "node-1", "MESHCNI_REPAIR": "label",
		})}
		code <- p.Main(ctx, []string{"--metrics-address=127.0.0.1:0", "--health-address="})
	}()
	var address string
	require.Eventually(t, func() bool {
		_, rest, ok := strings.Cut(stderr.String(), `"address":"`)
		address, _, _ = strings.Cut(rest, `"`)
		return ok
	}, netnstest.Patience, time.Millisecond, "%s", &stderr)
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + address + path)
		require.NoError(t, err)
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	status, _ := get("/healthz")
	assert.Equal(t, http.StatusOK, status)
	status, body := get("/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, body, "repair: ")
	_, body = get("/metrics")
	assert.Contains(t, body, "meshcni_pods_controller_ready 0")
	stop()
	assert.Equal(t, 0, <-code)
}

// TestSettings: the controller is made by the plugin's own settings and those of the flags.
func TestSettings(t *testing.T) {
	t.Parallel()
	flags, err := repairflags.FromEnv(meshcni.Identity{}, env(map[string]string{"MESHCNI_REPAIR_NODE_BURST": "3", "MESHCNI_REPAIR": "label", "NODE_NAME": "node-1"}))
	require.NoError(t, err)
	assert.Equal(t, []string{"label", "node-1"}, []string{string(flags.Action), flags.Node})
	flags.Action = "delete"
	s := settings{
		Flags:  flags,
		plugin: netconf.Config{Kubernetes: netconf.Kubernetes{ExcludeNamespaces: []string{"kube-system"}, ExcludeNamespaceSelector: "mesh=off"}, RefuseProxyUID: true, RefuseNetRaw: true, UncapturedFamily: redirect.UncapturedDrop},
		access: apiserver.Access{Host: "127.0.0.1", Port: "1", Protocol: "http", ServiceAccountDir: "/nonexistent"},
	}
	o, err := s.options(builtin.All())
	require.NoError(t, err, "no file is read")
	assert.Equal(t, 3, o.NodeBudget.Burst)
	assert.Equal(t, repair.ActionDelete, o.Action)
	assert.Equal(t, dialect.Options{UncapturedFamily: redirect.UncapturedDrop, RefuseProxyUID: true, RefuseNetRaw: true}, o.Meshes.Options(), "as the plugin's")
	assert.Equal(t, "istio", o.Meshes.String(), "the first is the default")
	assert.True(t, o.Meshes.Lookup("istio").Policy.ExcludesNamespace("kube-system"))
	assert.Equal(t, "[mesh=off]", fmt.Sprint(o.Meshes.Lookup("istio").Policy.ExcludedNamespaceLabels))

	_, err = s.restConfig("")
	require.ErrorContains(t, err, "service account's token")
	s.access.ServiceAccountDir = account(t)
	o.Config, err = s.restConfig("")
	require.NoError(t, err)
	_, err = repair.New(o)
	require.NoError(t, err)

	for says, change := range map[string]func(*settings){
		"--uncaptured-family": func(s *settings) { s.plugin.UncapturedFamily = "keep" },
		"--repair-host-root":  func(s *settings) { s.HostRoot = "proc" },
		"--node-name":         func(s *settings) { s.Node = "" },
		"--dialect":           func(s *settings) { s.plugin.Dialects = netconf.Dialects{"esperanto"} },
	} {
		bad := s
		change(&bad)
		_, err = bad.options(builtin.All())
		assert.ErrorContains(t, err, says)
	}
}

// TestSeveralDialects: each has criteria of its own, one check is enough, and what has its proxy on the node needs none.
func TestSeveralDialects(t *testing.T) {
	t.Parallel()
	flags, err := repairflags.FromEnv(meshcni.Identity{}, nil)
	require.NoError(t, err)
	s := settings{Flags: flags}
	s.Node, s.Action, s.plugin.Dialects = "n", "delete", netconf.Dialects{"ambient", "istio", "consul"}
	s.plugin.Kubernetes.ExcludeNamespaces = []string{"dev"}
	o, err := s.options(builtin.All())
	require.NoError(t, err)
	assert.Equal(t, "ambient,istio,consul", o.Meshes.String())
	assert.True(t, o.Meshes.ExcludesNamespace("dev"))
	assert.Equal(t, []string{"istio-validation"}, o.Criteria["istio"].Containers)
	assert.Equal(t, []int32{126}, o.Criteria["istio"].ExitCodes)
	assert.Empty(t, o.Criteria["consul"].Containers)
	assert.NotContains(t, o.Criteria, "ambient")

	s.plugin.Dialects = netconf.Dialects{"consul"}
	_, err = s.options(builtin.All())
	require.ErrorContains(t, err, "dialect consul: repair criteria: no init container")
	s.plugin.Dialects = netconf.Dialects{"ambient"}
	_, err = s.options(builtin.All())
	require.NoError(t, err)
	s.plugin.Dialects, s.InitContainer, s.ExitCodes = netconf.Dialects{"consul", "linkerd"}, "check", "7"
	o, err = s.options(builtin.All())
	require.NoError(t, err)
	for _, mesh := range []string{"consul", "linkerd"} {
		assert.Equal(t, []string{"check"}, o.Criteria[mesh].Containers)
		assert.Equal(t, []int32{7}, o.Criteria[mesh].ExitCodes)
	}
	s.plugin.Dialects = netconf.Dialects{"osm", "istio", "nginx"}
	_, err = s.options(builtin.All())
	require.ErrorContains(t, err, `unknown dialect "osm"`)
	require.ErrorContains(t, err, `unknown dialect "nginx"`)
}

// A program of another name knows the dialects that it is given, and no others.
func TestOwnProgram(t *testing.T) {
	t.Parallel()
	p := Program{Identity: meshcni.Identity{Name: "acme", Version: "v9"}, Dialects: []dialect.Dialect{{Name: "acme", Names: redirect.Default().Names, Build: dialect.FromSchema(redirect.Schema{Defaults: redirect.Default()})}}}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--version"}, 0, "acme-repair v9\n"},
		{[]string{"--help"}, 0, "the mesh: acme (default acme)"},
		{[]string{"--dialect=istio"}, 2, `acme-repair: --dialect: unknown dialect "istio": known is acme`},
		{[]string{"--node-name=n"}, 2, "acme-repair: --repair-init-container, --repair-exit-codes: dialect acme: repair criteria: no init container"},
	} {
		var said proctest.Buffer
		p.Stdout, p.Stderr = &said, &said
		assert.Equal(t, c.code, p.Main(t.Context(), c.args))
		assert.Contains(t, said.String(), c.says)
	}
}
