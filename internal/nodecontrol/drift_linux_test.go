package nodecontrol_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/budget"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// metric returns the value of a counter or gauge with one label at most two.
func (n *node) metric(series string) float64 {
	n.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(n.t, reg.Register(n.c))
	families, err := reg.Gather()
	require.NoError(n.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if f.GetName()+"{"+strings.Join(labels, ",")+"}" == "meshcni_nodeproxy_"+series {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

// TestBypassesAreReported: a captured pod whose containers may set marks is reported with that, and counted; none is refused for what
// its runtime gives to all, and no event says so of each.
func TestBypassesAreReported(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	n.options = func(o *nodecontrol.Options) { o.Meshes = o.Meshes.WithOptions(dialect.Options{RefuseProxyUID: true}) }
	capabilities := map[types.UID]*corev1.Capabilities{
		n.pod(1): nil, n.pod(2): {Drop: []corev1.Capability{"ALL"}}, n.pod(3): {Add: []corev1.Capability{"NET_ADMIN"}},
	}
	for uid, c := range capabilities {
		n.pods.change(uid, func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "app", SecurityContext: &corev1.SecurityContext{Capabilities: c}}}
		})
	}
	n.pods.label("shop", "ambient")
	n.start()
	n.captured(uidN(1))
	n.captured(uidN(2))
	assert.Equal(t, []string{"net-raw"}, n.state(uidN(1)).Bypasses)
	assert.Empty(t, n.state(uidN(2)).Bypasses)
	n.until("it is refused", func() bool { return n.state(uidN(3)).Reason == "pod-refused" })
	assert.Contains(t, n.state(uidN(3)).Detail, `container "app" can bypass the mesh: its capabilities have NET_RAW or NET_ADMIN added`)
	assert.InDelta(t, 1, n.metric("bypasses{bypass=net-raw}"), 0)
	assert.Zero(t, n.metric("bypasses{bypass=proxy-id}"))
	for len(n.events.Events) > 0 {
		assert.NotContains(t, <-n.events.Events, "Warning")
	}
}

// TestExtent: of a pod that has its rules and the proxy, the state is what its packets meet: in part captured where a direction is left out, and
// not at all where they are handed on before its rules. What peers go by stays.
func TestExtent(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	partly, handed := n.pod(1), n.pod(2)
	n.pods.change(partly, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"ambient.istio.io/bypass-inbound-capture": "true"}
	})
	n.pods.label("shop", "ambient")
	n.start()
	n.captured(handed)
	ns := n.netns[handed]
	for _, line := range []string{"ip link add eth0 type veth peer name peer0", "ip link set eth0 up",
		"ip address add " + n.pods.get(handed).Status.PodIPs[0].IP + " dev eth0", "ip tuntap add tap0 mode tap", "tc qdisc add dev eth0 clsact",
		"tc filter add dev eth0 ingress protocol all u32 match u8 0 0 action mirred egress redirect dev tap0"} {
		words := strings.Fields(line)
		require.NoError(t, ns.Run(exec.CommandContext(t.Context(), words[0], words[1:]...)), line)
	}
	n.pods.change(handed, func(*corev1.Pod) {}) // has it looked at
	n.eventually(handed, status.StateFailed, "sandboxed")
	n.until("the look after the last command", func() bool {
		return strings.Contains(n.state(handed).Detail, `interface "eth0" is handed on to "tap0, by tc"`)
	})
	assert.Contains(t, n.state(handed).Bypasses, "sandboxed")
	assert.Equal(t, "enabled", n.pods.annotation(handed))
	assert.InDelta(t, 1, n.metric("bypasses{bypass=sandboxed}"), 0)
	n.until("an event", func() bool {
		return strings.HasPrefix(<-n.events.Events, "Warning MeshBypass sandboxed: the pod bypasses the mesh")
	})

	n.eventually(partly, status.StateCaptured, "partly")
	assert.Contains(t, n.state(partly).Detail, "no connection is captured inbound")
}

// TestMetrics: what is there, what went missing and what failed is counted, each incident once.
func TestMetrics(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	n.options = func(o *nodecontrol.Options) { o.VerifyInterval, o.Status = -1, nil } // looked at only when the test says so
	uid := n.pod(1)
	n.pods.label("shop", "ambient")
	n.start()
	n.joined(1)
	assert.InDelta(t, 1, n.metric("pods{reason=captured,state=captured}"), 0)
	assert.InDelta(t, 1, n.metric("proxies_connected{}"), 0)
	assert.InDelta(t, 1, n.metric("ready{}"), 0)
	assert.InDelta(t, 1, n.metric("hand_over_duration_seconds{}"), 0)
	assert.Zero(t, n.metric("drift_found_total{kind=rules-missing}"))

	n.flush(uid)
	n.pods.change(uid, func(*corev1.Pod) {}) // has it looked at
	n.until("counted", func() bool { return n.metric("drift_mended_total{kind=rules-missing}") == 1 })
	assert.InDelta(t, 1, n.metric("drift_found_total{kind=rules-missing}"), 0)
	n.until("an event", func() bool {
		select {
		case e := <-n.events.Events:
			return strings.HasPrefix(e, "Normal MeshDriftMended mended: rules-missing")
		default:
			return false
		}
	})

	n.proxy.mu.Lock()
	n.proxy.fault = func(nodeproxy.Workload) error { return errFault }
	n.proxy.mu.Unlock()
	require.NoError(t, n.proxy.Remove(t.Context(), uid))
	n.pods.change(uid, func(*corev1.Pod) {})
	n.eventually(uid, status.StateDrifted, "hand-over-failed")
	n.until("failures", func() bool { return n.metric("failures_total{step=hand-over}") >= 2 })
	assert.InDelta(t, 1, n.metric("drift_found_total{kind=no-listeners}"), 0, "one incident, however often it fails")
	assert.Contains(t, n.state(uid).Detail, "hand-over: a fault of the test")
	problems, err := testutil.GatherAndLint(registered(t, n.c))
	require.NoError(t, err)
	assert.Empty(t, problems)
}

func registered(t *testing.T, c prometheus.Collector) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	require.NoError(t, reg.Register(c))
	return reg
}

// TestMendingIsLimited: rules that were in force are written again within the budget. A pod that joins is not held back.
func TestMendingIsLimited(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	n.options = func(o *nodecontrol.Options) {
		o.Keeper.Limit(budget.Budget{PerMinute: 0.001, Burst: 1})
		o.VerifyInterval, o.Status = -1, nil // looked at only when the test says so
	}
	n.pods.label("shop", "ambient")
	var uids []types.UID
	for i := range 5 {
		uids = append(uids, n.pod(i))
	}
	n.start()
	for _, uid := range uids {
		n.eventually(uid, status.StateCaptured, "captured")
	}
	for _, uid := range uids {
		n.flush(uid)
	}
	for _, uid := range uids {
		n.pods.change(uid, func(*corev1.Pod) {}) // has them looked at
	}
	n.until("they wait", func() bool { return n.metric("pods{reason=budget,state=drifted}") >= 3 })
	late := n.pod(9)
	n.pods.change(late, func(*corev1.Pod) {})
	n.eventually(late, status.StateCaptured, "captured")
}

// TestProbesAreReadSeldom: one answer serves many looks, and none after the set was changed.
func TestProbesAreReadSeldom(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	n.options = func(o *nodecontrol.Options) { o.VerifyInterval, o.Status = time.Hour, nil } // a written annotation has the pod looked at again
	var uids []types.UID
	for i := range 20 {
		uids = append(uids, n.pod(i))
	}
	n.pods.label("shop", "ambient")
	n.start()
	n.joined(len(uids))
	n.probes.mu.Lock()
	before := n.probes.reads
	n.probes.mu.Unlock()
	for _, uid := range uids {
		n.flush(uid)
		n.pods.change(uid, func(*corev1.Pod) {}) // has it looked at
	}
	n.until("all are looked at", func() bool { return n.metric("drift_mended_total{kind=rules-missing}") == 20 })
	n.probes.mu.Lock()
	assert.LessOrEqual(t, n.probes.reads-before, 1)
	n.probes.mu.Unlock()
	n.pods.label("shop", "")
	n.outside(uids[0])
}

// TestRulesOfOthers: the annotation alone, which anybody may write, does not cost another mesh its rules of the same names; exact
// rules of ours, which an agent before us left, go.
func TestRulesOfOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	forged, left := n.pod(1), n.pod(2)
	for _, uid := range []types.UID{forged, left} {
		n.pods.change(uid, func(p *corev1.Pod) { p.Annotations = map[string]string{"ambient.istio.io/redirection": "enabled"} })
	}
	sidecar := redirect.Default()
	sidecar.Names = ambient.DefaultRedirect().Names
	theirs := sidecar.MustRuleset()
	_, err := n.backendOf(n.netns[forged]).Apply(t.Context(), theirs)
	require.NoError(t, err)
	_, err = n.backendOf(n.netns[left]).Apply(t.Context(), rulesOf(t, n.pods.get(left)))
	require.NoError(t, err)
	n.start()
	n.eventually(forged, status.StateOutside, "not-enabled")
	assert.Empty(t, n.pods.annotation(forged))
	differ, err := n.backendOf(n.netns[forged]).Check(t.Context(), theirs)
	require.NoError(t, err)
	assert.Empty(t, differ)
	n.outside(left)
}

// TestCannotTell: what is not known changes nothing.
func TestCannotTell(t *testing.T) {
	t.Parallel()
	n, uid := oneCaptured(t)
	n.pods.mu.Lock()
	ns := n.pods.namespaces["shop"]
	delete(n.pods.namespaces, "shop")
	n.pods.mu.Unlock()
	n.eventually(uid, status.StateUnknown, "namespace-unknown")
	differ, _ := n.rules(uid)
	assert.Empty(t, differ)
	assert.Equal(t, "enabled", n.pods.annotation(uid))
	workloads, err := n.c.Snapshot(t.Context())
	require.NoError(t, err)
	assert.Len(t, workloads, 1)
	n.pods.mu.Lock()
	n.pods.namespaces["shop"] = ns
	n.pods.mu.Unlock()
	n.captured(uid)

	n.pods.change(uid, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"ambient.istio.io/dns-capture": "perhaps", "ambient.istio.io/redirection": "enabled"}
	})
	n.eventually(uid, status.StateFailed, "pod-refused")
	assert.Contains(t, n.state(uid).Detail, `ambient.istio.io/dns-capture="perhaps"`)
	differ, _ = n.rules(uid)
	assert.Empty(t, differ, "it stays as it was")
}

// TestDeclinePanics: the one pod for which a mesh's Decline panics stays as it is, and the agent goes on.
func TestDeclinePanics(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	sidecar := dialect.Dialect{Name: "sidecar", Build: ambient.New(ambient.Options{}).Build, Names: ambient.DefaultRedirect().Names}
	sidecar.Policy.Decline = func(pod *corev1.Pod, _ *corev1.Container) (status.Code, string) {
		if pod.Labels["boom"] != "" {
			panic("boom")
		}
		return "is-ambient", "it is"
	}
	n.options = func(o *nodecontrol.Options) {
		o.Meshes = dialect.SetOf(append([]dialect.Dialect{sidecar}, o.Meshes.Known()...)...)
	}
	uid, other := n.pod(1), n.pod(2)
	n.pods.label("shop", "ambient")
	n.start()
	n.captured(uid)
	n.captured(other)
	n.pods.change(uid, func(p *corev1.Pod) { p.Labels = map[string]string{"boom": "yes"} })
	n.eventually(uid, status.StateUnknown, "selection-unknown")
	assert.Contains(t, n.state(uid).Detail, "dialect sidecar: its Policy.Decline panics: boom")
	differ, _ := n.rules(uid)
	assert.Empty(t, differ)
	assert.Equal(t, "enabled", n.pods.annotation(uid))
	_, err := n.c.Plan(uid)
	require.ErrorAs(t, err, new(*dialect.InvalidError))
	n.pods.change(other, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "none"} })
	n.outside(other)
	n.pods.change(uid, func(p *corev1.Pod) { p.Labels = nil })
	n.captured(uid)
}

// TestSettingsChange: an annotation that changes the rules of a running pod takes effect.
func TestSettingsChange(t *testing.T) {
	t.Parallel()
	n, uid := oneCaptured(t)
	n.pods.change(uid, func(p *corev1.Pod) { p.Annotations = map[string]string{"ambient.istio.io/dns-capture": "false"} })
	want, err := ambient.New(ambient.Options{}).Redirect(n.pods.get(uid), nil, []netip.Addr{netip.MustParseAddr("10.244.0.1")})
	require.NoError(t, err)
	n.until("the rules follow", func() bool {
		differ, err := n.backendOf(n.netns[uid]).Check(t.Context(), want.Redirect.MustRuleset())
		return err == nil && len(differ) == 0
	})
	n.eventually(uid, status.StateCaptured, "captured")
}

// TestSeveralMeshes: the first that selects a pod has it. One with its proxy in the pod is none of ours.
func TestSeveralMeshes(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	sidecar := dialect.Dialect{Name: "sidecar", Build: ambient.New(ambient.Options{}).Build, Policy: ambient.New(ambient.Options{}).Policy, Names: ambient.DefaultRedirect().Names}
	sidecar.NeedsNamespace = true
	n.options = func(o *nodecontrol.Options) {
		o.Meshes = dialect.SetOf(append([]dialect.Dialect{sidecar}, o.Meshes.Known()...)...)
	}
	uid := n.pod(1)
	n.pods.label("shop", "ambient")
	n.start()
	n.eventually(uid, status.StateOutside, "other-mesh")
	assert.Zero(t, n.proxy.count())

	// The other way round it is ours, and that the other would have it too is said.
	n.kill()
	n.options = func(o *nodecontrol.Options) { o.Meshes = dialect.SetOf(append(o.Meshes.Known(), sidecar)...) }
	n.start()
	n.captured(uid)
	assert.Contains(t, n.state(uid).Detail, "sidecar would select the pod too")
	plan, err := n.c.Plan(uid)
	require.NoError(t, err)
	assert.Equal(t, "ambient", plan.Dialect)
	_, err = n.c.Plan("nobody")
	require.ErrorIs(t, err, agentsock.ErrUnknown)

	// A namespace that cannot be read decides about nobody whose own label does not.
	n.pods.mu.Lock()
	delete(n.pods.namespaces, "shop")
	n.pods.mu.Unlock()
	n.pods.change(uid, func(*corev1.Pod) {})
	n.eventually(uid, status.StateUnknown, "namespace-unknown")
	assert.Contains(t, n.state(uid).Detail, "namespace shop is not known")
	n.pods.change(uid, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "ambient"} })
	n.captured(uid)
}

// TestNew: all that is wrong with the options at once.
func TestNew(t *testing.T) {
	t.Parallel()
	_, err := nodecontrol.New(nodecontrol.Options{Meshes: dialect.SetOf(dialect.Dialect{Name: "x"})})
	for _, part := range []string{
		"make controller of the node's proxy: ", "dialect x: its Build is nil", "no dialect with a proxy on the node",
		"no pods", "no network namespaces", "no proxy",
	} {
		assert.ErrorContains(t, err, part)
	}
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	n.until("ready", func() bool { return n.c.Ready() == nil })
	require.ErrorContains(t, n.c.Run(t.Context()), "runs or has run already")
	assert.Equal(t, "[]", fmt.Sprint(n.c.News()))
	assert.False(t, errors.Is(n.c.Ready(), nodecontrol.ErrReleasing))
}
