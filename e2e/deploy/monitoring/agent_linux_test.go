package monitoring_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/news/reporter"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/readytaint/taintmetrics"
	"github.com/meshcni/meshcni/status"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/nodecmd"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/kernel/conntables"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/internal/program/versionmetric"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy/zds"
	"github.com/meshcni/meshcni/repair"
)

// metric is what the agent says of one of its metrics.
type metric struct {
	help   string
	labels []string
}

// settings are those of an agent on directories of the test.
func settings(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"image/meshcni": "#!/bin/true", "bin/calico": "#!/bin/true", "sa/token": "t", "sa/ca.crt": "ca",
		"net.d/10-calico.conflist": `{"name":"k8s","cniVersion":"1.0.0","plugins":[{"type":"calico"}]}`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	return map[string]string{
		"MESHCNI_BIN_SOURCE_DIR": dir + "/image", "MESHCNI_CNI_BIN_DIR": dir + "/bin", "MESHCNI_CNI_CONF_DIR": dir + "/net.d",
		"MESHCNI_CNI_CACHE_DIR": dir + "/cache", "MESHCNI_RUN_DIR": dir + "/run", "MESHCNI_SERVICE_ACCOUNT_DIR": dir + "/sa",
		"MESHCNI_KUBERNETES_SERVICE_HOST": "127.0.0.1", "MESHCNI_KUBERNETES_SERVICE_PORT": "1", "MESHCNI_KUBERNETES_SERVICE_PROTOCOL": "http",
		"MESHCNI_REPAIR": "delete", "MESHCNI_REPAIR_VERIFY_INTERVAL": "1h", "MESHCNI_NODE_NAME": "n",
		"MESHCNI_RUNTIME_HOOK": "gate", "MESHCNI_NRI_SOCKET": dir + "/nri.sock",
	}
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// openRepair makes the repair controller as cmd/meshcni-node does. It is not
// run, since nothing has to happen.
func openRepair(env map[string]string, registry prometheus.Registerer) error {
	s, err := nodecmd.Program{Env: lookup(env)}.Parse([]string{"run"})
	if err != nil {
		return err
	}
	o := s.Repair
	o.Node, o.Meshes, o.Config, o.Metrics = s.Node, dialect.SetOf(builtin.All()...), &rest.Config{}, registry
	_, err = repair.New(o)
	return err
}

// exported asks the agent's parts for every metric that they can ever export. A
// scrape shows only those that something has happened for.
func exported(t *testing.T) map[string]metric {
	t.Helper()
	env, registry := settings(t), versionmetric.Registry(meshcni.Identity{}, "meshcni-node")
	config := installer.Default(meshcni.Identity{})
	config.KubernetesHost = "127.0.0.1"
	_, err := installer.New(installer.Options{Config: config, Registry: registry})
	require.NoError(t, err)
	require.NoError(t, openRepair(env, registry))
	taintmetrics.New(meshcni.Identity{}, registry)
	registry.MustRegister(nodeProxy(t), conntables.New(conntables.Options{}))
	found := map[string]metric{}
	describe(found, registry)
	told := prometheus.NewRegistry() // of the agent's reporter, which has one gauge that the repair controller alone has too
	told.MustRegister(reporter.New(meshcni.Identity{}, func() []status.News { return nil }, nil, reporter.NodeGauges()...))
	describe(found, told)
	// Of the agent's socket, its backends and the runtime's hook, which nothing exports but a running agent; TestScrape sees it.
	found["meshcni_agent_requests_total"] = metric{`Requests on the agent's socket, by request (pod, attach, detach, pods, release, ready) and outcome (ok, unknown and more). Request "none" was not read.`, []string{"request", "outcome"}}
	found["meshcni_backend_usable"] = metric{"1: the backend has written pods' rules in an empty network namespace of this host; 0: it has refused them. One that cannot be tried is missing.", []string{"backend"}}
	found["meshcni_runtime_hook_connected"] = metric{"1: the container runtime's hook is connected; 0: it is not, and pods that the plugin is not called for start without their rules.", nil}
	found["meshcni_runtime_hook_requests_total"] = metric{"Requests of the container runtime's hook, by request and outcome: ok, refused (a container), late (after the runtime's patience, so the answer did not count).", []string{"request", "outcome"}}
	return found
}

// nodeProxy is the controller of an agent with --ambient. It is not run.
func nodeProxy(t *testing.T) prometheus.Collector {
	t.Helper()
	c, err := nodecontrol.New(nodecontrol.Options{
		Meshes: dialect.SetOf(builtin.All()...), Pods: (*nodepods.Watch)(nil), Namespaces: struct{ nodecontrol.Namespaces }{}, Proxy: (*zds.Server)(nil),
	})
	require.NoError(t, err)
	return c
}

// TestScrape runs the agent and scrapes it: what it shows is in the list that
// the queries are compared with, and of that all that needs no event is shown.
func TestScrape(t *testing.T) {
	env := settings(t)
	address := fmt.Sprintf("127.%d.%d.%d:15014", 1+rand.IntN(254), rand.IntN(255), 1+rand.IntN(254)) // nobody else's
	env["MESHCNI_METRICS_ADDRESS"], env["MESHCNI_HEALTH_ADDRESS"] = address, address
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var said proctest.Buffer
	code := make(chan int, 1)
	go func() { code <- nodecmd.Program{Env: lookup(env), Stderr: &said}.Main(ctx, []string{"run"}) }()
	var shown string
	require.Eventually(t, func() bool { // it listens soon, and repair begins
		var err error
		shown, err = get(ctx, "http://"+address+"/metrics")
		return err == nil && strings.Contains(shown, "meshcni_pods_controller_ready") && strings.Contains(shown, "meshcni_runtime_hook_connected")
	}, netnstest.Patience, time.Millisecond, "%s", &said)
	stop()
	require.Zero(t, <-code, "%s", &said)

	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(shown, -1) {
		names[m[1]] = true
	}
	require.NotEmpty(t, names)
	value := func(sample string) (sum float64) {
		for _, m := range regexp.MustCompile(`(?m)^`+sample+`(?:\{[^}]*\})? (\S+)$`).FindAllStringSubmatch(shown, -1) {
			v, err := strconv.ParseFloat(m[1], 64)
			require.NoError(t, err)
			sum += v
		}
		return sum
	}
	assert.InDelta(t, value("meshcni_pods_known"), value("meshcni_pods"), 0, "the states exclude each other and add up")
	for _, m := range regexp.MustCompile(`(?m)^meshcni_\w+\{(.*)\} `).FindAllStringSubmatch(shown, -1) {
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(m[1], -1) {
			assert.Contains(t, labels, l[1])
		}
	}
	all := exported(t)
	assert.Contains(t, shown, "# HELP meshcni_agent_requests_total "+all["meshcni_agent_requests_total"].help+"\n")
	for name := range names {
		_, ok := all[name]
		assert.True(t, ok, "the agent shows %s", name)
	}
	for name, m := range all {
		series := regexp.MustCompile(`_(sum|count)$`).MatchString(name)
		if strings.HasPrefix(name, "meshcni_nodeproxy_") {
			continue // only with --ambient, which needs a node
		}
		if strings.HasPrefix(name, "meshcni_taint_") {
			continue // another program's
		}
		if len(m.labels) == 0 && !series || name == "meshcni_build_info" {
			assert.True(t, names[name], "the agent does not show %s", name)
		}
	}
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

var description = regexp.MustCompile(`fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*")(?:, unit: "[^"]*")?, constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)

// describe adds the registry's metrics: there is no other way to the names in a
// description than its text.
func describe(found map[string]metric, registry *prometheus.Registry) {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			panic("a description has another form now: " + d.String())
		}
		var labels []string
		for constant := range strings.SplitSeq(m[3], ",") {
			if name, _, ok := strings.Cut(constant, "="); ok {
				labels = append(labels, name)
			}
		}
		if m[4] != "" {
			labels = append(labels, strings.Split(m[4], ",")...)
		}
		name := m[1]
		found[name] = metric{m[2], labels}
		if strings.HasSuffix(name, "_duration_seconds") { // the histograms
			found[name+"_bucket"] = metric{m[2], append(slices.Clone(labels), "le")}
			found[name+"_sum"], found[name+"_count"] = found[name], found[name]
		}
	}
}
