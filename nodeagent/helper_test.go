//go:build linux

package nodeagent

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

const calico = `{"name":"k8s","cniVersion":"1.0.0","plugins":[{"type":"calico"}]}`

type output = proctest.Buffer

// node makes a node's directories, and the options of an agent of it, which listens nowhere.
func node(t *testing.T) (dir string, o Options) {
	t.Helper()
	dir = t.TempDir()
	for name, data := range map[string]string{
		"image/meshcni": "#!/bin/true", "bin/calico": "#!/bin/true", "net.d/10-calico.conflist": calico, "sa/token": "t", "sa/ca.crt": "ca",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o755)) //nolint:gosec // some are programs
	}
	c := DefaultConfig(meshcni.Identity{})
	c.BinSourceDir, c.CNIBinDirs, c.CNIConfDir, c.CNICacheDir = dir+"/image", []string{dir + "/bin"}, dir+"/net.d", dir+"/cache"
	c.RunDir, c.ServiceAccountDir, c.KubernetesHost, c.KubernetesPort = dir+"/run", dir+"/sa", "fd00::1", "6443"
	c.HealthAddress, c.MetricsAddress = "", ""
	return dir, Options{Dialects: builtin.All(), Config: c}
}

// agentRun is an agent that runs.
type agentRun struct {
	*Agent

	log *output
	end func() error
}

// start runs an agent until its end is called, or that of the test.
func start(t *testing.T, o Options) *agentRun {
	t.Helper()
	r := &agentRun{log: &output{}}
	o.Log = slog.New(slog.NewJSONHandler(r.log, nil))
	a, err := New(o)
	require.NoError(t, err)
	r.Agent = a
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	ended := false
	r.end = func() (err error) {
		cancel()
		if !ended {
			ended, err = true, <-done
		}
		return err
	}
	t.Cleanup(func() {
		_ = r.end()
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

var serving = regexp.MustCompile(`"msg":"serving","address":"([^"]+)"`)

// base is where it serves.
func (r *agentRun) base(t *testing.T) string {
	t.Helper()
	require.Eventually(t, func() bool { return serving.MatchString(r.log.String()) }, netnstest.Patience, 10*time.Millisecond)
	return "http://" + serving.FindStringSubmatch(r.log.String())[1]
}

// statusCode asks for a path, and returns 0 if nobody answers.
func statusCode(url string) int {
	resp, err := http.Get(url) //nolint:noctx // a test's own
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// opens makes the agent's controller of repair.
func (o Options) opens(c controller) Options {
	o.open = func(repair.Options) (controller, error) { return c, nil }
	return o
}

// fake is a controller that is always ready.
type fake func(ctx context.Context) error

func (f fake) Run(ctx context.Context) error  { return f(ctx) }
func (f fake) Ready() error                   { return nil }
func (f fake) Pods() []status.Pod             { return nil }
func (f fake) ReportBypasses(repair.Bypasses) {}
