//go:build linux

package installer

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/node/news/reporter"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("MESHCNI_TEST_CRASH_AGENT"); dir != "" {
		crashAgent(dir)
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if programs != "" {
			_ = os.RemoveAll(programs)
		}
		os.Exit(code)
	}))
}

const (
	calicoList = "{\n  \"name\": \"k8s-pod-network\",\n  \"cniVersion\": \"0.3.1\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\"\n    }\n  ]\n}\n"
	ciliumList = "\n{\n  \"cniVersion\": \"0.3.1\",\n  \"name\": \"cilium\",\n  \"plugins\": [\n    {\n       \"type\": \"cilium-cni\"\n    }\n  ]\n}\n"
	bridgeConf = "{\n\t\"cniVersion\": \"0.4.0\",\n\t\"name\": \"kubernetes\",\n\t\"type\": \"bridge\"\n}"
)

const pluginName = "meshcni"

// node is a node's file system in a temporary directory.
type node struct {
	t testing.TB
	Config
}

func nodeConfig(dir string) Config {
	c := Default(meshcni.Identity{})
	c.OwnFile = SwitchOff // unless a test is about another
	c.BinSourceDir, c.CNIBinDirs = filepath.Join(dir, "image"), []string{filepath.Join(dir, "bin")}
	c.CNIConfDir, c.CNICacheDir = filepath.Join(dir, "net.d"), filepath.Join(dir, "cache")
	c.RunDir, c.ServiceAccountDir = filepath.Join(dir, "run"), filepath.Join(dir, "sa")
	c.KubernetesHost, c.Plugin.Kubernetes.ExcludeNamespaces = "10.96.0.1", []string{"istio-system"}
	return c
}

func newNode(t testing.TB, files map[string]string) *node {
	t.Helper()
	n := &node{t, nodeConfig(t.TempDir())}
	for _, dir := range []string{n.BinSourceDir, n.CNIBinDirs[0], n.CNIConfDir, n.ServiceAccountDir} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	n.write(filepath.Join(n.BinSourceDir, pluginName), "#!/bin/true\n", 0o755)
	n.write(filepath.Join(n.ServiceAccountDir, "token"), "token-1", 0o600)
	n.write(filepath.Join(n.ServiceAccountDir, "ca.crt"), "the CA", 0o644)
	for name, data := range files {
		n.write(n.conf(name), data, 0o640)
		if f, err := conflist.Parse([]byte(data)); err == nil {
			for _, plugin := range f.Plugins() {
				n.program(plugin.Type)
			}
		}
	}
	for _, typ := range others {
		n.program(typ)
	}
	return n
}

// others are the plugins that a node has besides ours.
var others = []string{"calico", "cilium-cni", "bridge", "istio-cni"}

// program installs another's plugin, unless the name is ours or none.
func (n *node) program(typ string) {
	n.t.Helper()
	if fileName.MatchString(typ) && typ != pluginName {
		n.write(filepath.Join(n.CNIBinDirs[0], typ), "#!/bin/true\n", 0o755)
	}
}

func (n *node) conf(name string) string { return filepath.Join(n.CNIConfDir, name) }
func (n *node) binary() string          { return filepath.Join(n.CNIBinDirs[0], pluginName) }

func (n *node) write(path, data string, mode fs.FileMode) {
	n.t.Helper()
	require.NoError(n.t, os.WriteFile(path, []byte(data), mode))
}

// ownersTemp ends the names of the files that owners write to first.
const ownersTemp = ".their-tmp"

// put replaces a file in one step, as careful owners do.
func (n *node) put(path, data string) {
	n.t.Helper()
	tmp := path + ownersTemp
	n.write(tmp, data, 0o644)
	require.NoError(n.t, os.Rename(tmp, path))
}

// removeBeside removes a directory into which an agent may be writing at this moment: where what is new keeps it there, again.
func (n *node) removeBeside(dir string) {
	n.t.Helper()
	within(n.t, patience, dir+" removed", func() bool { return os.RemoveAll(dir) == nil })
}

func (n *node) read(path string) string {
	n.t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(n.t, err)
	return string(data)
}

// tree returns every file below the configuration directory, with mode and owner, to compare, but for what an agent keeps there for itself.
func (n *node) tree() map[string]string {
	n.t.Helper()
	out := map[string]string{}
	require.NoError(n.t, filepath.WalkDir(n.CNIConfDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".meshcni-") {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(n.CNIConfDir, path)
		out[name] = fmt.Sprintf("%o %d:%d %s", st.Mode, st.Uid, st.Gid, n.read(path))
		return nil
	}))
	return out
}

// left lists what a directory has besides other plugins.
func (n *node) left(dir string) (names []string) {
	n.t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(n.t, err)
	for _, e := range entries {
		if !slices.Contains(others, e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names
}

func (n *node) install() Plan {
	n.t.Helper()
	steps, err := Install(n.t.Context(), n.Config, discard)
	require.NoError(n.t, err)
	return steps
}

func (n *node) uninstall() Plan {
	n.t.Helper()
	steps, err := Uninstall(n.t.Context(), n.Config, discard)
	require.NoError(n.t, err)
	return steps
}

var discard = slog.New(slog.DiscardHandler)

// loaded is what the runtime loads; it fails the test when that is nothing.
func (n *node) loaded() conflist.Loaded {
	n.t.Helper()
	choice, err := conflist.Primary(os.DirFS(n.CNIConfDir))
	require.NoError(n.t, err)
	return choice
}

func (n *node) captured() bool {
	choice, err := conflist.Primary(os.DirFS(n.CNIConfDir))
	return err == nil && choice.File.Has(pluginName)
}

// agent runs an agent until the test ends or stop is called.
func (n *node) agent(change func(*Options), tune ...func(*Agent)) (a *Agent, stop func()) {
	n.t.Helper()
	opts := Options{Config: n.Config, Log: slog.New(slog.NewTextHandler(testLog{n.t}, nil)), Settle: 50 * time.Millisecond}
	if change != nil {
		change(&opts)
	}
	a, err := New(opts)
	require.NoError(n.t, err)
	for _, f := range tune {
		f(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		assert.NoError(n.t, <-done)
	}
	n.t.Cleanup(stop)
	return a, stop
}

// scrape is what /metrics says.
func scrape(t testing.TB, a *Agent) string {
	t.Helper()
	r := httptest.NewRecorder()
	shown := prometheus.NewRegistry()
	shown.MustRegister(reporter.New(a.opts.Config.Identity, a.News, nil, reporter.NodeGauges()...)) // as the node's agent does
	promhttp.HandlerFor(prometheus.Gatherers{a.opts.Registry.(*prometheus.Registry), shown}, promhttp.HandlerOpts{}).ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, r.Code)
	return r.Body.String()
}

// testLog gives the agent's log to the test, which prints it on failure.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// within waits for a condition, which is checked without delay and then often.
func within(t testing.TB, d time.Duration, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, d, 2*time.Millisecond, what)
}
