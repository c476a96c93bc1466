package plugin_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// listed makes the call one with several meshes.
func listed(c *call, names ...string) *call {
	c.config["dialect"] = names
	return c
}

func linkerdToo(p *corev1.Pod) {
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "linkerd-proxy"})
}

// TestListOfDialects: what each case costs, who has the pod, and what the event, the log and the record say.
func TestListOfDialects(t *testing.T) {
	t.Parallel()
	annotated := func(a map[string]string) func(*call) {
		return func(c *call) { c.config["runtimeConfig"] = object{netconf.AnnotationsCapability: a} }
	}
	changed := func(change func(*corev1.Pod)) func(*call) { return func(c *call) { pod(c, change) } }
	plain := func(p *corev1.Pod) { p.Annotations, p.Spec.Containers = nil, p.Spec.Containers[:1] }
	noPods := func(c *call) { c.plugin.OpenPods = nil }
	cases := map[string]struct {
		list      []string
		change    []func(*call)
		has       string
		reason    status.Code
		calls     int
		said      []any // nil: no mesh was asked
		contested string
	}{
		"the second has it": {
			[]string{"linkerd", "istio"}, nil, "istio", status.CodeSelected, 1, []any{"linkerd: no-proxy", "istio: selected"}, "",
		},
		"a sidecar keeps ambient away": {
			[]string{"ambient", "istio"}, nil, "istio", status.CodeSelected, 1, []any{"ambient: has-sidecar", "istio: selected"}, "",
		},
		"annotations that rule it out for one alone": {
			[]string{"istio", "linkerd"}, []func(*call){annotated(map[string]string{}), changed(func(p *corev1.Pod) {
				plain(p)
				linkerdToo(p)
			})}, "linkerd", status.CodeSelected, 2, []any{"istio: no-proxy", "linkerd: selected"}, "",
		},
		"annotations that rule it out for all": {
			[]string{"istio", "kuma"}, []func(*call){noPods, annotated(map[string]string{})}, "", status.CodeNotInjected, 0, nil, "",
		},
		"ambient may want a pod without annotations": {
			[]string{"istio", "ambient"}, []func(*call){annotated(map[string]string{}), changed(plain)}, "", status.CodeNoProxy, 2,
			[]any{"istio: no-proxy", "ambient: not-enabled"}, "",
		},
		"two would select it": {
			[]string{"istio", "linkerd"}, []func(*call){changed(linkerdToo)}, "istio", status.CodeSelected, 2,
			[]any{"istio: selected", "linkerd: selected"}, "linkerd would select the pod too; istio has it, which is asked first",
		},
		"in the other order": {
			[]string{"linkerd", "istio"}, []func(*call){changed(linkerdToo)}, "linkerd", status.CodeSelected, 2,
			[]any{"linkerd: selected", "istio: selected"}, "istio would select the pod too; linkerd has it, which is asked first",
		},
		"an excluded namespace": {
			[]string{"ambient", "istio"}, []func(*call){noPods, func(c *call) { c.env["CNI_ARGS"] = args("kube-system", "dns", podUID) }},
			"", status.CodeExcludedNamespace, 0, nil, "",
		},
		"the agent's own pod": {
			[]string{"ambient", "istio"}, []func(*call){noPods, func(c *call) { c.env["CNI_ARGS"] = args("meshcni-system", "meshcni-node-x", podUID) }},
			"", status.CodeAgentPod, 0, nil, "",
		},
		"no pod":        {[]string{"ambient", "istio"}, []func(*call){noPods, func(c *call) { c.env["CNI_ARGS"] = "" }}, "", status.CodeNotKubernetes, 0, nil, ""},
		"a list of one": {[]string{"istio"}, nil, "istio", status.CodeSelected, 1, nil, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := listed(newCall(), tc.list...)
			c.pods.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
			var event plugin.Event
			c.plugin.OnEvent = func(_ context.Context, e plugin.Event) { event = e }
			for _, change := range tc.change {
				change(c)
			}
			out := c.run(t)
			require.Zero(t, out.exit, out.stdout)
			assert.Equal(t, tc.calls, c.pods.Calls())
			assert.Equal(t, tc.has, event.Dialect)
			assert.Equal(t, tc.reason, event.Decision.Reason)
			d := out.record(t, "decision")
			if tc.said == nil {
				assert.NotContains(t, d, "answers")
				assert.NotContains(t, d, "dialect", "the log of a single mesh has not changed")
			} else {
				assert.Equal(t, tc.said, d["answers"])
				assert.Equal(t, tc.has, d["dialect"])
				assert.Len(t, event.Answers, len(tc.list))
			}
			var contested []string
			for _, w := range event.Warnings {
				if w.Code == dialect.WarningContested {
					contested = append(contested, w.Text)
					assert.Contains(t, d["warnings"], w.Text)
				}
			}
			if tc.contested == "" {
				assert.Empty(t, contested)
			} else {
				assert.Equal(t, []string{tc.contested}, contested)
			}
			record, err := c.plugin.Attachments(netconf.Config{}).Read(attachment.ID{Network: "k8s-pod-network", ContainerID: "c0ffee", IfName: "eth0"})
			require.NoError(t, err)
			assert.Equal(t, tc.has, record.Dialect)
			if tc.has != "" {
				prefix := map[string]string{"istio": "ISTIO_", "linkerd": "PROXY_INIT_"}[tc.has]
				assert.NotNil(t, c.netns.Live.IPv4.Chain(ruleset.NAT, prefix+"OUTPUT"))
			}
			c.env["CNI_COMMAND"] = "CHECK"
			out = c.run(t)
			require.Zero(t, out.exit, out.stdout)
			assert.Equal(t, tc.has, event.Dialect)
		})
	}
}

// TestWhoHasItRefuses: nothing falls through to the next mesh.
func TestWhoHasItRefuses(t *testing.T) {
	t.Parallel()
	c := listed(newCall(), "istio", "linkerd")
	pod(c, func(p *corev1.Pod) {
		linkerdToo(p)
		p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "http"
	})
	c.run(t).fails(t, 7, "istio configuration of pod shop/cart-0", "excludeOutboundPorts")
	assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
}

// TestUnknownNamespace: a mesh that may have the pod by its namespace is not skipped because that cannot be read.
func TestUnknownNamespace(t *testing.T) {
	t.Parallel()
	outside := func(p *corev1.Pod) {
		p.Annotations, p.Spec.Containers = nil, []corev1.Container{{Name: "app"}, {Name: "linkerd-proxy"}}
	}
	c := listed(newCall(), "ambient", "linkerd")
	c.config["add_deadline"] = "100ms"
	pod(c, outside)
	c.pods.Hook = func(_ context.Context, n int) error {
		if n%2 == 0 {
			return errors.New("namespaces are not to be had")
		}
		return nil
	}
	c.run(t).fails(t, 11, "namespaces are not to be had")
	assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)

	for _, list := range [][]string{{"ambient", "linkerd"}, {"ambient"}} {
		c = listed(newCall(), list...)
		c.config["add_deadline"] = "60ms"
		pod(c, outside)
		c.plugin.OpenPods = func(path string) (plugin.Pods, error) {
			pods, err := c.pods.Open(path)
			pods.Namespace = func(context.Context, string) (*corev1.Namespace, error) { return nil, nil } // there is none, and it does not say so
			return pods, err
		}
		c.run(t).fails(t, 11, "get namespace shop: the source of pods gave none")
		assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
	}
}

// TestUnreadPodOfSeveral passes only if each mesh would let it.
func TestUnreadPodOfSeveral(t *testing.T) {
	t.Parallel()
	for list, passes := range map[[2]string]bool{{"linkerd", "istio"}: true, {"istio", "linkerd"}: true, {"linkerd", "ambient"}: false, {"kuma", "ambient"}: false} {
		c := listed(newCall(), list[:]...)
		c.config["runtimeConfig"] = object{netconf.AnnotationsCapability: object{}}
		c.config["add_deadline"] = "100ms"
		c.pods.Hook = func(context.Context, int) error { return errors.New("connection refused") }
		out := c.run(t)
		assert.Equal(t, passes, out.exit == 0, "%v: %s", list, out.stdout)
		if passes {
			assert.EqualValues(t, status.CodeNotInjected, out.record(t, "decision")["reason"])
		} else {
			out.fails(t, 11, "connection refused")
		}
	}
}

// TestSandboxesAmongSeveral: who reads a key has the sandbox, and no key goes unread.
func TestSandboxesAmongSeveral(t *testing.T) {
	t.Parallel()
	boxed := toy()
	boxed.Sandboxes = &dialect.Sandboxes{Key: "TOY", Build: func(map[string]string, dialect.Input) (dialect.Reading, error) {
		r := redirect.Default()
		r.Names.ChainPrefix = "TOY_"
		return dialect.Reading{Redirect: r}, nil
	}}
	run := func(args string, names ...string) (*call, outcome) {
		c := listed(sandboxCall(args), names...)
		c.plugin.Dialects = []dialect.Dialect{istio.New(), boxed, consul.New()}
		return c, c.run(t)
	}
	has := func(c *call, prefix string) {
		t.Helper()
		require.NotNil(t, c.netns.Live.IPv4)
		assert.NotNil(t, c.netns.Live.IPv4.Chain(ruleset.NAT, prefix+"OUTPUT"))
	}
	c, out := run(nomad(nomadConfig), "istio", "toy", "consul")
	require.Zero(t, out.exit, out.stdout)
	has(c, "CONSUL_PROXY_")
	assert.Equal(t, "CNI_ARGS has CONSUL_IPTABLES_CONFIG", out.record(t, "decision")["detail"])

	c, out = run("IgnoreUnknown=1;TOY=1", "istio", "consul", "toy")
	require.Zero(t, out.exit, out.stdout)
	has(c, "TOY_")

	c, out = run(nomad(nomadConfig, "TOY=1"), "toy", "istio", "consul")
	require.Zero(t, out.exit, out.stdout)
	has(c, "TOY_")
	assert.Contains(t, out.record(t, "decision")["warnings"], "consul would select the pod too; toy has it, which is asked first")

	c, out = run(nomad(nomadConfig, "TOY=1"), "istio", "toy")
	out.fails(t, 4, "CONSUL_IPTABLES_CONFIG asks for redirection, which dialect istio or toy does not read")
	assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
	_, out = run(nomad(nomadConfig), "istio")
	out.fails(t, 4, "CONSUL_IPTABLES_CONFIG asks for redirection, which dialect istio does not read")
}

// TestSandboxOfAnUnknownMesh: a plugin that does not have the mesh knows the key by which a sandbox asks for it all the same.
func TestSandboxOfAnUnknownMesh(t *testing.T) {
	t.Parallel()
	for _, d := range builtin.All() {
		if d.Sandboxes == nil {
			continue
		}
		c := listed(sandboxCall("IgnoreUnknown=true;"+d.Sandboxes.Key+"=1"), "istio")
		c.plugin.Dialects = []dialect.Dialect{istio.New()}
		c.run(t).fails(t, 4, d.Sandboxes.Key)
	}
}
