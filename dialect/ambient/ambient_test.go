package ambient_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// labelled is a pod with the mode; an empty one is no label.
func labelled(mode string, annotations map[string]string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Labels: map[string]string{}, Annotations: annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}}},
	}
	if mode != "" {
		pod.Labels[ambient.DataplaneMode] = mode
	}
	return pod
}

func namespace(mode string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if mode != "" {
		ns.Labels = map[string]string{ambient.DataplaneMode: mode}
	}
	return ns
}

// probed gives the pod's container a probe of port 8080.
func probed(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}}
	return pod
}

// TestProbePorts: from the source of the node's own connections, the ports of the pod's own probes and hooks are reached directly, and no
// other: that is the only difference from Istio's agent, which exempts all.
func TestProbePorts(t *testing.T) {
	t.Parallel()
	web := intstr.FromString("web")
	get := func(port intstr.IntOrString, host string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port, Host: host}}
	}
	always := corev1.ContainerRestartPolicyAlways
	pod := labelled("ambient", nil)
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "sidecar", RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 9001}},
		StartupProbe: &corev1.Probe{ProbeHandler: get(web, "")},
	}}
	pod.Spec.Containers = []corev1.Container{{
		Name: "cart", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 9002}, {Name: "other", ContainerPort: 9900}},
		LivenessProbe:  &corev1.Probe{ProbeHandler: get(web, "")},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9003}}},
		StartupProbe:   &corev1.Probe{ProbeHandler: get(intstr.FromString("9004"), "")},
		Lifecycle: &corev1.Lifecycle{
			PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(9005)}},
			PreStop:   &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9006)}},
		},
	}, {
		Name: "another's", LivenessProbe: &corev1.Probe{ProbeHandler: get(intstr.FromInt32(9901), "10.244.9.9")},
		ReadinessProbe: &corev1.Probe{ProbeHandler: get(intstr.FromString("nobody's"), "")},
		StartupProbe:   &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(9902), Host: "192.0.2.1"}},
			PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}},
	}}
	large := pod.DeepCopy()
	large.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LONG", Value: strings.Repeat("x", 100<<10)}}
	d := ambient.New(ambient.Options{})
	for name, p := range map[string]*corev1.Pod{
		"whole": pod, "trimmed": podkeep.Trim(pod), "twice": podkeep.Trim(podkeep.Trim(pod)), "large": podkeep.Keep([]dialect.Dialect{d}, large),
	} {
		plan, err := d.Plan(dialect.Subject{Pod: p, Addrs: dialecttest.Addrs()}, dialect.Options{})
		require.NoError(t, err, name)
		assert.Equal(t, redirect.Ports(9001, 9002, 9003, 9004, 9005, 9006), plan.Redirect.Inbound.ProbePorts, name)
		report, err := compare.Compare(t.Context(), ambient.AgentRuleset(plan.Redirect), plan.Ruleset, compare.Options{PodAddrs: dialecttest.Addrs()})
		require.NoError(t, err, name)
		assert.NotEmpty(t, report.Differences, name)
		for _, diff := range report.Differences {
			p := diff.Packet
			assert.Equal(t, "extra in tcp 15006", fmt.Sprintf("%s %s %s %d", diff.Kind(), p.Direction, p.Proto, diff.B.ToPort), "%s: %s", name, diff)
			assert.Contains(t, []string{"169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"}, p.Src.Addr().String(), "%s: %s", name, diff)
			assert.False(t, plan.Redirect.Inbound.ProbePorts.Contains(p.Dst.Port()), "%s: %s", name, diff)
		}
	}
	bypass := probed(labelled("ambient", map[string]string{"ambient.istio.io/bypass-inbound-capture": "true"}))
	r, err := d.Redirect(bypass, nil, dialecttest.Addrs())
	require.NoError(t, err)
	assert.Equal(t, redirect.Inbound{Ports: redirect.NoPorts()}, r.Redirect.Inbound)
}

// TestTheProxyItself: pods of ztunnel are not captured, by what only those write who may make pods in the mesh's own namespace. The same
// words in another namespace let no pod out.
func TestTheProxyItself(t *testing.T) {
	t.Parallel()
	yes := true
	owner := func(kind, name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "1", Controller: &yes}}
		}
	}
	label := func(p *corev1.Pod) { p.Labels["app"] = "ztunnel" }
	for name, c := range map[string]struct {
		namespace string
		change    func(*corev1.Pod)
		options   ambient.Options
		want      status.Code
	}{
		"by its label":                     {"istio-system", label, ambient.Options{}, "node-proxy-pod"},
		"by its DaemonSet":                 {"istio-system", owner("DaemonSet", "ztunnel"), ambient.Options{}, "node-proxy-pod"},
		"by a revision's":                  {"istio-system", owner("DaemonSet", "ztunnel-canary"), ambient.Options{}, "node-proxy-pod"},
		"where the mesh is":                {"mesh", owner("DaemonSet", "ztunnel"), ambient.Options{SystemNamespace: "mesh"}, "node-proxy-pod"},
		"where the mesh is not":            {"istio-system", label, ambient.Options{SystemNamespace: "mesh"}, status.CodeSelected},
		"a tenant's label":                 {"shop", label, ambient.Options{}, status.CodeSelected},
		"a tenant's owner":                 {"shop", owner("DaemonSet", "ztunnel"), ambient.Options{}, status.CodeSelected},
		"another DaemonSet of the mesh's":  {"istio-system", owner("DaemonSet", "log"), ambient.Options{}, status.CodeSelected},
		"a ReplicaSet":                     {"istio-system", owner("ReplicaSet", "ztunnel-1"), ambient.Options{}, status.CodeSelected},
		"another pod of the mesh's":        {"istio-system", func(*corev1.Pod) {}, ambient.Options{}, status.CodeSelected},
		"a tenant's namespace is excluded": {"kube-system", label, ambient.Options{ExcludedNamespaces: []string{"kube-system"}}, status.CodeExcludedNamespace},
	} {
		pod := labelled("ambient", nil)
		pod.Namespace = c.namespace
		c.change(pod)
		for _, p := range []*corev1.Pod{pod, podkeep.Trim(pod)} {
			assert.Equal(t, c.want, ambient.New(c.options).Policy.Decide(p, namespace("ambient")).Reason, name)
		}
	}
	require.ErrorContains(t, ambient.Options{SystemNamespace: "a b"}.Validate(), `ambient.system_namespace: "a b" is not a namespace's name`)
}

func TestSelection(t *testing.T) {
	d := ambient.New(ambient.Options{ExcludedNamespaces: []string{"kube-system"}})
	sidecar := map[string]string{"sidecar.istio.io/status": "{}"}
	onHost := labelled("ambient", nil)
	onHost.Spec.HostNetwork = true
	excluded := labelled("ambient", nil)
	excluded.Namespace = "kube-system"
	tests := []struct {
		name string
		pod  *corev1.Pod
		ns   *corev1.Namespace
		want status.Code
	}{
		{"the pod says so", labelled("ambient", nil), namespace(""), status.CodeSelected},
		{"the pod says so, and there is no namespace", labelled("ambient", nil), nil, status.CodeSelected},
		{"the namespace says so", labelled("", nil), namespace("ambient"), status.CodeSelected},
		{"the pod says so against its namespace", labelled("ambient", nil), namespace("none"), status.CodeSelected},
		{"the pod says no", labelled("none", nil), namespace("ambient"), status.CodeNotEnabled},
		{"nobody says so", labelled("", nil), namespace(""), status.CodeNotEnabled},
		{"something else", labelled("sidecar", nil), namespace(""), status.CodeNotEnabled},
		{"it has a sidecar", labelled("ambient", sidecar), namespace("ambient"), status.CodeHasSidecar},
		{"host network", onHost, namespace("ambient"), status.CodeHostNetwork},
		{"excluded namespace", excluded, namespace("ambient"), status.CodeExcludedNamespace},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, d.Decide(tt.pod, tt.ns).Reason, tt.name)
	}
}

// TestRetiredAnnotation: by it a pod was left alone when Istio redirected on the host.
func TestRetiredAnnotation(t *testing.T) {
	for value, want := range map[string]bool{"disabled": true, "enabled": false} {
		pod := labelled("ambient", map[string]string{"ambient.istio.io/redirection": value})
		plan, err := ambient.New(ambient.Options{}).Plan(dialect.Subject{Pod: pod, Namespace: &corev1.Namespace{}}, dialect.Options{})
		require.NoError(t, err)
		assert.Equal(t, want, strings.Contains(strings.Join(plan.Warnings.Texts(), "\n"), "label istio.io/dataplane-mode=none"), value)
	}
}

func TestOwnSelectors(t *testing.T) {
	in := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpIn, Values: []string{"web", "api"}}}}
	notLegacy := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "legacy", Operator: metav1.LabelSelectorOpDoesNotExist}, {Key: "team", Operator: metav1.LabelSelectorOpExists},
	}}
	pod := func(labels map[string]string) *corev1.Pod {
		p := labelled("ambient", nil)
		p.Labels = labels
		return p
	}
	ns := func(labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: labels}}
	}
	tests := []struct {
		name      string
		selectors []selection.Selector
		pod       *corev1.Pod
		ns        *corev1.Namespace
		want      status.Code
	}{
		{"none", []selection.Selector{}, labelled("ambient", nil), namespace("ambient"), status.CodeNotEnabled},
		{"an empty one is for all", []selection.Selector{{}}, pod(nil), ns(nil), status.CodeSelected},
		{"all but host network", []selection.Selector{{}}, func() *corev1.Pod { p := pod(nil); p.Spec.HostNetwork = true; return p }(), ns(nil), status.CodeHostNetwork},
		{"all but those with a sidecar", []selection.Selector{{}}, func() *corev1.Pod {
			p := pod(nil)
			p.Annotations = map[string]string{"sidecar.istio.io/status": ""}
			return p
		}(), ns(nil), status.CodeHasSidecar},
		{"the mesh's own label means nothing", []selection.Selector{{Pod: in}}, labelled("ambient", nil), namespace("ambient"), status.CodeNotEnabled},
		{"in", []selection.Selector{{Pod: in}}, pod(map[string]string{"tier": "api"}), ns(nil), status.CodeSelected},
		{"not in", []selection.Selector{{Pod: in}}, pod(map[string]string{"tier": "db"}), ns(nil), status.CodeNotEnabled},
		{"both halves", []selection.Selector{{Pod: in, Namespace: notLegacy}}, pod(map[string]string{"tier": "web"}), ns(map[string]string{"team": "a"}), status.CodeSelected},
		{"the namespace's half does not match", []selection.Selector{{Pod: in, Namespace: notLegacy}}, pod(map[string]string{"tier": "web"}), ns(map[string]string{"team": "a", "legacy": ""}), status.CodeNotEnabled},
		{"the pod's half does not match", []selection.Selector{{Pod: in, Namespace: notLegacy}}, pod(nil), ns(map[string]string{"team": "a"}), status.CodeNotEnabled},
		{"the second matches", []selection.Selector{{Pod: in}, {Namespace: notLegacy}}, pod(nil), ns(map[string]string{"team": "a"}), status.CodeSelected},
	}
	for _, tt := range tests {
		d := ambient.New(ambient.Options{Selectors: tt.selectors})
		assert.Equal(t, tt.want, d.Decide(tt.pod, tt.ns).Reason, tt.name)
	}
}

func TestInvalidOptions(t *testing.T) {
	o := ambient.Options{
		Selectors: []selection.Selector{{}, {Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}}},
		ProbeIPv4: netip.MustParseAddr("::1"), ProbeIPv6: netip.MustParseAddr("ff02::1"),
	}
	err := o.Validate()
	for _, want := range []string{"ambient.enablement_selectors: namespace selector 2", `"::1" is not a single host's IPv4 address`, `"ff02::1" is not a single host's IPv6`} {
		assert.ErrorContains(t, err, want)
	}
	assert.Panics(t, func() { ambient.New(o) })
	assert.NoError(t, ambient.Options{}.Validate())
}

// TestOptions: what holds for all pods, and the annotation that says otherwise for one.
func TestOptions(t *testing.T) {
	pod := func(dns string) *corev1.Pod {
		if dns == "" {
			return labelled("ambient", nil)
		}
		return labelled("ambient", map[string]string{ambient.DNSCapture: dns})
	}
	for _, tt := range []struct {
		off      bool
		pod      string
		captured bool
	}{{false, "", true}, {false, "false", false}, {false, "true", true}, {true, "", false}, {true, "true", true}, {true, "false", false}, {true, "1", true}} {
		r, err := ambient.New(ambient.Options{NoDNSCapture: tt.off}).Redirect(pod(tt.pod), nil, dialecttest.Addrs())
		require.NoError(t, err)
		assert.Equal(t, tt.captured, r.Redirect.DNS.Enabled(), "%+v", tt)
	}

	v4, v6 := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("2001:db8::7")
	d := ambient.New(ambient.Options{ProbeIPv4: v4, ProbeIPv6: v6})
	rs, r, err := dialecttest.Case{Pod: probed(pod(""))}.Rules(d)
	require.NoError(t, err)
	assert.Equal(t, redirect.Prefixes(netip.PrefixFrom(v4, 32), netip.PrefixFrom(v6, 128)), d.NodeProxy.ProbeSources)
	assert.Contains(t, rs.IPv4.String(), "-A ISTIO_INBOUND -s 198.18.0.1/32 -p tcp -m tcp --dport 8080 -j ACCEPT")
	assert.Contains(t, rs.IPv6.String(), "-A ISTIO_OUTPUT -d 2001:db8::7/128 -p tcp -j ACCEPT")
	assert.NotContains(t, rs.String(), "169.254.7.127")
	assert.Contains(t, ambient.AgentRuleset(r).String(), "-A ISTIO_PRERT -s 198.18.0.1/32 -p tcp -j ACCEPT")

	d = ambient.New(ambient.Options{NoIPv6: true})
	plan, err := d.Plan(dialect.Subject{Pod: pod(""), Addrs: dialecttest.Addrs()}, dialect.Options{})
	require.NoError(t, err)
	assert.Nil(t, plan.Ruleset.IPv6)
	assert.Contains(t, plan.BypassCodes(), dialect.BypassIPv6)
	plan, err = d.Plan(dialect.Subject{Pod: pod(""), Addrs: dialecttest.Addrs()}, dialect.Options{UncapturedFamily: redirect.UncapturedDrop})
	require.NoError(t, err)
	assert.NotEmpty(t, plan.Ruleset.IPv6.Chains)
	assert.Empty(t, ambient.AgentRuleset(plan.Redirect).IPv6.Chains)
}

func TestSettings(t *testing.T) {
	same := func(*redirect.Redirect) {}
	dialecttest.Settings(t, ambient.New(ambient.Options{}), labelled("ambient", nil), ambient.DefaultRedirect(), []string{
		"ambient.istio.io/bypass-inbound-capture", ambient.DNSCapture, "istio.io/reroute-virtual-interfaces",
	}, []dialecttest.Setting{
		{Key: "ambient.istio.io/bypass-inbound-capture", Value: "true", Want: func(r *redirect.Redirect) { r.Inbound = redirect.Inbound{Ports: redirect.NoPorts()} }},
		{Key: "ambient.istio.io/bypass-inbound-capture", Value: "false", Want: same},
		{Key: "ambient.istio.io/bypass-inbound-capture", Value: "yes"},
		{Key: ambient.DNSCapture, Value: "false", Want: func(r *redirect.Redirect) { r.DNS = redirect.DNS{} }},
		{Key: ambient.DNSCapture, Value: "true", Want: same},
		{Key: ambient.DNSCapture, Value: "on"},
		{Key: "istio.io/reroute-virtual-interfaces", Value: "virt0, virt1", Want: func(r *redirect.Redirect) { r.VirtualInterfaces = []string{"virt0", "virt1"} }},
		{Key: "istio.io/reroute-virtual-interfaces", Value: "-j"},
	})
}

// The program of a pod in ambient mode, with the routing that its replies need.
func ExampleNew() {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "cart",
		Labels:      map[string]string{"istio.io/dataplane-mode": "ambient"},
		Annotations: map[string]string{"ambient.istio.io/dns-capture": "false"},
	}}
	d := ambient.New(ambient.Options{ExcludedNamespaces: []string{"kube-system"}})
	fmt.Println(d.Decide(pod, nil).Reason)
	built, err := d.Redirect(pod, nil, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	program := built.Redirect.MustRuleset().IPv4
	for _, c := range program.Chains {
		for _, r := range c.Rules {
			fmt.Println(c.Table, c.Name, r.Text(program.Family))
		}
	}
	for _, line := range program.IPCommands() {
		fmt.Println(line)
	}
	// Output:
	// selected
	// mangle PREROUTING -j ISTIO_PREROUTING
	// mangle OUTPUT -j ISTIO_OUTPUT
	// mangle ISTIO_PREROUTING -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
	// mangle ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
	// nat PREROUTING -j ISTIO_PREROUTING
	// nat OUTPUT -j ISTIO_OUTPUT
	// nat ISTIO_PREROUTING -p tcp -j ISTIO_INBOUND
	// nat ISTIO_OUTPUT -d 169.254.7.127/32 -p tcp -j ACCEPT
	// nat ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
	// nat ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT
	// nat ISTIO_OUTPUT -m mark --mark 0x539/0xfff -j RETURN
	// nat ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN
	// nat ISTIO_OUTPUT -j ISTIO_REDIRECT
	// nat ISTIO_INBOUND -p tcp -m tcp --dport 15008 -j RETURN
	// nat ISTIO_INBOUND -m mark --mark 0x539/0xfff -j RETURN
	// nat ISTIO_INBOUND ! -d 127.0.0.1/32 -p tcp -j ISTIO_IN_REDIRECT
	// nat ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006
	// nat ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001
	// ip rule add fwmark 0x111/0xfff pref 32764 lookup 100
	// ip route add local 0.0.0.0/0 dev lo table 100
}
