package repair_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/metrictest"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
)

// bench is a controller on a cluster in memory, in a bubble where time is the
// test's own.
type bench struct {
	t        *testing.T
	cluster  *repairtest.Cluster
	rules    *repairtest.Redirector
	events   chan string
	registry *prometheus.Registry
	ctl      *repair.Controller
	log      *locked
	prepare  func(*repair.Controller) // before it runs
}

// start makes pods, then runs a controller over them until the test ends.
func start(t *testing.T, change func(*bench, *repair.Options), pods ...*corev1.Pod) *bench {
	t.Helper()
	b := &bench{t: t, cluster: repairtest.New(), rules: &repairtest.Redirector{}, events: make(chan string, 1000), registry: prometheus.NewRegistry(), log: &locked{}}
	for _, p := range pods {
		b.cluster.Set(p)
	}
	// What pods were made by is older than what acts on them.
	time.Sleep(time.Minute)
	o := repair.Options{
		Node: "node-1", Meshes: dialect.SetOf(istio.New("kube-system")), NodeBudget: repair.Unlimited,
		Events: &record.FakeRecorder{Events: b.events}, Metrics: b.registry, Log: slog.New(slog.NewTextHandler(b.log, nil)),
	}
	o.SetCluster(b.cluster)
	o.SetRedirector(b.rules)
	change(b, &o)
	var err error
	b.ctl, err = repair.New(o)
	require.NoError(t, err)
	if b.prepare != nil {
		b.prepare(b.ctl)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- b.ctl.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		b.cluster.Interrupt(false)
		require.NoError(t, <-done)
	})
	b.settle()
	return b
}

// locked is a text that several goroutines write and read.
type locked struct {
	mu sync.Mutex
	w  strings.Builder
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.String()
}

func (l *locked) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w.Reset()
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// settle waits until everybody waits for time to pass, after a second in which
// informers do what they do a little later.
func (b *bench) settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (b *bench) pod(name string) *corev1.Pod {
	b.t.Helper()
	pod, err := b.cluster.Pod(b.t.Context(), "default", name)
	require.NoError(b.t, err)
	return pod
}

// in returns a pod of a namespace.
func (b *bench) in(namespace, name string) *corev1.Pod {
	p, err := b.cluster.Pod(b.t.Context(), namespace, name)
	require.NoError(b.t, err)
	return p
}

// outcomes are the counts by outcome and reason.
func (b *bench) outcomes() map[string]int { return b.counter("meshcni_repair_outcomes_total") }

func (b *bench) counter(name string) map[string]int {
	b.t.Helper()
	return metrictest.Counts(b.t, b.registry, name, "action")
}

// requests are those to the cluster that change something, or read one pod.
func (b *bench) requests() (all []string) {
	for _, r := range b.cluster.Requests() {
		if !strings.HasPrefix(r, "list") && !strings.HasPrefix(r, "watch") {
			all = append(all, r)
		}
	}
	return all
}

func (b *bench) drainEvents() (all []string) {
	for {
		select {
		case e := <-b.events:
			fields := strings.Fields(e)
			all = append(all, fields[0]+" "+fields[1])
		default:
			slices.Sort(all)
			return all
		}
	}
}

// named is a broken pod, or what the file says, of a name.
func named(t testing.TB, file, name string) *corev1.Pod {
	p := loadPod(t, file)
	p.Name, p.UID = name, ""
	return p
}

func with(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	change(p)
	return p
}

func action(a repair.Action) func(*bench, *repair.Options) {
	return func(_ *bench, o *repair.Options) { o.Action = a }
}
