package agreementtest_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/plugin/plugintest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
)

// question is a pod, and what is known and wanted of it.
type question struct {
	mesh      string // or several, separated by commas
	pod       *corev1.Pod
	namespace *corev1.Namespace
	addrs     []netip.Addr
	options   dialect.Options
	excluded  string // labels of namespaces that are excluded
}

// meshes are those of the question, as a configuration would have them.
func (q question) meshes(t *testing.T) dialect.Set {
	set, err := dialect.Configure(builtin.All(), netconf.Config{Dialects: strings.Split(q.mesh, ","), Kubernetes: netconf.Kubernetes{ExcludeNamespaceSelector: q.excluded}})
	require.NoError(t, err)
	return set.WithOptions(q.options)
}

// verdict is what one door says.
type verdict struct {
	selected bool
	refused  string // why, if so
	rules    string
	bypasses []string
}

func text(rs ruleset.Ruleset) string { return rs.IPv4.String() + rs.IPv6.String() }

var usable = redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: redirect.PresenceUsable}

func (q question) plan(t *testing.T) verdict {
	p, err := q.meshes(t).Plan(dialect.Subject{Pod: q.pod, Namespace: q.namespace, Addrs: q.addrs, Kernel: usable})
	v := verdict{selected: p.Decision.Selected, rules: text(p.Ruleset)}
	for _, c := range p.BypassCodes() {
		v.bypasses = append(v.bypasses, string(c))
	}
	if err != nil {
		v.refused = err.Error()
	}
	return v
}

func (q question) plugin(t *testing.T) verdict {
	type object = map[string]any
	ips := []object{}
	for _, a := range q.addrs {
		ips = append(ips, object{"address": netip.PrefixFrom(a, a.BitLen()).String()})
	}
	config, err := json.Marshal(object{
		"cniVersion": "1.0.0", "name": "n", "type": "meshcni", "run_dir": t.TempDir(), "dialect": strings.Split(q.mesh, ","),
		"kubernetes":        object{"exclude_namespace_selector": q.excluded},
		"uncaptured_family": q.options.UncapturedFamily, "refuse_proxy_uid": q.options.RefuseProxyUID, "refuse_net_raw": q.options.RefuseNetRaw,
		"prevResult": object{"cniVersion": "1.0.0", "ips": ips},
	})
	require.NoError(t, err)
	pods, ns := plugintest.NewPods(q.pod), &plugintest.NetNS{}
	pods.SetNamespace(q.namespace)
	agent := &plugintest.Agent{Options: q.options}
	agent.Set(q.pod, q.namespace)
	var stdout, log bytes.Buffer
	p := plugin.Plugin{Dialects: builtin.All(), OpenPods: pods.Open, OpenAgent: agent.Open, OpenNetNS: ns.Open, OpenLog: func(netconf.Config, io.Writer) (*slog.Logger, io.Closer) {
		return slog.New(slog.NewJSONHandler(&log, nil)), io.NopCloser(nil)
	}}
	env := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_PATH": "/b",
		"CNI_ARGS": "K8S_POD_NAMESPACE=" + q.pod.Namespace + ";K8S_POD_NAME=" + q.pod.Name,
	}
	if q.pod.UID != "" {
		env["CNI_ARGS"] += ";K8S_POD_UID=" + string(q.pod.UID)
	}
	exit := p.Run(t.Context(), plugin.IO{
		Getenv: func(k string) string { return env[k] }, Stdin: bytes.NewReader(config), Stdout: &stdout,
	})
	var v verdict
	for line := range strings.Lines(log.String()) {
		var r struct {
			Msg      string
			Selected bool
			Bypasses []string
		}
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		if r.Msg == "decision" {
			v.selected, v.bypasses = r.Selected, r.Bypasses
		}
	}
	if len(v.bypasses) == 0 {
		v.bypasses = nil
	}
	if exit != 0 {
		var failure struct{ Msg string }
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &failure))
		v.refused = failure.Msg
	}
	v.rules = text(ns.Live)
	return v
}

// repair does not say what it finds of bypasses; that is the plugin's to log.
func (q question) repair(t *testing.T, bypasses []string) verdict {
	m := &repair.InPlace{Meshes: q.meshes(t), Namespace: func(context.Context, string) (*corev1.Namespace, error) { return q.namespace, nil }}
	rs, err := m.Rulesets(t.Context(), q.pod)
	v := verdict{selected: !errors.Is(err, repair.ErrNotSelected), bypasses: bypasses}
	switch {
	case errors.Is(err, repair.ErrRefused):
		v.refused = strings.TrimPrefix(err.Error(), repair.ErrRefused.Error()+": ")
	case v.selected:
		require.NoError(t, err)
		v.rules = text(rs[0])
	}
	return v
}

func (q question) program(t *testing.T) verdict {
	files := map[string]string{}
	for name, object := range map[string]any{"pod": q.pod, "namespace": q.namespace} {
		b, err := json.Marshal(object)
		require.NoError(t, err)
		files[name] = string(b)
	}
	run := func(args ...string) (string, string, int) {
		var out, errOut bytes.Buffer
		args = append(args, "-f", "pod", "--namespace-file", "namespace", "--dialect", q.mesh, "--exclude-namespace-selector", q.excluded,
			"--uncaptured-family", string(cmp.Or(q.options.UncapturedFamily, redirect.UncapturedAllow)), fmt.Sprintf("--refuse-proxy-uid=%t", q.options.RefuseProxyUID), fmt.Sprintf("--refuse-net-raw=%t", q.options.RefuseNetRaw))
		code := redirectcmd.Program{Stdout: &out, Stderr: &errOut, CNIConfDirs: []string{}, ReadFile: func(name string) ([]byte, error) {
			return []byte(files[name]), nil
		}}.Main(t.Context(), args)
		return out.String(), errOut.String(), code
	}
	out, _, code := run("explain", "-o", "json")
	var x struct {
		Decision    struct{ Selected bool }
		Refused     []string
		BypassCodes []string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &x))
	assert.Equal(t, len(x.Refused) > 0, code != 0)
	v := verdict{selected: x.Decision.Selected}
	if len(x.BypassCodes) > 0 {
		v.bypasses = x.BypassCodes
	}
	for _, family := range []string{"4", "6"} {
		rules, said, code := run("rules", "--family", family)
		assert.Equal(t, len(x.Refused) > 0, code != 0, said)
		if code != 0 {
			v.refused = strings.TrimSuffix(strings.ReplaceAll(said[strings.Index(said, "meshcni-redirect: "):], "meshcni-redirect: ", ""), "\n")
		}
		for line := range strings.Lines(rules) {
			if !strings.HasPrefix(line, "#") {
				v.rules += line
			}
		}
	}
	for _, r := range x.Refused {
		assert.Contains(t, v.refused, r)
	}
	return v
}

// anyPods has another name than the method Pods. nodePods is what a controller of the node's proxy knows of a node with one pod.
type anyPods = nodecontrol.Pods

type nodePods struct {
	anyPods
	q      question
	meshes dialect.Set
}

func (n nodePods) ByUID(types.UID) *corev1.Pod { return n.q.pod }
func (n nodePods) Judgement(pod *corev1.Pod) *judge.Judgement {
	return judge.New(n.meshes).Pod(pod, n.q.namespace, nil)
}

func (q question) nodeProxy(t *testing.T) (v verdict) {
	c, err := nodecontrol.New(nodecontrol.Options{
		Meshes: q.meshes(t), Pods: nodePods{q: q, meshes: q.meshes(t)},
		Namespaces: struct{ nodecontrol.Namespaces }{}, Proxy: struct{ nodeproxy.Proxy }{},
	})
	require.NoError(t, err)
	p, err := c.Plan(q.pod.UID)
	v.selected, v.rules = p.Decision.Selected, text(p.Ruleset)
	for _, code := range p.BypassCodes() {
		v.bypasses = append(v.bypasses, string(code))
	}
	if err != nil {
		v.refused = err.Error()
	}
	return v
}

// TestEveryDoorDecidesAlike asks all of them about the same pods, with the same options: each pod with each option, beside the
// pod's addresses in turn.
func TestEveryDoorDecidesAlike(t *testing.T) {
	t.Parallel()
	dual := dialecttest.Addrs()
	refusals, bypasses := map[string]int{}, map[string]int{}
	all := questions(t)
	for i, name := range slices.Sorted(maps.Keys(all)) {
		q := all[name]
		for j, addrs := range [][]netip.Addr{dual, dual[:1], {dual[1], dual[0]}} {
			for k, o := range []dialect.Options{{}, {UncapturedFamily: redirect.UncapturedDrop}, {RefuseProxyUID: true}, {RefuseNetRaw: true}} {
				if (i+k)%3 != j && !longtest.On {
					continue
				}
				q.addrs, q.options = addrs, o
				q.pod.Status.PodIPs = nil
				for _, a := range addrs {
					q.pod.Status.PodIPs = append(q.pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
				}
				what := fmt.Sprintf("%s %v %+v", name, addrs, o)
				want := q.plan(t)
				assert.Equal(t, want, q.plugin(t), "the plugin: %s", what)
				assert.Equal(t, want, q.repair(t, want.bypasses), "repair: %s", what)
				assert.Equal(t, want, q.program(t), "the rule program: %s", what)
				if want.refused != "" {
					assert.Empty(t, want.rules, what)
					refusals[q.mesh]++
				}
				for _, b := range want.bypasses {
					bypasses[b]++
				}
			}
		}
	}
	for _, mesh := range builtin.Names() {
		assert.NotZero(t, refusals[mesh], "no pod of %s was refused, so nothing was shown of it", mesh)
	}
	for _, code := range []dialect.BypassCode{dialect.BypassIPv6, dialect.BypassProxyID, dialect.BypassNetRaw} {
		assert.NotZero(t, bypasses[string(code)], "no pod left %s open", code)
	}
}

// TestEveryDoorChoosesAlike: of several meshes all take the same one, whatever the order.
func TestEveryDoorChoosesAlike(t *testing.T) {
	t.Parallel()
	taken := map[string]int{}
	for name, q := range questions(t) {
		if q.mesh == "ambient" { // whose pods the plugin leaves to an agent
			continue
		}
		q.addrs, q.pod.Status.PodIPs = dialecttest.Addrs(), nil
		for _, a := range q.addrs {
			q.pod.Status.PodIPs = append(q.pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
		alone := q.plan(t)
		for _, list := range []string{"ambient,istio,linkerd,kuma,consul", "consul,kuma,linkerd,ambient,istio"} {
			mesh := q.mesh
			q.mesh = list
			want, what := q.plan(t), name+" "+list
			assert.Equal(t, want, q.plugin(t), "the plugin: %s", what)
			assert.Equal(t, want, q.repair(t, want.bypasses), "repair: %s", what)
			assert.Equal(t, want, q.program(t), "the rule program: %s", what)
			assert.Equal(t, want, q.nodeProxy(t), "the controller of the node's proxy: %s", what)
			assert.Equal(t, alone, want, "no other mesh has the recorded pods: %s", what)
			q.mesh = mesh
			if want.selected {
				taken[mesh]++
			}
		}
	}
	for _, mesh := range []string{"istio", "linkerd", "kuma", "consul"} {
		assert.NotZero(t, taken[mesh], mesh)
	}
}

// TestEveryDoorExcludesAlike: by the labels of the pod's namespace.
func TestEveryDoorExcludesAlike(t *testing.T) {
	t.Parallel()
	taken, left := map[string]int{}, map[string]int{}
	for name, q := range questions(t) {
		for excluded, matches := range map[string]bool{"team in (data,ml)": true, "team!=ml": false, "!team": false} {
			q.addrs, q.excluded, q.namespace = dialecttest.Addrs(), excluded, q.namespace.DeepCopy()
			q.pod.Status.PodIPs = nil
			for _, a := range q.addrs {
				q.pod.Status.PodIPs = append(q.pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
			}
			if q.namespace.Labels == nil {
				q.namespace.Labels = map[string]string{}
			}
			q.namespace.Labels["team"] = "ml"
			want, what := q.plan(t), name+" "+excluded
			assert.False(t, matches && want.selected, what)
			assert.Equal(t, want, q.plugin(t), "the plugin: %s", what)
			assert.Equal(t, want, q.repair(t, want.bypasses), "repair: %s", what)
			assert.Equal(t, want, q.program(t), "the rule program: %s", what)
			open := q
			if want.selected {
				taken[q.mesh]++
			} else if open.excluded = ""; open.plan(t).selected {
				left[q.mesh]++
			}
		}
	}
	for _, mesh := range builtin.Names() {
		assert.NotZero(t, taken[mesh], mesh)
		assert.NotZero(t, left[mesh], mesh)
	}
}

// questions are the recorded pods of each mesh, as they are and with what its rules may take for the proxy.
func questions(t *testing.T) map[string]question {
	t.Helper()
	all := map[string]question{}
	add := func(name, mesh string, pod *corev1.Pod, ns *corev1.Namespace) {
		if pod.Namespace == "" {
			pod.Namespace = "shop" // which a real one always has
		}
		if ns == nil {
			ns = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}}
		}
		all[mesh+" "+name] = question{mesh: mesh, pod: pod, namespace: ns}
	}
	const root = "../../.."
	for mesh, dir := range map[string]string{"istio": "testdata/fates", "linkerd": "testdata/fates/linkerd", "consul": "testdata/fates/consul"} {
		for name, c := range dialecttest.Recorded(t, filepath.Join(root, dir)) {
			add(name, mesh, c.Pod, c.Namespace)
		}
	}
	kumas, err := filepath.Glob(filepath.Join(root, "testdata/kuma/*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, kumas)
	for _, file := range kumas {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		pod := &corev1.Pod{}
		require.NoError(t, json.Unmarshal(b, pod))
		add(filepath.Base(file), "kuma", pod, nil)
	}
	add("ambient", "ambient", &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "cart", UID: "7d43a1c2-0000-4000-8000-000000000001", Labels: map[string]string{"istio.io/dataplane-mode": "ambient"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
	}, nil)
	for name, q := range maps.Clone(all) {
		d := dialect.SetOf(builtin.All()...).Lookup(q.mesh)
		built, err := d.Redirect(q.pod, q.namespace, nil)
		if err != nil {
			continue // refused as it is
		}
		app := corev1.Container{Name: "consul-dataplane-x"}
		if ids := built.Redirect.Proxy.UIDs; len(ids) > 0 {
			id := int64(ids[0])
			app.SecurityContext = &corev1.SecurityContext{RunAsUser: &id}
		} else {
			app.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_RAW"}}}
		}
		pod := q.pod.DeepCopy()
		pod.Spec.Containers = append(pod.Spec.Containers, app)
		all[name+", leaky"] = question{mesh: q.mesh, pod: pod, namespace: q.namespace}
	}
	return all
}
