package plugin_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestEveryDialect is one ADD for a pod of each mesh, and one that is refused.
func TestEveryDialect(t *testing.T) {
	t.Parallel()
	containers := func(names ...string) (list []corev1.Container) {
		for _, n := range names {
			list = append(list, corev1.Container{Name: n})
		}
		return list
	}
	tests := map[string]struct {
		labels, annotations map[string]string
		namespace           map[string]string // its annotations
		containers          []corev1.Container
		requests            int
		rule                string // of nat PREROUTING's end
		wrongKey            string
	}{
		"linkerd": {
			namespace: map[string]string{"config.linkerd.io/skip-inbound-ports": "22"}, containers: containers("app", "linkerd-proxy"), requests: 2,
			rule: "-A PROXY_INIT_INBOUND -p tcp -m multiport --dports 22,4190,4191 -j RETURN", wrongKey: "config.linkerd.io/skip-outbound-ports",
		},
		"kuma": {
			annotations: map[string]string{"kuma.io/sidecar-injected": "true", "traffic.kuma.io/transparent-proxy-config": "kumaDPUser: \"5678\""},
			containers:  containers("kuma-sidecar", "app"), requests: 1,
			rule: "-A KUMA_MESH_IN_REDIRECT -p tcp -j REDIRECT --to-ports 15006", wrongKey: "traffic.kuma.io/transparent-proxy-config",
		},
		"consul": {
			annotations: map[string]string{
				"consul.hashicorp.com/connect-inject-status": "injected", "consul.hashicorp.com/transparent-proxy-status": "waiting",
				"consul.hashicorp.com/dual-stack":              "false",
				"consul.hashicorp.com/redirect-traffic-config": `{"ProxyUserID": "5995", "ProxyInboundPort": 20000}`,
			},
			containers: containers("app", "consul-dataplane"), requests: 1,
			rule: "-A CONSUL_PROXY_IN_REDIRECT -p tcp -j REDIRECT --to-ports 20000", wrongKey: "consul.hashicorp.com/dual-stack",
		},
		"ambient": {
			labels: map[string]string{"istio.io/dataplane-mode": "ambient"}, containers: containers("app"), requests: 1, // its own label decides
			rule: "-A ISTIO_INBOUND -m mark --mark 0x539/0xfff -j RETURN", wrongKey: "istio.io/reroute-virtual-interfaces",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			add := func(annotations map[string]string) (*call, outcome) {
				c := newCall()
				c.config = set(c.config, "dialect", name)
				p := meshPod()
				p.Labels, p.Annotations, p.Spec.Containers = tt.labels, map[string]string{}, tt.containers
				for _, list := range []map[string]string{tt.annotations, annotations} {
					for k, v := range list {
						p.Annotations[k] = v
					}
				}
				c.pods.Set(p)
				c.pods.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: tt.namespace}})
				if name == "ambient" {
					c.attaches(p)
				}
				return c, c.run(t)
			}
			c, out := add(nil)
			require.Zero(t, out.exit, out.stdout)
			assert.Contains(t, c.netns.Live.IPv4.String(), tt.rule)
			assert.Equal(t, tt.requests, c.pods.Calls(), "the namespace is read where the dialect needs it")

			c, out = add(map[string]string{tt.wrongKey: "-j"})
			out.fails(t, 7, tt.wrongKey, `"-j"`)
			assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
		})
	}
}

// TestAmbientSettings: the configuration's object ambient decides about pods, and each of its mistakes is named.
func TestAmbientSettings(t *testing.T) {
	t.Parallel()
	add := func(settings map[string]any) (*call, outcome) {
		c := newCall()
		c.config = set(c.config, "dialect", "ambient", "ambient", settings, "add_deadline", "500ms")
		p := meshPod()
		p.Labels, p.Annotations, p.Spec.Containers = map[string]string{"istio.io/dataplane-mode": "ambient", "tier": "web"}, nil, []corev1.Container{{Name: "app"}}
		c.pods.Set(p)
		return c, c.run(t)
	}
	selector := func(tier string) []any {
		return []any{map[string]any{"podSelector": map[string]any{"matchLabels": map[string]string{"tier": tier}}}}
	}
	c, out := add(map[string]any{"dns_capture": false, "ipv6": false, "probe_ipv4": "198.18.0.1", "enablement_selectors": selector("web")})
	out.fails(t, 11, "attach pod shop/cart-0") // it is in the mesh, and there is no agent
	assert.Equal(t, "selected", out.record(t, "decision")["reason"])
	assert.Equal(t, ruleset.Ruleset{}, c.netns.Live, "the agent writes its rules")
	for _, none := range [][]any{selector("db"), {}} {
		c, out = add(map[string]any{"enablement_selectors": none})
		require.Zero(t, out.exit, out.stdout)
		assert.Equal(t, "not-enabled", out.record(t, "decision")["reason"])
		assert.Nil(t, c.netns.Live.IPv4)
	}
	_, out = add(map[string]any{"dns_capture": "no", "probe_ipv4": "::1"})
	out.fails(t, 7, `ambient.dns_capture: want true or false`)
	_, out = add(map[string]any{"probe_ipv4": "::1", "enablement_selectors": selector("a b")})
	out.fails(t, 7, `"::1" is not a single host's IPv4 address`, "pod selector 1")
}

// TestNamespaceIsReadForPodsOfTheMesh: who is outside by himself costs one request.
func TestNamespaceIsReadForPodsOfTheMesh(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{
		"linkerd", // it has no linkerd-proxy
		"ambient", // it has a sidecar
	} {
		c := newCall()
		c.config = set(c.config, "dialect", dialect)
		out := c.run(t)
		assert.Zero(t, out.exit, out.stdout)
		assert.Equal(t, 1, c.pods.Calls(), dialect)
	}
	c := newCall()
	c.config = set(c.config, "dialect", "ambient")
	pod(c, func(p *corev1.Pod) { p.Annotations = nil })
	assert.Zero(t, c.run(t).exit)
	assert.Equal(t, 2, c.pods.Calls(), "its namespace may enable it")
}

// TestContainerThatRunsAsTheProxy is warned of, and refused where that is asked for.
func TestContainerThatRunsAsTheProxy(t *testing.T) {
	t.Parallel()
	add := func(refuse any, user int64) (*call, outcome) {
		c := newCall()
		c.config = set(c.config, "refuse_proxy_uid", refuse)
		p := meshPod()
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &user}
		c.pods.Set(p)
		c.netns.Families = redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: redirect.PresenceOff}
		return c, c.run(t)
	}
	const said = `container "app" bypasses the mesh: it runs as the proxy's user, 1337`
	for _, refuse := range []any{nil, false} {
		c, out := add(refuse, 1337)
		require.Zero(t, out.exit, out.stdout)
		assert.Contains(t, out.stderr, `container \"app\" bypasses the mesh`)
		assert.NotNil(t, c.netns.Live.IPv4)
		assert.Equal(t, []any{"proxy-id"}, out.record(t, "decision")["bypasses"])
	}
	c, out := add(true, 1337)
	out.fails(t, 7, "pod shop/cart-0: "+said, "refuse_proxy_uid")
	assert.Nil(t, c.netns.Live.IPv4, "no rules for a pod that does not start")

	_, out = add(true, 1000)
	assert.Zero(t, out.exit, out.stdout)
	assert.Equal(t, []any{}, out.record(t, "decision")["bypasses"])
	_, out = add("yes", 1000)
	out.fails(t, 7, "refuse_proxy_uid: want true or false")

	// An init container may, before there is a proxy.
	always, user := corev1.ContainerRestartPolicyAlways, int64(1337)
	fetch := corev1.Container{Name: "fetch", SecurityContext: &corev1.SecurityContext{RunAsUser: &user}}
	sidecar := corev1.Container{Name: "istio-proxy", RestartPolicy: &always}
	for _, late := range []bool{false, true} {
		c := newCall()
		c.config = set(c.config, "refuse_proxy_uid", true)
		p := meshPod()
		p.Spec.Containers, p.Spec.InitContainers = []corev1.Container{{Name: "app"}}, []corev1.Container{fetch, sidecar}
		if late {
			slices.Reverse(p.Spec.InitContainers)
		}
		c.pods.Set(p)
		out := c.run(t)
		if late {
			out.fails(t, 7, `container "fetch" bypasses the mesh`, "refuse_proxy_uid")
			continue
		}
		require.Zero(t, out.exit, out.stdout)
		assert.Contains(t, out.record(t, "decision")["bypasses"], "init-proxy-id")
		assert.Contains(t, out.stderr, `init container \"fetch\" bypasses the mesh until it ends`)
	}
}

// TestNothingCaptured: an ADD of a pod whose settings leave everything out says so.
func TestNothingCaptured(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.config = set(c.config, "dialect", "linkerd")
	c.pods.Set(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: podUID, Annotations: map[string]string{
			"linkerd.io/proxy-version": "edge", "config.linkerd.io/skip-inbound-ports": "1-65535", "config.linkerd.io/skip-outbound-ports": "1-65535",
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}, {Name: "linkerd-proxy"}}},
	})
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	d := out.record(t, "decision")
	assert.Equal(t, "WARN", d["level"])
	assert.Subset(t, d["bypasses"], []any{"inbound", "outbound"})
	assert.Contains(t, out.stderr, "no connection is captured outbound")
}

// TestSandboxedAndWrong: one failure names the runtime class, each container and each wrong annotation, and so does the hint.
func TestSandboxedAndWrong(t *testing.T) {
	t.Parallel()
	c, class, proxy := newCall(), "kata", int64(1337)
	p := meshPod()
	p.Spec.RuntimeClassName = &class
	p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "80a"
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &proxy}
	c.config = set(c.config, "refuse_proxy_uid", true)
	c.pods.Set(p)
	out := c.run(t)
	out.fails(t, 7, `excludeOutboundPorts="80a"`, "correct the pod's annotations; allow_sandboxed is not true in the network configuration; refuse_proxy_uid is true in")
	assert.Contains(t, out.stdout, `its runtime class, \"kata\"`)
	assert.Contains(t, out.stdout, "it runs as the proxy's user, 1337")
}

// TestSandboxedRuntime: a pod of such a runtime class is refused, of a sidecar's mesh and of the node's proxy alike; where it is let
// through, record and log name the bypass.
func TestSandboxedRuntime(t *testing.T) {
	t.Parallel()
	for _, mesh := range []string{"istio", "ambient"} {
		add := func(allow any, class string) (*call, outcome) {
			c := newCall()
			c.config = set(c.config, "allow_sandboxed", allow, "dialect", mesh)
			p := meshPod()
			p.Spec.RuntimeClassName = &class
			if mesh == "ambient" {
				p.Annotations, p.Labels = nil, map[string]string{"istio.io/dataplane-mode": "ambient"}
				p.Spec.Containers = p.Spec.Containers[:1]
			}
			c.pods.Set(p)
			c.attaches(p)
			c.netns.Families = redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: redirect.PresenceOff}
			return c, c.run(t)
		}
		c, out := add(nil, "kata-qemu")
		out.fails(t, 7, `pod shop/cart-0: the pod bypasses the mesh: its runtime class, "kata-qemu"`, "allow_sandboxed is not true")
		assert.Nil(t, c.netns.Live.IPv4, "no rules for a pod that does not start")

		if mesh == "istio" { // of the node's proxy the agent decides too
			_, out = add(true, "kata-qemu")
			require.Zero(t, out.exit, out.stdout)
			assert.Contains(t, out.record(t, "decision")["bypasses"], "sandboxed")
			assert.Contains(t, out.stderr, `its runtime class, \"kata-qemu\"`)
		}

		_, out = add(nil, "nvidia")
		require.Zero(t, out.exit, out.stdout)
		assert.NotContains(t, out.record(t, "decision")["bypasses"], "sandboxed")
	}
}

// TestContainerThatMayMark: where the rules know the node's proxy by a mark, who may set marks is refused: with refuse_proxy_uid if
// that was asked for, with refuse_net_raw also by the runtime's default.
func TestContainerThatMayMark(t *testing.T) {
	t.Parallel()
	add := func(refuse, strict bool, caps *corev1.Capabilities) (*call, outcome) {
		c := newCall()
		c.config = set(c.config, "refuse_proxy_uid", refuse, "refuse_net_raw", strict, "dialect", "ambient")
		p := meshPod()
		p.Annotations, p.Labels = nil, map[string]string{"istio.io/dataplane-mode": "ambient"}
		p.Spec.Containers = p.Spec.Containers[:1]
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: caps}
		c.pods.Set(p)
		c.attaches(p)
		return c, c.run(t)
	}
	c, out := add(false, false, nil)
	require.Zero(t, out.exit, out.stdout)
	d := out.record(t, "decision")
	assert.Equal(t, []any{"net-raw"}, d["bypasses"])
	assert.Equal(t, []any{"net-raw"}, d["default_bypasses"])
	assert.Equal(t, []any{"ipv4", "ipv6"}, d["families"])
	assert.Len(t, d["warnings"], 1)
	assert.NotNil(t, c.netns.Live.IPv4)

	_, out = add(false, false, &corev1.Capabilities{Add: []corev1.Capability{"NET_RAW"}})
	require.Zero(t, out.exit, out.stdout)
	assert.Equal(t, []any{"net-raw"}, out.record(t, "decision")["bypasses"])
	assert.Empty(t, out.record(t, "decision")["default_bypasses"], "somebody asked for it")

	_, out = add(true, false, nil)
	assert.Zero(t, out.exit, out.stdout)
	assert.Equal(t, []any{"net-raw"}, out.record(t, "decision")["bypasses"], "the runtime's default is reported")

	for key, refuse := range map[string][2]bool{"refuse_proxy_uid": {true, false}, "refuse_net_raw": {false, true}} {
		c, out = add(refuse[0], refuse[1], &corev1.Capabilities{Add: []corev1.Capability{"NET_RAW"}})
		out.fails(t, 7, `pod shop/cart-0: container "app" can bypass the mesh`, "NET_RAW", key)
		assert.Nil(t, c.netns.Live.IPv4)
	}
	c, out = add(true, true, nil)
	out.fails(t, 7, `pod shop/cart-0: container "app" can bypass the mesh`, "NET_RAW", "refuse_net_raw")
	assert.Nil(t, c.netns.Live.IPv4)
	assert.Equal(t, []any{"net-raw"}, out.record(t, "decision")["bypasses"])

	_, out = add(true, true, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}})
	assert.Zero(t, out.exit, out.stdout)
	assert.Equal(t, []any{}, out.record(t, "decision")["bypasses"])
}
