package runtime

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// atATime is how many sandboxes are started at a time.
const atATime = 10

var (
	// crowd is how many are started: what the plugin costs a node that starts. CI has fewer.
	crowd = longtest.Rounds(20, 100)
	// alone is how many are started one after the other: what it costs a pod.
	alone = longtest.Rounds(3, 15)
)

// testHundred starts many sandboxes at the same time: without the plugin, and with
// it and each kind of backend. All start and all are captured; what the network
// took is in the log (-v), as the runtime itself tells it. Clocks are not judged.
func testHundred(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	oneWithout, allWithout := n.oneByOne(t, false), n.hundred(t, "without meshcni", false)
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			n.runAgent(t, "--backend="+backend)
			one := n.oneByOne(t, true)
			t.Logf("set-up of the network of one sandbox, of %d one after the other, median: %s without meshcni, %s with (%.2f times as long); of it the plugin says %s",
				alone, ms(oneWithout), ms(one), one/oneWithout, own(pluginRecords(t)))
			from := len(pluginRecords(t))
			all := n.hundred(t, "with meshcni, "+backend, true)
			t.Logf("%.2f times as long; of it the plugin says %s", all/allWithout, own(pluginRecords(t)[from:]))
		})
	}
}

// pods makes the API server serve some pods of the mesh.
func (n *node) pods(t testing.TB, count int) []*corev1.Pod {
	t.Helper()
	ns := n.namespace(t)
	pods := make([]*corev1.Pod, count)
	for i := range pods {
		pods[i] = n.create(t, meshed(ns, fmt.Sprintf("pod-%d", i)))
	}
	return pods
}

// oneByOne returns the median of what the network's set-up took, in seconds.
func (n *node) oneByOne(t *testing.T, captured bool) float64 {
	t.Helper()
	took := make([]float64, alone)
	for i, pod := range n.pods(t, alone) {
		before := setUps(t)
		s, err := n.RunSandbox(t.Context(), pod)
		require.NoError(t, err)
		took[i] = setUps(t).less(before).mean()
		requireRedirected(t, s, captured)
		require.NoError(t, s.Remove(t.Context()))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// hundred starts a crowd, looks at each, removes them, and returns what the
// set-up of one's network took in the mean, in seconds.
func (n *node) hundred(t *testing.T, name string, captured bool) float64 {
	t.Helper()
	pods := n.pods(t, crowd)
	before := setUps(t)
	started := make([]*sandbox, crowd)
	var g errgroup.Group
	g.SetLimit(atATime)
	start := time.Now()
	for i, pod := range pods {
		g.Go(func() (err error) {
			started[i], err = n.RunSandbox(t.Context(), pod)
			return err
		})
	}
	require.NoError(t, g.Wait())
	took := time.Since(start)
	network := setUps(t).less(before)
	assert.InDelta(t, crowd, network.count, 0, "the runtime counts as many set-ups")
	t.Logf("%d sandboxes, %d at a time, %s: %s in all; set-up of the network of one: %s",
		crowd, atATime, name, took.Round(time.Millisecond), network)
	for _, s := range started {
		requireRedirected(t, s, captured)
	}
	for _, s := range started {
		g.Go(func() error { return s.Remove(t.Context()) })
	}
	require.NoError(t, g.Wait())
	return network.mean()
}

func ms(seconds float64) string { return fmt.Sprintf("%.0f ms", 1000*seconds) }

// requireRedirected shows by packets whether a sandbox without containers is in the
// mesh: somebody listens at the proxy's ports in its namespace.
func requireRedirected(t testing.TB, s *sandbox, want bool) {
	t.Helper()
	path, err := s.NetNS(t.Context())
	require.NoError(t, err)
	ns, err := netnsexec.Open(path)
	require.NoError(t, err)
	defer func() { _ = ns.Close() }()
	ip := addrs(t, s)[0]
	var listeners [2]net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		for i, port := range []string{":15001", ":15006"} {
			if listeners[i], err = net.Listen("tcp4", port); err != nil {
				return err
			}
		}
		return nil
	}))
	for i, address := range []string{hostAt(elsewhere4, 80), at(ip, 8080)} {
		var conn net.Conn
		dial := func() (err error) {
			conn, err = net.DialTimeout("tcp", address, netnstest.Patience)
			return err
		}
		if i == 0 {
			err = ns.Do(dial)
		} else {
			err = dial()
		}
		if !want && i == 1 {
			assert.Error(t, err, "nobody listens at the application's port")
		} else {
			require.NoError(t, err)
		}
		got := make(chan bool, 1)
		go func() {
			c, err := listeners[i].Accept()
			if err == nil {
				_ = c.Close()
			}
			got <- err == nil
		}()
		if !want {
			_ = listeners[i].Close() // nobody has come to it
		}
		assert.Equal(t, want, <-got, "pod %s: a connection to %s came to the proxy", s.Pod.Name, address)
		if conn != nil {
			_ = conn.Close()
		}
		_ = listeners[i].Close()
	}
}

// latency is a histogram of the runtime's: how many calls took at most so long.
type latency struct {
	count, sum float64 // calls, seconds
	buckets    map[float64]float64
}

// setUps is what containerd has counted of its calls that set a sandbox's network
// up.
func setUps(t testing.TB) latency {
	t.Helper()
	resp, err := http.Get("http://" + metricsAddress + "/v1/metrics") //nolint:noctx // a test's
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	l := latency{buckets: map[float64]float64{}}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), "} ")
		if !ok || !strings.Contains(name, "network_plugin_operations_duration_seconds") || !strings.Contains(name, `"set_up_pod"`) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		require.NoError(t, err)
		switch {
		case strings.Contains(name, "_count{"):
			l.count += v
		case strings.Contains(name, "_sum{"):
			l.sum += v
		case strings.Contains(name, "_bucket{"):
			_, le, _ := strings.Cut(name, `le="`)
			if bound, err := strconv.ParseFloat(strings.TrimSuffix(le, `"`), 64); err == nil {
				l.buckets[bound] += v
			}
		}
	}
	return l
}

func (l latency) less(before latency) latency {
	d := latency{l.count - before.count, l.sum - before.sum, map[float64]float64{}}
	for bound, n := range l.buckets {
		d.buckets[bound] = n - before.buckets[bound]
	}
	return d
}

func (l latency) mean() float64 { return l.sum / l.count }

func (l latency) String() string {
	text := fmt.Sprintf("mean %.0f ms", 1000*l.mean())
	bounds := make([]float64, 0, len(l.buckets))
	for b := range l.buckets {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	for _, share := range []float64{0.5, 0.99} {
		for _, b := range bounds {
			if l.buckets[b] >= share*l.count {
				text += fmt.Sprintf(", %.0f %% within %.0f ms", 100*share, 1000*b)
				break
			}
		}
	}
	return text
}

// record is what the plugin writes of one call.
type record struct {
	Msg, Verb, Outcome, Pod, Error string
	Duration                       float64 `json:"duration_ms"`
}

// records are those in the plugin's log.
func records(t testing.TB) (all []record) {
	t.Helper()
	text, _ := os.ReadFile(runDir + "/plugin.log")
	for line := range strings.Lines(string(text)) {
		var r record
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		all = append(all, r)
	}
	return all
}

// pluginRecords are the ADDs that redirected a pod.
func pluginRecords(t testing.TB) []record {
	t.Helper()
	return slices.DeleteFunc(records(t), func(r record) bool { return r.Msg != "decision" || r.Outcome != "redirected" })
}

// own is what the plugin says it took.
func own(records []record) string {
	if len(records) == 0 {
		return "nothing"
	}
	slices.SortFunc(records, func(a, b record) int { return int(1000 * (a.Duration - b.Duration)) })
	return fmt.Sprintf("%d ADDs: median %.0f ms, most %.0f ms", len(records), records[len(records)/2].Duration, records[len(records)-1].Duration)
}
