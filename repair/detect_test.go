package repair_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshcni/meshcni/plugin/netconf"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// traces are a node's, in files.
type traces struct {
	t     testing.TB
	cache string
	store attachment.Store
}

func newTraces(t testing.TB) traces {
	t.Helper()
	dir := t.TempDir()
	return traces{t, filepath.Join(dir, "cni"), attachment.Open(filepath.Join(dir, "run"))}
}

// detecting is a configuration with them.
func (n traces) detecting(a repair.Action) func(*bench, *repair.Options) {
	return func(_ *bench, o *repair.Options) {
		o.Action, o.Records = a, n.store
		o.Detect = &repair.Detection{CacheDir: n.cache, Act: true, AgentNamespace: "meshcni-system"}
	}
}

// attach leaves what libcni does after a successful ADD, and before it that of lo, as containerd makes it.
func (n traces) attach(pod *corev1.Pod, container string, types ...string) {
	n.t.Helper()
	n.cached(pod, container, "cni-loopback", "lo", "127.0.0.1/8", "loopback")
	n.cached(pod, container, "k8s", "eth0", pod.Status.PodIP+"/24", types...)
}

func (n traces) cached(pod *corev1.Pod, container, network, ifName, address string, types ...string) {
	n.t.Helper()
	var entries []string
	for _, typ := range types {
		entries = append(entries, fmt.Sprintf(`{"type":%q}`, typ))
	}
	config := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[%s]}`, network, strings.Join(entries, ","))
	text, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": container, "config": []byte(config), "ifName": ifName, "networkName": network, "netns": "/var/run/netns/cni-" + container,
		"cniArgs": [][2]string{{"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name}, {"K8S_POD_UID", string(pod.UID)}},
		"result":  map[string]any{"cniVersion": "1.0.0", "ips": []any{map[string]any{"address": address}}},
	})
	require.NoError(n.t, err)
	dir := filepath.Join(n.cache, "results")
	require.NoError(n.t, os.MkdirAll(dir, 0o755))
	require.NoError(n.t, os.WriteFile(filepath.Join(dir, network+"-"+container+"-"+ifName), text, 0o600))
}

// record leaves what the plugin does.
func (n traces) record(pod *corev1.Pod, container string, selected bool) {
	n.t.Helper()
	r := attachment.Record{
		ID:  attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"},
		Pod: status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}, Reason: "excluded-namespace", Time: time.Now(),
	}
	if selected {
		r.Selected, r.Reason, r.Backend = true, "selected", "nftables"
	}
	require.NoError(n.t, n.store.Write(r))
}

func states(b *bench) map[string]int {
	all := b.counter("meshcni_pods")
	sum := 0
	for _, n := range all {
		sum += n
	}
	assert.Equal(b.t, b.counter("meshcni_pods_known")[""], sum, "the states exclude each other, and no pod is without one: %v", all)
	for _, other := range []string{"outside", "broken"} {
		delete(all, other)
	}
	return all
}

// bare is a pod in the mesh without a check of its own.
func bare(t testing.TB, name string) *corev1.Pod { return named(t, "no-check", name) }

func TestDetection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		start := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionNone)(b, o)
			n.attach(b.pod("well"), "c1", "ptp", "meshcni")
			n.record(b.pod("well"), "c1", true)
			n.attach(b.pod("silent"), "c2", "ptp", "portmap")
			n.attach(b.pod("over"), "c3", "ptp", "meshcni")
			n.record(b.pod("over"), "c3", false)
			n.attach(b.pod("proven"), "c4", "ptp")
			n.attach(b.pod("refused"), "c5", "ptp")
			n.attach(b.pod("outside"), "c6", "ptp")
			n.cached(b.pod("dark"), "c9", "cni-loopback", "lo", "127.0.0.1/8", "loopback") // its network is yet to come
		},
			bare(t, "well"), bare(t, "silent"), bare(t, "over"), bare(t, "dark"), named(t, "passed", "proven"), named(t, "host-network", "host"),
			with(bare(t, "refused"), func(p *corev1.Pod) { p.Annotations["traffic.sidecar.istio.io/excludeInboundPorts"] = "http" }),
			with(bare(t, "outside"), func(p *corev1.Pod) { p.Annotations = nil }),
			with(bare(t, "leaving"), func(p *corev1.Pod) { now := p.CreationTimestamp; p.DeletionTimestamp = &now }),
			with(bare(t, "meshcni-node-x"), func(p *corev1.Pod) { p.Namespace = "meshcni-system" }),
		)
		assert.Equal(t, map[string]int{"captured": 2, "uncaptured": 3, "cannot-tell": 1}, states(start))
		assert.Equal(t, map[string]int{"not-called": 2, "passed-over": 1}, start.counter("meshcni_pods_uncaptured_total"))
		events := start.texts("MeshNotCaptured")
		require.Len(t, events, 3)
		joined := strings.Join(events, "\n")
		assert.Contains(t, joined, "its network was set up without the plugin, by k8s (portmap, ptp); delete the pod")
		assert.Contains(t, joined, "the plugin passed it over (excluded-namespace)")
		assert.Regexp(t, `its settings would be refused \(.*excludeInboundPorts.*\): correct these, then delete the pod`, joined)
		before := len(start.requests())
		time.Sleep(time.Hour)
		assert.Len(t, start.requests(), before, "nothing but the watch")

		rows := map[string]string{}
		for _, p := range start.ctl.Pods() {
			rows[p.Name] = string(p.State) + " " + string(p.Reason)
		}
		assert.Equal(t, map[string]string{
			"well": "captured recorded", "silent": "failed not-called", "over": "failed passed-over", "dark": "unknown no-trace",
			"proven": "captured check-passed", "refused": "failed not-called",
		}, rows)

		for range 3 { // changes of the pod, and rounds
			start.cluster.Set(with(start.pod("silent"), func(p *corev1.Pod) { p.Labels["x"] += "y" }))
			time.Sleep(time.Hour)
		}
		start.settle()
		assert.Empty(t, start.texts("MeshNotCaptured"), "said once")
		assert.Contains(t, start.log.String(), `level=WARN msg="a pod in the mesh is not captured" namespace=default pod=silent`)

		// Its sandbox is made anew, with the plugin, and then without.
		require.NoError(t, os.RemoveAll(n.cache))
		n.attach(start.pod("silent"), "c7", "ptp", "meshcni")
		start.settle()
		time.Sleep(time.Minute)
		assert.Equal(t, "captured attached", rowOf(start, "silent"))
		require.NoError(t, os.RemoveAll(n.cache))
		n.attach(start.pod("silent"), "c8", "ptp")
		start.cluster.Set(with(start.pod("silent"), func(p *corev1.Pod) { p.Labels["x"] = "z" }))
		start.settle()
		assert.Equal(t, "failed not-called", rowOf(start, "silent"), "by the pod's own change, not by a round")
		assert.Len(t, start.texts("MeshNotCaptured"), 1, "that is news")
	})
}

// TestDetectionInExcludedNamespaces: a namespace that is excluded by its labels has no pods in the mesh. In others it is not the
// pods' settings that are wrong, and nothing is said of a pod whose namespace cannot be read.
func TestDetectionInExcludedNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		in := func(namespace, name string) *corev1.Pod {
			return with(bare(t, name), func(p *corev1.Pod) { p.Namespace = namespace })
		}
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionNone)(b, o)
			excludingOff(repair.ActionNone)(b, o)
			n.attach(in("default", "off"), "c1", "ptp")
			n.attach(in("shop", "silent"), "c2", "ptp")
			n.attach(in("unknown", "dark"), "c3", "ptp")
		}, in("default", "off"), in("shop", "silent"), in("unknown", "dark"))
		assert.Equal(t, map[string]int{"uncaptured": 1, "cannot-tell": 1}, states(b))
		events := b.texts("MeshNotCaptured")
		require.Len(t, events, 1)
		assert.Contains(t, events[0], "its network was set up without the plugin, by k8s (ptp); delete the pod")
		assert.NotContains(t, events[0], "refused")
		assert.Equal(t, "unknown namespace", rowOf(b, "dark"))
	})
}

// TestOtherDialects: pods of a mesh that the node is not configured for are named and counted, unless their own plugin is there,
// their namespace is excluded, or the plugin captured them before it was configured otherwise. Nothing is done to them.
func TestOtherDialects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		var served atomic.Bool
		others, err := dialect.Configure([]dialect.Dialect{linkerd.New(), istio.New(), kuma.New()}, netconf.Config{Kubernetes: netconf.Kubernetes{ExcludeNamespaces: []string{"kube-system"}}})
		require.NoError(t, err)
		before := bare(t, "before")
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionDelete)(b, o)
			o.Meshes, o.Elsewhere = others, func(d string) bool { return served.Load() && d == "istio" }
			o.Criteria = map[string]repair.Criteria{"linkerd": {Containers: []string{"check"}, ExitCodes: []int32{7}}}
			n.attach(b.pod("a"), "c1", "ptp", "meshcni")
			n.record(b.pod("a"), "c1", false)
			n.attach(b.pod("before"), "c2", "ptp", "meshcni")
			n.record(b.pod("before"), "c2", true)
		},
			bare(t, "a"), bare(t, "b"), before, named(t, "host-network", "host"),
			with(bare(t, "plain"), func(p *corev1.Pod) { p.Annotations, p.Spec.Containers = nil, p.Spec.Containers[:1] }),
			with(bare(t, "excluded"), func(p *corev1.Pod) { p.Namespace = "kube-system" }),
			with(bare(t, "no-network"), func(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs = "", nil }),
			with(bare(t, "itself"), func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "istio-init"}} }),
		)
		assert.Equal(t, map[string]int{"other-dialect": 2}, states(b))
		assert.Equal(t, map[string]int{"istio": 2}, b.counter("meshcni_other_dialect_pods"))
		for _, name := range []string{"a", "b"} {
			assert.Equal(t, "outside other-dialect", rowOf(b, name))
		}
		require.Len(t, b.ctl.Pods(), 2)
		assert.Contains(t, b.ctl.Pods()[0].Detail, "of mesh istio, which the node's plugin is not configured for (linkerd)")
		served.Store(true)
		time.Sleep(time.Minute)
		assert.Empty(t, states(b), "another program captures them")
		assert.Empty(t, b.counter("meshcni_other_dialect_pods"))
		assert.Empty(t, b.ctl.Pods())
		for _, r := range b.requests() {
			assert.Regexp(t, "^get ", r, "nothing is done")
		}
	})
}

func rowOf(b *bench, name string) string {
	for _, p := range b.ctl.Pods() {
		if p.Name == name {
			return string(p.State) + " " + string(p.Reason)
		}
	}
	return ""
}

// texts are the events with a reason so far.
func (b *bench) texts(reason string) (all []string) {
	for {
		select {
		case e := <-b.events:
			if strings.Contains(e, " "+reason+" ") {
				all = append(all, e)
			}
		default:
			return all
		}
	}
}

// TestDetectionWithoutACache: what cannot be read is no reason to say anything of a pod, and is itself said once.
func TestDetectionWithoutACache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		b := start(t, n.detecting(repair.ActionDelete), bare(t, "a"), bare(t, "b"))
		n.record(b.pod("a"), "c1", true)
		time.Sleep(time.Hour)
		b.settle()
		assert.Equal(t, map[string]int{"captured": 1, "cannot-tell": 1}, states(b))
		assert.Equal(t, "unknown unreadable", rowOf(b, "b"))
		assert.Empty(t, b.drainEvents())
		assert.Equal(t, []string{"get default/a"}, b.requests(), "the test's own")
		assert.Equal(t, 1, strings.Count(b.log.String(), "cannot all be read"))
		require.NoError(t, os.MkdirAll(n.cache, 0o755))
		time.Sleep(time.Minute)
		b.settle()
		assert.Equal(t, "unknown no-trace", rowOf(b, "b"))
		assert.Contains(t, b.log.String(), "can be read")
	})
}

// TestEventsOfDetectionAreLimited: a node full of pods that are not captured does not flood the API server, and each is told in
// the end.
func TestEventsOfDetectionAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		var pods []*corev1.Pod
		for i := range 110 {
			pods = append(pods, bare(t, fmt.Sprintf("p%d", i)))
		}
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionNone)(b, o)
			for _, p := range pods {
				n.attach(b.pod(p.Name), "c"+p.Name, "ptp")
			}
		}, pods...)
		first := len(b.texts("MeshNotCaptured"))
		assert.LessOrEqual(t, first, 55)
		assert.GreaterOrEqual(t, first, 50)
		assert.Equal(t, 110, states(b)["uncaptured"], "counted at once")
		time.Sleep(10 * time.Minute)
		assert.Equal(t, 110, first+len(b.texts("MeshNotCaptured")))
	})
}

// TestBypassesDoNotUseUpTheEventsOfDetection: nearly every pod has a bypass by a family, and few are not captured.
func TestBypassesDoNotUseUpTheEventsOfDetection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		var pods []*corev1.Pod
		for i := range 110 {
			pods = append(pods, bare(t, fmt.Sprintf("p%d", i)))
		}
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionNone)(b, o)
			b.prepare = func(c *repair.Controller) {
				for _, p := range pods {
					c.ReportBypasses(repair.Bypasses{Namespace: p.Namespace, Name: p.Name, UID: string(b.pod(p.Name).UID), Codes: []dialect.BypassCode{dialect.BypassIPv6}, AddressFamilies: []ruleset.Family{ruleset.IPv4}})
				}
			}
		}, pods...)
		assert.Len(t, b.texts("MeshBypass"), 1, "said once for the node")
		for _, p := range pods[:40] {
			b.ctl.ReportBypasses(repair.Bypasses{Namespace: p.Namespace, Name: p.Name, UID: string(b.pod(p.Name).UID), Codes: []dialect.BypassCode{dialect.BypassProxyID}})
		}
		b.settle()
		assert.Equal(t, 40, strings.Count(strings.Join(b.texts("MeshBypass"), "\n"), "Warning MeshBypass proxy-id"), "what somebody asked for is not held back by what nearly every pod has")
		for _, p := range pods[:40] {
			n.attach(b.pod(p.Name), "c"+p.Name, "ptp")
		}
		time.Sleep(11 * time.Second)
		b.settle()
		assert.Len(t, b.texts("MeshNotCaptured"), 40)
	})
}

// TestActionsOnWhatIsDetected: each action takes detection for a reason, if it is to.
func TestActionsOnWhatIsDetected(t *testing.T) {
	for name, c := range map[string]struct {
		action   repair.Action
		change   func(*bench, *repair.Options)
		outcomes map[string]int
	}{
		"label":  {repair.ActionLabel, nil, map[string]int{"labelled not-captured": 1}},
		"delete": {repair.ActionDelete, nil, map[string]int{"evicted not-captured": 1}},
		"repair": {repair.ActionRepair, nil, map[string]int{"repaired not-captured": 1}},
		"not":    {repair.ActionDelete, func(_ *bench, o *repair.Options) { o.Detect.Act = false }, map[string]int{}},
		"a mesh without a check": {repair.ActionLabel, func(_ *bench, o *repair.Options) {
			mesh := consul.New()
			mesh.Policy = selection.Policy{ProxyContainers: []string{"istio-proxy"}}
			o.Meshes = dialect.SetOf(mesh)
		}, map[string]int{"labelled not-captured": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newTraces(t)
				b := start(t, func(b *bench, o *repair.Options) {
					n.detecting(c.action)(b, o)
					n.attach(b.pod("silent"), "c1", "ptp")
					n.attach(b.pod("well"), "c2", "ptp", "meshcni")
					if c.change != nil {
						c.change(b, o)
					}
				}, bare(t, "silent"), bare(t, "well"))
				time.Sleep(time.Hour)
				assert.Equal(t, c.outcomes, b.outcomes())
				log := b.log.String()
				assert.NotContains(t, log, "reason=not-captured", "a pod has one reason")
				if len(c.outcomes) > 0 {
					assert.Regexp(t, `msg="broken pod".* reason=not-called`, log)
				}
				if c.action == repair.ActionRepair {
					assert.Equal(t, map[string]int{"captured": 2}, states(b))
				}
			})
		})
	}
}

// TestNothingCaptured: a pod whose settings leave everything out is not called captured, and what somebody chose is no warning.
func TestNothingCaptured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		annotated := func(name string, annotations map[string]string) *corev1.Pod {
			p := bare(t, name)
			for key, value := range annotations {
				p.Annotations[key] = value
			}
			return p
		}
		const traffic = "traffic.sidecar.istio.io/"
		part := annotated("part", map[string]string{traffic + "includeInboundPorts": ""})
		none := annotated("none", map[string]string{traffic + "includeInboundPorts": "", traffic + "excludeOutboundIPRanges": "0.0.0.0/0,::/0"})
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionDelete)(b, o)
			for i, name := range []string{"part", "none"} {
				n.attach(b.pod(name), fmt.Sprint("c", i), "ptp", "meshcni")
				n.record(b.pod(name), fmt.Sprint("c", i), true)
			}
		}, part, none)
		got := map[string]status.Pod{}
		for _, p := range b.ctl.Pods() {
			got[p.Name] = p
		}
		assert.Equal(t, status.StateCaptured, got["part"].State)
		assert.Equal(t, status.CodePartly, got["part"].Reason)
		assert.Contains(t, got["part"].Detail, "no connection is captured inbound")
		assert.Equal(t, status.StateFailed, got["none"].State)
		assert.Equal(t, status.CodeNothingCaptured, got["none"].Reason)
		assert.True(t, got["none"].NeedsAttention())
		assert.NotNil(t, b.pod("none"), "to start it anew would change nothing")
		for _, name := range []string{"part", "none"} {
			b.ctl.ReportBypasses(repair.Bypasses{Namespace: "default", Name: name, UID: string(b.pod(name).UID), Codes: []dialect.BypassCode{dialect.BypassInbound}})
		}
		b.settle()
		events := strings.Join(b.texts("MeshBypass"), "\n")
		assert.Contains(t, events, "Normal MeshBypass inbound")
		assert.Contains(t, events, "Warning MeshBypass inbound")
	})
}

// TestBypassesLast: the ways past the mesh that captured pods have are in their state and a gauge as long as they are, and a family counts
// where the pod has an address of it.
func TestBypassesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTraces(t)
		shared, both := bare(t, "shared"), bare(t, "both")
		root := int64(1337)
		shared.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &root}
		both.Status.PodIPs = append(both.Status.PodIPs, corev1.PodIP{IP: "10.0.0.9"}, corev1.PodIP{IP: "fd00::9"})
		b := start(t, func(b *bench, o *repair.Options) {
			n.detecting(repair.ActionNone)(b, o)
			for i, name := range []string{"shared", "both"} {
				n.attach(b.pod(name), fmt.Sprint("c", i), "ptp", "meshcni")
				n.record(b.pod(name), fmt.Sprint("c", i), true)
			}
		}, shared, both)
		got := map[string][]string{}
		for _, p := range b.ctl.Pods() {
			got[p.Name] = p.Bypasses
		}
		assert.Equal(t, map[string][]string{"shared": {"proxy-id"}, "both": {"ipv6"}}, got)
		counted := b.counter("meshcni_pod_bypasses")
		assert.Equal(t, []int{1, 1}, []int{counted["proxy-id"], counted["ipv6"]})
		require.NoError(t, b.cluster.Delete(t.Context(), b.pod("shared")))
		b.settle()
		counted = b.counter("meshcni_pod_bypasses")
		assert.Equal(t, []int{0, 1}, []int{counted["proxy-id"], counted["ipv6"]})
	})
}

// TestBypassesAreEvents: the plugin's reports become events of pods that the API server has, once for each pod and bypass, also
// when the report comes first.
func TestBypassesAreEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := int64(1337)
		b := start(t, action(repair.ActionNone), with(bare(t, "a"), func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &root}
		}))
		report := func(name, uid string, codes ...dialect.BypassCode) {
			b.ctl.ReportBypasses(repair.Bypasses{Namespace: "default", Name: name, UID: uid, Codes: codes, AddressFamilies: []ruleset.Family{ruleset.IPv4}})
			b.settle()
		}
		uid := string(b.pod("a").UID)
		report("a", uid, dialect.BypassProxyID, dialect.BypassIPv6, "made-up")
		got := strings.Join(b.texts("MeshBypass"), "\n")
		assert.Contains(t, got, "Warning MeshBypass proxy-id: container \""+b.pod("a").Spec.Containers[0].Name+"\" bypasses the mesh")
		assert.Contains(t, got, "Normal MeshBypass ipv6: ipv6 bypasses the mesh", "the pod has no such address but the interface's own")
		assert.NotContains(t, got, "made-up")
		report("a", uid, dialect.BypassProxyID)
		assert.Empty(t, b.texts("MeshBypass"), "said once")
		report("a", uid, dialect.BypassNetRaw)
		assert.Len(t, b.texts("MeshBypass"), 1, "another is news")
		report("a", "another", dialect.BypassIPv6)
		report("nobody", "x", dialect.BypassIPv6)
		assert.Equal(t, 2, b.ctl.Waiting())
		time.Sleep(time.Hour)
		assert.Empty(t, b.texts("MeshBypass"))
		assert.Zero(t, b.ctl.Waiting(), "one whose pod has been replaced does not wait for ever")

		b.ctl.ReportBypasses(repair.Bypasses{Namespace: "default", Name: "a", UID: uid, Codes: []dialect.BypassCode{"ipv4"}, AddressFamilies: []ruleset.Family{ruleset.IPv4}})
		b.settle()
		assert.Contains(t, strings.Join(b.texts("MeshBypass"), "\n"), "Warning MeshBypass ipv4", "the pod has such an address")
		report("late", "00000000-0000-4000-8000-000000000002", dialect.BypassProxyID)
		time.Sleep(50 * time.Second)
		b.cluster.Set(bare(t, "late")) // the cluster's second pod
		b.settle()
		assert.Len(t, b.texts("MeshBypass"), 1)
		report("late", "", dialect.BypassIPv6)
		assert.Zero(t, b.ctl.Waiting(), "of whom is not known")
	})
}
