package plugin_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

func args(namespace, name, uid string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + name + ";K8S_POD_UID=" + uid
}

// TestWhoPassesAndWhatItCosts is the order of ADD: each case says what the earlier steps must not have cost.
func TestWhoPassesAndWhatItCosts(t *testing.T) {
	t.Parallel()
	annotated := func(a map[string]string) func(*call) {
		return func(c *call) { c.config["runtimeConfig"] = object{netconf.AnnotationsCapability: a} }
	}
	noPods := func(c *call) { c.plugin.OpenPods = nil }
	off := func(c *call) {
		c.config["kubernetes"] = set(c.config["kubernetes"].(object), "exclude_namespace_selector", "mesh in (off,no)")
		c.pods.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"mesh": "off"}}})
	}
	unlabelled := func(c *call) { c.pods.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}) }
	cases := map[string]struct {
		change []func(*call)
		reason status.Code
		calls  int
		rules  bool
	}{
		"a pod of the mesh": {reason: status.CodeSelected, calls: 1, rules: true},
		"no CNI_ARGS":       {[]func(*call){noPods, func(c *call) { c.env["CNI_ARGS"] = "" }}, status.CodeNotKubernetes, 0, false},
		"other CNI_ARGS":    {[]func(*call){noPods, func(c *call) { c.env["CNI_ARGS"] = "IgnoreUnknown=1;A=b=c;" }}, status.CodeNotKubernetes, 0, false},
		"a namespace alone": {[]func(*call){noPods, func(c *call) { c.env["CNI_ARGS"] = "K8S_POD_NAMESPACE=shop" }}, status.CodeNotKubernetes, 0, false},
		"the agent's own pod": {
			[]func(*call){noPods, func(c *call) { c.env["CNI_ARGS"] = args("meshcni-system", "meshcni-node-x2x", podUID) }},
			status.CodeAgentPod, 0, false,
		},
		"an agent of another name and place": {
			[]func(*call){noPods, func(c *call) {
				c.config["pod_namespace"], c.plugin.Identity.Agent = "mesh", "node"
				c.env["CNI_ARGS"] = args("mesh", "node-1", "")
			}},
			status.CodeAgentPod, 0, false,
		},
		"an excluded namespace": {
			[]func(*call){noPods, func(c *call) { c.env["CNI_ARGS"] = args("kube-system", "dns", podUID) }},
			status.CodeExcludedNamespace, 0, false,
		},
		"the runtime's annotations rule it out": {
			[]func(*call){noPods, annotated(map[string]string{"kubernetes.io/config.source": "api"})}, status.CodeNotInjected, 0, false,
		},
		"the runtime says that there are none":      {[]func(*call){noPods, annotated(map[string]string{})}, status.CodeNotInjected, 0, false},
		"the runtime's annotations don't decide":    {[]func(*call){annotated(map[string]string{"sidecar.istio.io/status": ""})}, status.CodeSelected, 1, true},
		"null annotations are unknown, not none":    {[]func(*call){annotated(nil)}, status.CodeSelected, 1, true},
		"other plugins' runtimeConfig":              {[]func(*call){func(c *call) { c.config["runtimeConfig"] = object{"portMappings": []int{1}} }}, status.CodeSelected, 1, true},
		"a name like the agent's, in another place": {[]func(*call){func(c *call) { rename(c, "shop", "meshcni-node-x2x") }}, status.CodeSelected, 1, true},
		"no status annotation": {
			[]func(*call){func(c *call) { pod(c, func(p *corev1.Pod) { p.Annotations = nil }) }}, status.CodeNotInjected, 1, false,
		},
		"no proxy": {
			[]func(*call){func(c *call) { pod(c, func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }) }}, status.CodeNoProxy, 1, false,
		},
		"no interception, by the runtime's annotations": {
			[]func(*call){noPods, annotated(map[string]string{"sidecar.istio.io/status": "{}", "sidecar.istio.io/interceptionMode": "NONE"})},
			status.CodeInterceptionNone, 0, false,
		},
		"no interception, by the pod's annotation": {
			[]func(*call){func(c *call) {
				pod(c, func(p *corev1.Pod) { p.Annotations["sidecar.istio.io/interceptionMode"] = "NONE" })
			}}, status.CodeInterceptionNone, 1, false,
		},
		"no interception, by the pod's ProxyConfig": {
			[]func(*call){func(c *call) {
				pod(c, func(p *corev1.Pod) { p.Annotations["proxy.istio.io/config"] = "interceptionMode: NONE" })
			}}, status.CodeInterceptionNone, 1, false,
		},
		"on the host's network": {
			[]func(*call){func(c *call) { pod(c, func(p *corev1.Pod) { p.Spec.HostNetwork = true }) }}, status.CodeHostNetwork, 1, false,
		},
		"a namespace excluded by its labels": {[]func(*call){off}, status.CodeNamespaceExcludedByLabel, 2, false},
		"labels that the selector leaves":    {[]func(*call){off, unlabelled}, status.CodeSelected, 2, true},
		"a pod that needs no namespace": {
			[]func(*call){off, func(c *call) { pod(c, func(p *corev1.Pod) { p.Annotations = nil }) }}, status.CodeNotInjected, 1, false,
		},
		"its namespace is excluded by name too": {
			[]func(*call){noPods, off, func(c *call) { c.env["CNI_ARGS"] = args("kube-system", "dns", podUID) }}, status.CodeExcludedNamespace, 0, false,
		},
		"the runtime's annotations come first": {[]func(*call){noPods, off, annotated(map[string]string{})}, status.CodeNotInjected, 0, false},
		"no UID from the runtime":              {[]func(*call){func(c *call) { c.env["CNI_ARGS"] = args("shop", "cart-0", "") }}, status.CodeSelected, 1, true},
		"a mirror pod": {
			[]func(*call){func(c *call) {
				c.env["CNI_ARGS"] = args("shop", "cart-0", staticUID)
				pod(c, func(p *corev1.Pod) { p.UID, p.Annotations["kubernetes.io/config.mirror"] = "other", staticUID })
			}}, status.CodeSelected, 1, true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCall()
			for _, change := range tc.change {
				change(c)
			}
			out := c.run(t)
			require.Zero(t, out.exit, out.stdout)
			assert.Equal(t, tc.calls, c.pods.Calls())
			assert.Equal(t, tc.rules, c.netns.Live.IPv4 != nil)
			assert.Equal(t, c.netns.Opened, c.netns.Closed)
			d := out.record(t, "decision")
			assert.Equal(t, level(d), d["level"], d["warnings"])
			assert.EqualValues(t, tc.reason, d["reason"])
			assert.Equal(t, tc.reason == status.CodeSelected, d["selected"])
			assert.EqualValues(t, tc.calls, d["api_calls"])
			assert.NotEmpty(t, d["detail"])
			assert.Equal(t, "ADD", d["verb"])
			assert.Equal(t, "c0ffee", d["container_id"])
			assert.Equal(t, "/var/run/netns/cni-1", d["netns"])
			assert.Contains(t, d, "duration_ms")
			want := map[bool]string{true: "redirected", false: "passed"}[tc.rules]
			assert.Equal(t, want, d["outcome"])

			c.env["CNI_COMMAND"] = "CHECK"
			out = c.run(t)
			assert.Zero(t, out.exit, out.stdout)
			assert.Empty(t, out.stdout)
			assert.EqualValues(t, tc.reason, out.record(t, "decision")["reason"])
		})
	}
}

func pod(c *call, change func(*corev1.Pod)) {
	p := meshPod()
	change(p)
	c.pods.Set(p)
}

func rename(c *call, namespace, name string) {
	pod(c, func(p *corev1.Pod) { p.Namespace, p.Name = namespace, name })
	c.env["CNI_ARGS"] = args(namespace, name, podUID)
}

func TestHostNamespaceIsRefusedEvenForWhoPasses(t *testing.T) {
	t.Parallel()
	for _, cniArgs := range []string{"", args("kube-system", "dns", ""), args("meshcni-system", "meshcni-node-1", "")} {
		c := newCall()
		c.env["CNI_ARGS"] = cniArgs
		c.netns.OpenErr = netnsexec.ErrHost
		c.run(t).fails(t, 8, "CNI_NETNS")
		c.netns.OpenErr = netnsexec.ErrGone // no concern of a plugin that does nothing there
		assert.Zero(t, c.run(t).exit)
	}
}

// toy is a mesh of a test's own: its namespaces are labelled.
func toy() dialect.Dialect {
	names := redirect.Default().Names
	names.ChainPrefix = "TOY_"
	return dialect.Dialect{
		Name:           "toy",
		Policy:         selection.Policy{},
		Names:          names,
		NeedsNamespace: true,
		Build: func(in dialect.Input) (dialect.Reading, error) {
			if in.Namespace == nil {
				return dialect.Reading{}, errors.New("no namespace")
			}
			r := redirect.Default()
			r.IPv6 = redirect.FamilyPass
			r.Names.ChainPrefix = "TOY_"
			return dialect.Reading{Redirect: r, Warnings: warning.List{{Text: "toy says hello to " + in.Namespace.Name}}}, nil
		},
	}
}

// TestLevelOfAnIPv4OnlyPod: where IPv6 does not work, a pod without an IPv6 address is one of many, whatever its mesh captures.
func TestLevelOfAnIPv4OnlyPod(t *testing.T) {
	t.Parallel()
	left := []apply.Unusable{{Family: ruleset.IPv6, What: "ip -6 addr add ::6/128 dev lo", Reason: "IPv6 is switched off on lo"}}
	for name, tc := range map[string]struct {
		ipv6      redirect.Presence
		dual      bool
		left      []apply.Unusable
		addrs     []string
		level     string
		warnings  int
		bypassing bool
	}{
		"no IPv6, not captured":   {redirect.PresenceAbsent, false, nil, []string{"10.244.1.5"}, "INFO", 0, false},
		"IPv6 off, not captured":  {redirect.PresenceOff, false, nil, []string{"10.244.1.5"}, "INFO", 0, false},
		"IPv6 on, not captured":   {redirect.PresenceUsable, false, nil, []string{"10.244.1.5"}, "INFO", 1, true},
		"no IPv6, captured":       {redirect.PresenceAbsent, true, nil, []string{"10.244.1.5"}, "INFO", 1, false},
		"IPv6 off, captured":      {redirect.PresenceOff, true, left, []string{"10.244.1.5"}, "INFO", 1, false},
		"IPv6 on, but not on lo":  {redirect.PresenceUsable, true, left, []string{"10.244.1.5"}, "WARN", 1, false},
		"IPv6 off, and addressed": {redirect.PresenceOff, true, left, []string{"10.244.1.5", "fd00::5"}, "WARN", 1, false},
	} {
		c := newCall()
		delete(c.config, "prevResult")
		c.netns.Families, c.netns.Unusable = redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: tc.ipv6}, tc.left
		has(tc.addrs...)(c)
		pod(c, func(p *corev1.Pod) {
			p.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "ISTIO_DUAL_STACK", Value: strconv.FormatBool(tc.dual)}}
		})
		out := c.run(t)
		require.Zero(t, out.exit, "%s: %s", name, out.stdout)
		d := out.record(t, "decision")
		assert.Equal(t, tc.level, d["level"], name)
		assert.Len(t, d["warnings"], tc.warnings, name)
		assert.Equal(t, tc.bypassing, len(d["bypasses"].([]any)) > 0, name)
	}
}

func TestOwnDialect(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.plugin.Dialects = []dialect.Dialect{toy()}
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.Equal(t, 2, c.pods.Calls(), "the pod and its namespace")
	assert.NotNil(t, c.netns.Live.IPv4.Chain(ruleset.NAT, "TOY_OUTPUT"))
	assert.Contains(t, out.record(t, "decision")["warnings"], "toy says hello to shop")
	assert.Equal(t, "WARN", out.record(t, "decision")["level"])

	c.config["dialect"] = "istio"
	c.run(t).fails(t, 7, `dialect "istio"`, "known is toy")

	c = newCall()
	c.plugin.Dialects = []dialect.Dialect{toy()}
	c.config["dialect"] = "toy"
	c.env["CNI_ARGS"] = args("kube-system", "a", "")
	assert.EqualValues(t, status.CodeExcludedNamespace, c.run(t).record(t, "decision")["reason"])
}

// TestDeclinePanics: the pod does not start, and the runtime hears which dialect is wrong, also where another mesh comes after it.
func TestDeclinePanics(t *testing.T) {
	t.Parallel()
	boom, after := toy(), toy()
	boom.Policy.Decline = func(pod *corev1.Pod, _ *corev1.Container) (status.Code, string) {
		if pod.Annotations["boom"] != "" {
			panic("ouch")
		}
		return "quiet", "it says so"
	}
	after.Name = "after"
	for _, passed := range []any{nil, object{"io.kubernetes.cri.pod-annotations": object{"boom": "x"}}} {
		for _, list := range [][]dialect.Dialect{{boom}, {boom, after}} {
			c := newCall()
			c.plugin.Dialects = list
			c.config["dialect"] = dialect.SetOf(list...).Names()
			if passed != nil {
				c.config["runtimeConfig"] = passed
			}
			pod(c, func(p *corev1.Pod) { p.Annotations = map[string]string{"boom": "x"} })
			out := c.run(t)
			out.fails(t, 7, "dialect toy: its Policy.Decline panics: ouch")
			assert.Contains(t, out.failure.Details, "dialect toy is wrong, and not the pod")
			assert.Nil(t, c.netns.Live.IPv4)

			pod(c, func(p *corev1.Pod) { p.Annotations = nil })
			delete(c.config, "runtimeConfig")
			assert.Zero(t, c.run(t).exit)
		}
	}
}

func TestFamilies(t *testing.T) {
	t.Parallel()
	ips := func(s ...string) func(*call) {
		return func(c *call) {
			var list []object
			for _, a := range s {
				list = append(list, object{"address": a, "interface": 1})
			}
			c.config["prevResult"] = set(c.config["prevResult"].(object), "ips", list)
		}
	}
	drop := func(c *call) { c.config["uncaptured_family"] = "drop" }
	kernel := func(ipv6 redirect.Presence) func(*call) {
		return func(c *call) { c.netns.Families = redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: ipv6} }
	}
	four, six, both46, none := []any{"ipv4"}, []any{"ipv6"}, []any{"ipv4", "ipv6"}, []any{}
	const linkLocal = "ipv6 bypasses the mesh: the pod's kernel gives each interface such an address (fe80::/10), and the family is not captured; uncaptured_family \"drop\" closes it"
	cases := map[string]struct {
		change              func(*call)
		families, addressed []any
		bypasses            []any
		ipv6                string // what the IPv6 program does: "", capture, drop
		warning             string
	}{
		"IPv4 addresses only":          {ips("10.244.1.5/24"), four, four, six, "", linkLocal},
		"IPv6 second bypasses":         {ips("10.244.1.5/24", "fd00::5/64"), four, both46, six, "", "ipv6 bypasses the mesh: the pod has fd00::5, "},
		"IPv6 first is captured":       {ips("fd00::5/64", "10.244.1.5/24"), both46, both46, none, "capture", ""},
		"a mesh that captures both":    {both(ips("10.244.1.5/24"), consulDualStack), both46, four, none, "capture", ""},
		"no ips: from the interface":   {both(ips(), has("fd00::5")), both46, six, none, "capture", ""},
		"no prevResult":                {both(func(c *call) { delete(c.config, "prevResult") }, has("fd00::5", "10.0.0.1")), both46, both46, none, "capture", ""},
		"no address at all":            {both(ips(), kernel(redirect.PresenceAbsent)), four, none, none, "", "no address yet"},
		"the other family is closed":   {both(ips("10.244.1.5/24", "fd00::5/64"), drop), four, both46, none, "drop", "ipv6 is discarded"},
		"closed without an address":    {both(ips("10.244.1.5/24"), drop), four, four, none, "drop", ""},
		"closed where it is off":       {both(ips("10.244.1.5/24"), drop, kernel(redirect.PresenceOff)), four, four, none, "drop", ""},
		"off, and nothing to warn of":  {both(ips("10.244.1.5/24"), kernel(redirect.PresenceOff)), four, four, none, "", ""},
		"off, by who gives addresses":  {both(ips("10.244.1.5/24", "fd00::5/64"), kernel(redirect.PresenceOff)), four, both46, six, "", "the pod has fd00::5"},
		"absent, and nothing to close": {both(ips("10.244.1.5/24"), kernel(redirect.PresenceAbsent)), four, four, none, "", ""},
		"the host's address does not count": {func(c *call) {
			c.config["prevResult"] = set(c.config["prevResult"].(object), "ips", []object{{"address": "fd00::1/64", "interface": 0}, {"address": "10.244.1.5/24", "interface": 1}})
		}, four, four, six, "", linkLocal},
		"unless all are of interfaces without a sandbox": {func(c *call) {
			c.config["prevResult"] = set(c.config["prevResult"].(object), "ips", []object{{"address": "fd00::1/64", "interface": 0}})
		}, both46, six, none, "capture", ""},
		"absent, though it may come": {both(ips("10.244.1.5/24"), drop, kernel(redirect.PresenceAbsent)), four, four, none, "drop", ""},
		"the kernel lacks IPv6":      {both(ips("fd00::5/64"), func(c *call) { c.netns.Skip = []ruleset.Family{ruleset.IPv6} }), four, six, none, "capture", "no ipv6 here"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCall()
			tc.change(c)
			out := c.run(t)
			require.Zero(t, out.exit, out.stdout)
			d := out.record(t, "decision")
			assert.Equal(t, tc.families, d["families"])
			assert.Equal(t, tc.addressed, d["address_families"])
			assert.Equal(t, tc.bypasses, d["bypasses"])
			switch ipv6 := c.netns.Live.IPv6; tc.ipv6 {
			case "":
				assert.Nil(t, ipv6)
			case "drop":
				assert.Contains(t, ipv6.String(), "-j DROP")
			default:
				assert.Contains(t, ipv6.String(), "-j REDIRECT")
			}
			if tc.warning == "" {
				assert.Empty(t, d["warnings"])
			} else {
				require.Len(t, d["warnings"], 1)
				assert.Contains(t, d["warnings"].([]any)[0], tc.warning)
			}
		})
	}
}

// consulDualStack makes the call one of a mesh that captures both families whatever the addresses.
func consulDualStack(c *call) {
	c.config["dialect"] = "consul"
	p := meshPod()
	p.Annotations = map[string]string{
		consul.InjectStatus: "injected", consul.TransparentProxyStatus: "waiting", consul.DualStack: "true",
		consul.RedirectTrafficConfig: `{"ProxyUserID": "5995", "ProxyInboundPort": 20000}`,
	}
	c.pods.Set(p)
}

func both(f ...func(*call)) func(*call) {
	return func(c *call) {
		for _, f := range f {
			f(c)
		}
	}
}

func has(s ...string) func(*call) { return func(c *call) { c.netns.Addresses = addrs(s...) } }

// level is the level that a decision's record should have: an ADD that warns is not one of many. Pods that have IPv6 by their
// interface's own address are many.
func level(decision object) string {
	warnings, _ := decision["warnings"].([]any)
	if slices.ContainsFunc(warnings, func(w any) bool {
		return !strings.HasPrefix(w.(string), "ipv6 bypasses the mesh: the pod's kernel gives")
	}) {
		return "WARN"
	}
	return "INFO"
}
