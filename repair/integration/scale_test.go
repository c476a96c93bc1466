package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// The scale that the test is at, and the budget that it holds the program to.
const (
	nodePods, brokenPods = 200, 100
	perMinute, burst     = 300, 10
)

// allPods is the cluster's.
var allPods = longtest.Rounds(1000, 5000)

// TestScale runs the program itself on a node with 200 of a cluster's 1,000 pods, with the tag long 5,000, 100 of which break at
// once.
func TestScale(t *testing.T) {
	t.Parallel()
	s := kubetest.Own(t, servers)
	a := newAdmin(t, s)
	ns, node := a.Namespace(t), "node-1"
	pods := crowd(t, a, ns, node)
	program := buildProgram(t, "meshcni-repair")

	user, token := account(t, a, "repair-delete")
	p := startProgram(t, s, program, token, "--repair=delete", "--node-name="+node,
		fmt.Sprintf("--repair-node-rate=%d", perMinute), fmt.Sprintf("--repair-node-burst=%d", burst))
	eventually(t, "ready", func() bool { return p.get(t, "/readyz") == "ok\n" })
	idle := s.Calls(t, user)
	idleRSS, _ := rss(t, p.cmd.Process.Pid)
	eventually(t, "counted", func() bool { return p.metric(t, `meshcni_pods_known`) > 0 })
	assert.InDelta(t, nodePods, p.metric(t, `meshcni_pods_known`), 0, "of other nodes' pods none is held")

	kubetest.Parallel(brokenPods, func(i int) { // all at once
		pod := podFrom(t, "crash-loop", ns, pods[i].Name, node)
		pod.UID = pods[i].UID
		a.SetStatus(t, pod)
	})
	const done = `meshcni_repair_outcomes_total{action="delete",outcome="evicted",reason="check-failed"}`
	eventually(t, "all evicted", func() bool { return p.metric(t, done) == brokenPods })
	nowRSS, peakRSS := rss(t, p.cmd.Process.Pid)
	calls := s.Calls(t, user)

	var left corev1.PodList
	a.Do(t, http.MethodGet, "/api/v1/namespaces/"+ns+"/pods", nil, &left)
	for _, pod := range left.Items {
		if pod.DeletionTimestamp == nil {
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(pod.Name, "pod-"))
		require.NoError(t, err)
		assert.Less(t, n, brokenPods, "a healthy pod was touched")
	}
	times := evictions(t, s, user)
	require.Len(t, times, brokenPods)
	for i := range times {
		for j := i; j < len(times); j++ {
			allowed := burst + perMinute*times[j].Sub(times[i]).Minutes()
			// One more for a token that ripens while a request is under way.
			require.LessOrEqual(t, float64(j-i+1), allowed+1, "evictions %d to %d in %s", i, j, times[j].Sub(times[i]))
		}
	}
	assert.Equal(t, brokenPods, calls["create pods/eviction"], "one eviction for each")
	assert.Equal(t, 2*brokenPods, reads(t, s, user), "one read before, one after")
	assert.LessOrEqual(t, calls["list pods"]-2*brokenPods+calls["watch pods"], 4)
	assert.Less(t, peakRSS, 96.0, "MB")
	t.Logf("RSS %.0f MB idle, %.0f MB after, %.0f MB at most; requests idle %v, in all %v; evictions took %s",
		idleRSS, nowRSS, peakRSS, idle, calls, times[len(times)-1].Sub(times[0]).Round(time.Millisecond))
}

// crowd makes the pods and returns this node's, all well.
func crowd(t *testing.T, a *admin, ns, node string) []*corev1.Pod {
	t.Helper()
	template := podFrom(t, "passed", ns, "", "")
	pods := make([]*corev1.Pod, nodePods)
	kubetest.Parallel(allPods, func(i int) {
		pod := template.DeepCopy()
		pod.Name, pod.Spec.NodeName = fmt.Sprintf("pod-%d", i), node
		if i < nodePods {
			pods[i] = a.Create(t, pod)
			return
		}
		pod.Spec.NodeName = fmt.Sprintf("other-%d", i%25)
		a.Do(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/pods", pod, nil)
	})
	return pods
}

// evictions are when a user's were received, in order.
func evictions(t testing.TB, s *kubetest.Server, user string) (times []time.Time) {
	t.Helper()
	for _, c := range s.Audit(t) {
		if c.User.Username == user && c.ObjectRef.Subresource == "eviction" {
			times = append(times, c.Received)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// programs are built once for all tests, in a directory that TestMain removes.
var programs struct {
	mu    sync.Mutex
	dir   string
	built map[string]bool
}

func buildProgram(t testing.TB, name string) string {
	t.Helper()
	p := &programs
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == "" {
		dir, err := os.MkdirTemp("", "meshcni-integration")
		require.NoError(t, err)
		p.dir, p.built = dir, map[string]bool{}
	}
	out := filepath.Join(p.dir, name)
	if p.built[name] {
		return out
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, "../../cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	p.built[name] = true
	return out
}

// process is a running meshcni-repair or meshcni-node.
type process struct {
	cmd  *exec.Cmd
	url  string
	log  *proctest.Buffer
	wait func() error // of one in a container
}

// startProgram runs the binary until the test ends, which it must do with exit code 0.
func startProgram(t testing.TB, s *kubetest.Server, binary, token string, args ...string) *process {
	t.Helper()
	port, err := proctest.FreePort()
	require.NoError(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return startProcess(t, address, binary, append([]string{
		"--kubeconfig=" + s.Kubeconfig(t, token), "--metrics-address=" + address, "--health-address=" + address,
	}, args...)...)
}

func startProcess(t testing.TB, address, binary string, args ...string) *process {
	t.Helper()
	p := &process{url: "http://" + address, log: &proctest.Buffer{}}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	require.NoError(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(os.Interrupt)
		assert.NoError(t, p.cmd.Wait(), "%s", p.log)
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

// get returns a page, empty while there is none.
func (p *process) get(t testing.TB, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+path, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

// metric returns one sample's value.
func (p *process) metric(t testing.TB, sample string) float64 {
	t.Helper()
	for line := range strings.Lines(p.get(t, "/metrics")) {
		if rest, ok := strings.CutPrefix(line, sample+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			require.NoError(t, err)
			return v
		}
	}
	return 0
}
