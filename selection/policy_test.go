package selection_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

var yes = true

// policy is like a mesh's in everything that a Policy can say.
var policy = selection.Policy{
	ExcludedNamespaces: []string{"kube-system", "mesh-system"},
	ExcludedNamespaceLabels: []labels.Selector{
		labels.SelectorFromSet(labels.Set{"team": "nobody"}), labels.SelectorFromSet(labels.Set{"mesh": "off"}),
	},
	InitContainers: []string{"mesh-init"}, PrivilegedInitContainers: []string{"mesh-setup"},

	ProxyContainers:   []string{"mesh-proxy"},
	DisableEnv:        "MESH_OFF",
	ProxyCommand:      "proxy",
	ProxyTypes:        []string{"sidecar"},
	InjectKey:         "mesh/inject",
	ForeignAnnotation: "other/status",
	Selectors: []selection.Selector{
		{Pod: metav1.LabelSelector{MatchLabels: map[string]string{"mesh/mode": "on"}}},
		{Pod: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "mesh/mode", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"off"}}}}},
	},
	StatusAnnotation: "mesh/status",
	Required: []selection.Requirement{
		{Keys: []string{"mesh/injected"}, Values: []string{"true", "yes"}},
		{Keys: []string{"mesh/state", "mesh/state-v2"}},
	},
	Decline: func(pod *corev1.Pod, proxy *corev1.Container) (status.Code, string) {
		none := func(e corev1.EnvVar) bool { return e.Name == "MESH_INTERCEPTION" && e.Value == "none" }
		switch {
		case pod.Annotations["mesh/trial"] == "yes":
			return status.CodeDryRun, "mesh/trial is yes"
		case pod.Annotations["mesh/interception"] == "none":
			return status.CodeInterceptionNone, "annotation mesh/interception"
		case proxy != nil && slices.ContainsFunc(proxy.Env, none):
			return status.CodeInterceptionNone, "variable MESH_INTERCEPTION"
		}
		return "", ""
	},
}

// meshed is a pod that the policy selects, but for the changes.
func meshed(changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   "shop",
			Name:        "cart",
			Labels:      map[string]string{"mesh/inject": "true"},
			Annotations: map[string]string{"mesh/status": "{}", "mesh/injected": "true", "mesh/state": "waiting"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "app"},
			{Name: "mesh-proxy", Args: []string{"proxy", "sidecar", "--verbose"}},
		}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func in(namespace string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace = namespace }
}

// namespaceOf is a pod's. The one that is named off has the label for it.
func namespaceOf(pod *corev1.Pod) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}}
	if pod.Namespace == "off" {
		ns.Labels = map[string]string{"mesh": "off"}
	}
	return ns
}

func onHost(p *corev1.Pod) { p.Spec.HostNetwork = true }

func container(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name})
	}
}

func initContainer(c corev1.Container) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, c) }
}

func withoutProxy(p *corev1.Pod) {
	p.Spec.Containers = slices.DeleteFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "mesh-proxy" })
}

func proxyEnv(name, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := &p.Spec.Containers[1]
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

func proxyArgs(args ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[1].Args = args }
}

func label(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"mesh/inject": value} }
}

func annotation(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels, p.Annotations["mesh/inject"] = nil, value }
}

func annotate(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func off(p *corev1.Pod) { p.Labels = map[string]string{"mesh/mode": "off"} }

func withoutStatus(p *corev1.Pod) { delete(p.Annotations, "mesh/status") }

var cases = []struct {
	name     string
	changes  []func(*corev1.Pod)
	reason   status.Code
	warnings int
}{
	{"a meshed pod", nil, status.CodeSelected, 0},
	{"without label", []func(*corev1.Pod){func(p *corev1.Pod) { p.Labels = nil }}, status.CodeSelected, 0},
	{"an empty status is a status", []func(*corev1.Pod){func(p *corev1.Pod) { p.Annotations["mesh/status"] = "" }}, status.CodeSelected, 0},

	{"excluded namespace", []func(*corev1.Pod){in("kube-system")}, status.CodeExcludedNamespace, 0},
	{"not a prefix of one", []func(*corev1.Pod){in("kube")}, status.CodeSelected, 0},

	{"host network", []func(*corev1.Pod){onHost}, status.CodeHostNetwork, 0},

	{"init container", []func(*corev1.Pod){initContainer(corev1.Container{Name: "mesh-init"})}, status.CodeInitContainer, 0},
	{"init container that may set rules", []func(*corev1.Pod){initContainer(corev1.Container{
		Name: "mesh-setup", SecurityContext: &corev1.SecurityContext{Privileged: &yes},
	})}, status.CodeInitContainer, 0},
	{"init container with the capability for it", []func(*corev1.Pod){initContainer(corev1.Container{
		Name: "mesh-setup", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}},
	})}, status.CodeInitContainer, 0},
	{"init container with all capabilities", []func(*corev1.Pod){initContainer(corev1.Container{
		Name: "mesh-setup", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"ALL"}}},
	})}, status.CodeInitContainer, 0},
	{"init container that may not", []func(*corev1.Pod){initContainer(corev1.Container{
		Name: "mesh-setup", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"NET_ADMIN"}}},
	})}, status.CodeSelected, 0},
	{"its name on an ordinary container", []func(*corev1.Pod){container("mesh-init")}, status.CodeInitContainer, 0},
	{"somebody else's init container", []func(*corev1.Pod){initContainer(corev1.Container{Name: "migrate"})}, status.CodeSelected, 0},

	{"disabled", []func(*corev1.Pod){proxyEnv("MESH_OFF", "true")}, status.CodeProxyDisabled, 0},
	{"disabled, said as 1", []func(*corev1.Pod){proxyEnv("MESH_OFF", "1")}, status.CodeProxyDisabled, 0},
	{"not disabled", []func(*corev1.Pod){proxyEnv("MESH_OFF", "false")}, status.CodeSelected, 0},
	{"disabled by what is no boolean", []func(*corev1.Pod){proxyEnv("MESH_OFF", "perhaps")}, status.CodeSelected, 1},
	{"the last of two counts", []func(*corev1.Pod){proxyEnv("MESH_OFF", "true"), proxyEnv("MESH_OFF", "false")}, status.CodeSelected, 0},
	{"on another container it says nothing", []func(*corev1.Pod){func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "MESH_OFF", Value: "true"}}
	}}, status.CodeSelected, 0},

	{"no proxy", []func(*corev1.Pod){withoutProxy}, status.CodeNoProxy, 0},
	{"native sidecar", []func(*corev1.Pod){withoutProxy, initContainer(corev1.Container{Name: "mesh-proxy"})}, status.CodeSelected, 0},
	{"native sidecar that is disabled", []func(*corev1.Pod){withoutProxy, initContainer(corev1.Container{
		Name: "mesh-proxy", Env: []corev1.EnvVar{{Name: "MESH_OFF", Value: "true"}},
	})}, status.CodeProxyDisabled, 0},

	{"another type", []func(*corev1.Pod){proxyArgs("proxy", "router")}, status.CodeProxyType, 0},
	{"an empty type", []func(*corev1.Pod){proxyArgs("proxy", "")}, status.CodeProxyType, 0},
	{"one argument says no type", []func(*corev1.Pod){proxyArgs("proxy")}, status.CodeSelected, 0},
	{"another command has no type", []func(*corev1.Pod){proxyArgs("wait", "router")}, status.CodeSelected, 0},
	{"only the second argument counts", []func(*corev1.Pod){proxyArgs("proxy", "--log", "router")}, status.CodeProxyType, 0},

	{"label false", []func(*corev1.Pod){label("false")}, status.CodeInjectDisabled, 0},
	{"label F", []func(*corev1.Pod){label("F")}, status.CodeInjectDisabled, 0},
	{"annotation false", []func(*corev1.Pod){annotation("false")}, status.CodeInjectDisabled, 0},
	{"label true hides annotation false", []func(*corev1.Pod){annotation("false"), label("true")}, status.CodeSelected, 0},
	{"label false hides annotation true", []func(*corev1.Pod){annotation("true"), label("false")}, status.CodeInjectDisabled, 0},
	{"an empty label hides annotation false", []func(*corev1.Pod){annotation("false"), label("")}, status.CodeSelected, 0},
	{"a label that is no boolean hides annotation false", []func(*corev1.Pod){annotation("false"), label("maybe")}, status.CodeSelected, 1},
	{"a label that is no boolean", []func(*corev1.Pod){label("no")}, status.CodeSelected, 1},
	{"an annotation that is no boolean", []func(*corev1.Pod){annotation("off")}, status.CodeSelected, 1},

	{"another kind of proxy", []func(*corev1.Pod){annotate("other/status", "")}, status.CodeHasSidecar, 0},
	{"no selector matches", []func(*corev1.Pod){off}, status.CodeNotEnabled, 0},
	{"a requirement has another value", []func(*corev1.Pod){annotate("mesh/injected", "false")}, status.CodeNotInjected, 0},
	{"a requirement is met by its second value", []func(*corev1.Pod){annotate("mesh/injected", "yes")}, status.CodeSelected, 0},
	{"a requirement is empty", []func(*corev1.Pod){annotate("mesh/state", "")}, status.CodeNotInjected, 0},
	{"a requirement is met under its second key", []func(*corev1.Pod){annotate("mesh/state", ""), annotate("mesh/state-v2", "x")}, status.CodeSelected, 0},
	{"not injected", []func(*corev1.Pod){withoutStatus}, status.CodeNotInjected, 0},
	{"a trial run", []func(*corev1.Pod){annotate("mesh/trial", "yes")}, status.CodeDryRun, 0},
	{"no trial run", []func(*corev1.Pod){annotate("mesh/trial", "no")}, status.CodeSelected, 0},
	{"no interception, by annotation", []func(*corev1.Pod){annotate("mesh/interception", "none")}, status.CodeInterceptionNone, 0},
	{"no interception, by the proxy", []func(*corev1.Pod){proxyEnv("MESH_INTERCEPTION", "none")}, status.CodeInterceptionNone, 0},
	{"no interception, with warnings", []func(*corev1.Pod){annotate("mesh/interception", "none"), label("no")}, status.CodeInterceptionNone, 1},
	{"its namespace has the label", []func(*corev1.Pod){in("off")}, status.CodeNamespaceExcludedByLabel, 0},
	{"warnings are kept", []func(*corev1.Pod){withoutStatus, label("no"), proxyEnv("MESH_OFF", "so so")}, status.CodeNotInjected, 2},
}

func TestDecide(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			pod := meshed(c.changes...)
			before := pod.DeepCopy()
			d := policy.Decide(pod, namespaceOf(pod))
			assert.Equal(t, c.reason, d.Reason, d.Detail)
			assert.Equal(t, c.reason == status.CodeSelected, d.Selected)
			assert.NotEmpty(t, d.Detail)
			assert.Len(t, d.Warnings, c.warnings)
			assert.Equal(t, before, pod, "Decide changed the pod")
			alone := policy.Decide(pod, nil)
			if last := c.reason == status.CodeSelected || c.reason == status.CodeNamespaceExcludedByLabel; last {
				assert.True(t, alone.Undecided, "the namespace may still exclude it")
				return
			}
			assert.Equal(t, d, alone, "the namespace changed the answer")
		})
	}
}

// TestEveryReasonHasACase keeps the table above complete.
func TestEveryReasonHasACase(t *testing.T) {
	seen := map[status.Code]bool{status.CodeProxyMissing: true} // see TestMissingProxy
	for _, c := range cases {
		seen[c.reason] = true
	}
	for _, r := range selection.Reasons() {
		assert.True(t, seen[r], "no case gives reason %q", r)
	}
	assert.Len(t, seen, len(selection.Reasons()), "a reason is missing from Reasons")
}

// TestOrder: of two reasons against a pod the earlier in Reasons is given.
func TestOrder(t *testing.T) {
	against := map[status.Code]func(*corev1.Pod){
		status.CodeExcludedNamespace: in("kube-system"),
		status.CodeHostNetwork:       onHost,
		status.CodeInitContainer:     container("mesh-init"),
		status.CodeProxyDisabled:     proxyEnv("MESH_OFF", "true"),
		status.CodeNoProxy:           withoutProxy,
		status.CodeProxyType:         proxyArgs("proxy", "router"),
		status.CodeInjectDisabled:    label("false"),
		status.CodeHasSidecar:        annotate("other/status", "x"),
		status.CodeNotEnabled: func(p *corev1.Pod) {
			p.Labels = maps.Clone(p.Labels)
			p.Labels["mesh/mode"] = "off"
		},
		status.CodeNotInjected:              withoutStatus,
		status.CodeDryRun:                   annotate("mesh/trial", "yes"),
		status.CodeInterceptionNone:         annotate("mesh/interception", "none"),
		status.CodeNamespaceExcludedByLabel: in("off"),
	}
	// Both are about the proxy container, which the other says is absent.
	apart := []status.Code{status.CodeProxyDisabled, status.CodeProxyType}
	spaces := []status.Code{status.CodeExcludedNamespace, status.CodeNamespaceExcludedByLabel} // a pod has one namespace
	for i, first := range selection.Reasons() {
		for _, second := range selection.Reasons()[i+1:] { // that the proxy is missing is against no pod: see TestMissingProxy
			if second == status.CodeSelected || second == status.CodeProxyMissing || first == status.CodeNoProxy && slices.Contains(apart, second) ||
				second == status.CodeNoProxy && slices.Contains(apart, first) || slices.Contains(spaces, first) && slices.Contains(spaces, second) {
				continue
			}
			pod := meshed(against[first], against[second])
			d := policy.Decide(pod, namespaceOf(pod))
			assert.Equal(t, first, d.Reason, "%s against %s", first, second)
		}
	}
}

// TestDeclinePanics: what cannot be told is neither out nor decided, and what rules the pod out before is as ever.
func TestDeclinePanics(t *testing.T) {
	p := policy
	p.Decline = func(_ *corev1.Pod, proxy *corev1.Container) (status.Code, string) { panic(proxy) }
	pod := meshed()
	for _, namespace := range []*corev1.Namespace{nil, namespaceOf(pod)} {
		d := p.Decide(pod, namespace)
		require.ErrorContains(t, d.Err, "its Policy.Decline panics: ")
		assert.True(t, d.Selected && d.Undecided)
		assert.Equal(t, d.Err.Error(), d.Detail)
		assert.LessOrEqual(t, len(d.Detail), 300)
	}
	d, out := p.RuleOut(pod.Annotations)
	require.ErrorContains(t, d.Err, "panics: nil")
	assert.False(t, out)
	pod.Spec.HostNetwork = true
	d = p.Decide(pod, nil)
	require.NoError(t, d.Err)
	assert.Equal(t, status.CodeHostNetwork, d.Reason)
}

// An injector may have words of its own for on and off, and a dialect reasons.
func TestWordsOfItsOwn(t *testing.T) {
	p := selection.Policy{
		InjectKey: "mesh/inject", InjectOn: []string{"enabled"}, InjectOff: []string{"disabled", "off"},
		Decline: func(pod *corev1.Pod, _ *corev1.Container) (status.Code, string) {
			if pod.Annotations["mesh/gateway"] != "" {
				return "is-gateway", "annotation mesh/gateway is there"
			}
			return "", ""
		},
	}
	for value, reason := range map[string]status.Code{
		"enabled": status.CodeSelected, "disabled": status.CodeInjectDisabled, "off": status.CodeInjectDisabled,
	} {
		d := p.Decide(meshed(label(value)), nil)
		assert.Equal(t, reason, d.Reason, value)
		assert.Empty(t, d.Warnings, value)
	}
	d := p.Decide(meshed(label("false")), nil)
	assert.True(t, d.Selected, "it is none of the words")
	assert.Equal(t, warning.List{{
		Code: warning.Invalid, Key: "mesh/inject",
		Text: `label mesh/inject="false" is not enabled or disabled or off, so it counts as not set`,
	}}, d.Warnings)

	b, err := json.Marshal(d)
	require.NoError(t, err)
	assert.Contains(t, string(b), `"warnings":["label mesh/inject=`, "outputs have warnings as texts")

	gateway := annotate("mesh/gateway", "x")
	want := selection.Decision{Reason: "is-gateway", Detail: "annotation mesh/gateway is there"}
	assert.Equal(t, want, p.Decide(meshed(label("enabled"), gateway), nil))
	d, out := p.RuleOut(map[string]string{"mesh/gateway": "x"})
	assert.True(t, out)
	assert.Equal(t, want, d)
}

func TestRuleOut(t *testing.T) {
	d, out := policy.RuleOut(map[string]string{"other": "x"})
	assert.True(t, out)
	assert.Equal(t, status.CodeNotInjected, d.Reason)
	assert.False(t, d.Selected)
	_, out = policy.RuleOut(map[string]string{"mesh/status": "", "mesh/injected": "true", "mesh/state": "x"})
	assert.False(t, out, "a pod with a status may be in the mesh")
	d, out = policy.RuleOut(map[string]string{"mesh/status": "", "mesh/injected": "true", "mesh/state": "x", "mesh/trial": "yes"})
	assert.True(t, out)
	assert.Equal(t, selection.Decision{Reason: status.CodeDryRun, Detail: "mesh/trial is yes"}, d)
	d, out = policy.RuleOut(map[string]string{"mesh/status": "", "mesh/injected": "true", "mesh/state": "x", "mesh/interception": "none"})
	assert.True(t, out)
	assert.Equal(t, status.CodeInterceptionNone, d.Reason)
	_, out = selection.Policy{}.RuleOut(nil)
	assert.False(t, out, "a mesh without status annotation cannot tell by annotations")

	// What annotations rule out, the whole pod does not rule in.
	for _, c := range cases {
		pod := meshed(c.changes...)
		if _, out := policy.RuleOut(pod.Annotations); out {
			assert.False(t, policy.Decide(pod, nil).Selected, c.name)
		}
	}
}

func TestZeroPolicySelectsAll(t *testing.T) {
	var zero selection.Policy
	assert.True(t, zero.Decide(&corev1.Pod{}, nil).Selected)
	assert.True(t, zero.Decide(meshed(label("false"), withoutStatus), nil).Selected)
	assert.Equal(t, status.CodeHostNetwork, zero.Decide(meshed(onHost), nil).Reason)
	assert.Nil(t, zero.Proxy(meshed()))
}

func TestProxy(t *testing.T) {
	both := meshed(initContainer(corev1.Container{Name: "mesh-proxy", Image: "init"}))
	require.NotNil(t, policy.Proxy(both))
	assert.Empty(t, policy.Proxy(both).Image, "a container comes before an init container")
	assert.Same(t, &both.Spec.Containers[1], policy.Proxy(both))
}

func TestReasonsAreStable(t *testing.T) {
	assert.Equal(t, []status.Code{
		"excluded-namespace", "host-network", "init-container", "proxy-disabled", "no-proxy",
		"proxy-type", "inject-disabled", "has-sidecar", "not-enabled", "not-injected", "dry-run", "interception-none",
		"namespace-excluded-by-label", "proxy-missing", "selected",
	}, selection.Reasons(), "users' alerts are written for these codes")
}
