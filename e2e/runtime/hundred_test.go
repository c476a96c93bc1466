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

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/netnsexec"
)

// crowds are how many sandboxes are started, and how many of them at a time: one
// after the other for what the plugin costs a pod, and many for what it costs a
// node that starts.
var crowds = []struct{ sandboxes, atATime int }{{15, 1}, {100, 10}}

// TestHundred starts many sandboxes at the same time: without the plugin, and with
// it and each kind of backend. All start and all are captured; what the network
// took is in the log (-v), as the runtime itself tells it. Clocks are not judged.
func TestHundred(t *testing.T) {
	n := newNode(t, ptp(false))
	var alone []latency
	for _, c := range crowds {
		alone = append(alone, n.crowd(t, "without meshcni", c.sandboxes, c.atATime, false))
	}
	for _, backend := range []string{"iptables", "nftables"} {
		t.Run(backend, func(t *testing.T) {
			n.runAgent(t, "--backend="+backend)
			for i, c := range crowds {
				from := len(pluginRecords(t))
				with := n.crowd(t, "with meshcni and "+backend, c.sandboxes, c.atATime, true)
				t.Logf("  that is %.0f ms more, %.2f times as long; of it, as the plugin says, %s",
					1000*(with.mean()-alone[i].mean()), with.mean()/alone[i].mean(), own(pluginRecords(t)[from:]))
			}
		})
	}
}

// crowd starts sandboxes, looks at each, and removes them.
func (n *node) crowd(t *testing.T, name string, sandboxes, atATime int, captured bool) latency {
	t.Helper()
	ns := n.namespace(t)
	pods := make([]*corev1.Pod, sandboxes)
	for i := range pods {
		pods[i] = n.create(t, meshed(ns, fmt.Sprintf("pod-%d", i)))
	}
	before := setUps(t)
	started := make([]*containerd.Sandbox, sandboxes)
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
	assert.InDelta(t, sandboxes, network.count, 0, "the runtime counts as many set-ups")
	t.Logf("%s: %d sandboxes, %d at a time, in %s; the network of one, as the runtime counts, %s",
		name, sandboxes, atATime, took.Round(time.Millisecond), network)
	for _, s := range started {
		requireRedirected(t, s, captured)
	}
	g.SetLimit(10)
	for _, s := range started {
		g.Go(func() error { return s.Remove(t.Context()) })
	}
	require.NoError(t, g.Wait())
	return network
}

// requireRedirected shows by packets whether a sandbox without containers is in the
// mesh: somebody listens at the proxy's ports in its namespace.
func requireRedirected(t *testing.T, s *containerd.Sandbox, want bool) {
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
			conn, err = net.DialTimeout("tcp", address, 10*time.Second)
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

// record is what the plugin writes of one ADD.
type record struct {
	Msg, Verb, Outcome string
	Duration           float64 `json:"duration_ms"`
}

// pluginRecords are the decisions in the plugin's log.
func pluginRecords(t testing.TB) (all []record) {
	t.Helper()
	text, _ := os.ReadFile(runDir + "/plugin.log")
	for line := range strings.Lines(string(text)) {
		var r record
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		if r.Msg == "decision" && r.Outcome == "redirected" {
			all = append(all, r)
		}
	}
	return all
}

// own is what the plugin says it took.
func own(records []record) string {
	if len(records) == 0 {
		return "nothing"
	}
	slices.SortFunc(records, func(a, b record) int { return int(1000 * (a.Duration - b.Duration)) })
	return fmt.Sprintf("%d ADDs: median %.0f ms, most %.0f ms", len(records), records[len(records)/2].Duration, records[len(records)-1].Duration)
}
