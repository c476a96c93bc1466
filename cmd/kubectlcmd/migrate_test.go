package kubectlcmd

import (
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/cmd/internal/migration"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/mesh/builtin"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var update = flag.Bool("update", false, "write the golden files anew")

// peer puts a peer's objects into the cluster.
func (w *world) peer(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "internal", "migration", "testdata", name+".yaml"))
	require.NoError(t, err)
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var o map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(doc), &o))
		namespace := o["metadata"].(map[string]any)["namespace"].(string)
		_ = w.Try(http.MethodPost, "/api/v1/namespaces", object("Namespace", namespace), nil) // it may be there
		path := "/api/v1/namespaces/" + namespace + "/configmaps"
		if o["kind"] == "DaemonSet" {
			path = "/apis/apps/v1/namespaces/" + namespace + "/daemonsets"
		}
		w.Do(t, http.MethodPost, path, o, nil)
	}
}

// liveRules are those of a pod in which iptables has written the mesh's rules for it.
func liveRules(t *testing.T, pod *corev1.Pod) (all []apply.LiveRule) {
	t.Helper()
	r, err := istio.New().Redirect(pod, nil, explain.Addrs(pod))
	require.NoError(t, err)
	rules, err := r.Redirect.Ruleset()
	require.NoError(t, err)
	for _, f := range ruleset.Families {
		p := rules.Program(f)
		if p == nil {
			continue
		}
		for _, c := range p.Chains {
			for i, rule := range c.Rules {
				all = append(all, apply.LiveRule{Backend: apply.IptablesNFT, Family: f, Table: c.Table.String(), Chain: c.Name, Position: i + 1, Rule: rule.Text(f), Ours: true})
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// TestMigrate: each verdict, by what stands in the pods, in all forms of the report.
func TestMigrate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.peer(t, "istio-cni")
	answers := map[string]agentapi.Pod{}
	base := sound("a", func(n *agentapi.Node) { n.Installed.Plugins = []string{"bridge", "istio-cni", "meshcni"} })
	w.node(t, "a", func(path string) (any, error) {
		if path == agentapi.NodePath {
			return base(path)
		}
		p, ok := answers[path]
		if !ok {
			return nil, errors.New("not asked for")
		}
		return p, nil
	})
	w.node(t, "b", nil)
	w.node(t, "c", silent)
	is := func(pod *corev1.Pod, p agentapi.Pod) { answers[agentapi.PodPath+string(pod.UID)] = p }
	excluding := func(ports string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = ports }
	}
	same := w.meshPod(t, "shop", "cart", "a", excluding("3306"))
	is(same, agentapi.Pod{Live: liveRules(t, same)})
	twin := w.meshPod(t, "shop", "cart-2", "a", excluding("3306"))
	is(twin, agentapi.Pod{Live: liveRules(t, twin)})
	differs := w.meshPod(t, "shop", "old", "a")
	is(differs, agentapi.Pod{Live: liveRules(t, same)}) // as if port 3306 were skipped
	bare := w.meshPod(t, "shop", "bare", "a")
	is(bare, agentapi.Pod{Records: []attachment.Record{{Selected: true}}, Live: []apply.LiveRule{}}) // what ADD wrote is gone
	moved := w.meshPod(t, "shop", "moved", "a")
	is(moved, agentapi.Pod{Records: []attachment.Record{{Selected: true}}, Live: liveRules(t, moved)})
	nft := w.meshPod(t, "shop", "nft", "a")
	is(nft, agentapi.Pod{Live: []apply.LiveRule{{Backend: apply.Nftables, Table: "inet istio-proxy-nat", Chain: "output", Hook: "type nat hook output priority -100; policy accept;", Rule: "tcp dport 80 masquerade"}}})
	foreign := w.meshPod(t, "shop", "foreign", "a")
	is(foreign, agentapi.Pod{Live: append(liveRules(t, foreign), apply.LiveRule{Backend: apply.IptablesNFT, Family: ruleset.IPv4, Table: "nat", Chain: "OTHER", Rule: "-m string --string x -j DROP"})})
	both := w.meshPod(t, "shop", "both", "a")
	is(both, agentapi.Pod{Live: append(liveRules(t, both), apply.LiveRule{Backend: apply.IptablesLegacy, Family: ruleset.IPv4, Table: "nat", Chain: "OTHER", Rule: "-j RETURN"})})
	twice := w.meshPod(t, "shop", "twice", "a")
	is(twice, agentapi.Pod{
		Records: []attachment.Record{{Selected: true}}, Live: liveRules(t, twice),
		Differences: []string{"ipv4 nat/ISTIO_OUTPUT:12 unexpected: -j ISTIO_REDIRECT"},
	})
	beside := w.meshPod(t, "shop", "beside", "a")
	is(beside, agentapi.Pod{Records: []attachment.Record{{Selected: true}}, Live: append(liveRules(t, beside), apply.LiveRule{
		Backend: apply.IptablesNFT, Family: ruleset.IPv4, Table: "nat", Chain: "OUTPUT", Rule: "-p tcp -j REDIRECT --to-ports 4140",
	})})
	two := w.meshPod(t, "shop", "two", "a")
	is(two, agentapi.Pod{Live: append(liveRules(t, two), apply.LiveRule{
		Backend: apply.IptablesNFT, Family: ruleset.IPv4, Table: "nat", Chain: "PROXY_INIT_REDIRECT", Rule: "-p tcp -j REDIRECT --to-ports 4143", Ours: true,
	})})
	w.meshPod(t, "shop", "wrong", "a", excluding("80a"))
	w.meshPod(t, "shop", "far", "b")
	w.meshPod(t, "shop", "dark", "c")
	w.meshPod(t, "batch", "excluded", "a")
	w.meshPod(t, "shop", "hosts", "a", func(p *corev1.Pod) { p.Spec.HostNetwork = true })

	dir := t.TempDir()
	html, values := filepath.Join(dir, "report.html"), filepath.Join(dir, "values.yaml")
	code, out, errOut := w.run(t, "migrate", "--html", html, "--values", values)
	require.Equal(t, ExitWrong, code, errOut)
	golden(t, "migrate.txt", out)
	for _, want := range []string{
		"from istio-cni: DaemonSet istio-system/istio-cni-node, ConfigMap istio-system/istio-cni-config\n3 nodes; agents of ours on 1, of which 1 have the other's entry too\n",
		"14 pods of the mesh: 1 would be refused, 4 have rules of two programs, 2 would be captured otherwise, 4 cannot be told, 2 would be captured the same, 1 have our rules already; 1 outside\n",
	} {
		assert.Contains(t, out, want)
	}
	assert.Contains(t, out, "  it has no rules, so it bypasses the mesh; ours would capture it\n  pods: shop/bare\n")
	page, err := os.ReadFile(html)
	require.NoError(t, err)
	golden(t, "migrate.html", string(page))
	assert.NotRegexp(t, `(?i)<(script|link|img|iframe|base)|(src|href)=|url\(|@import`, string(page), "no requests")
	var said map[string]any
	text, err := os.ReadFile(values)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &said))
	assert.Equal(t, []any{"kube-system", "batch"}, said["excludeNamespaces"])

	code, out, _ = w.run(t, "migrate", "--from", "istio-cni", "-o", "json")
	assert.Equal(t, ExitWrong, code)
	golden(t, "migrate.json", out)
	r := decode[migration.Report](t, out)
	verdicts := map[string]migration.Verdict{}
	for _, g := range r.Groups {
		for _, pod := range g.Pods {
			verdicts[pod] = g.Verdict
		}
	}
	assert.Equal(t, map[string]migration.Verdict{
		"shop/cart": "same", "shop/cart-2": "same", "shop/old": "differs", "shop/bare": "differs", "shop/moved": "moved", "shop/nft": "unknown", "shop/foreign": "unknown", "shop/both": "double", "shop/twice": "double", "shop/beside": "double", "shop/two": "double",
		"shop/wrong": "refused", "shop/far": "unknown", "shop/dark": "unknown",
	}, verdicts)

	code, _, errOut = w.run(t, "migrate", "--from", "kuma-cni")
	assert.Equal(t, ExitWrong, code)
	assert.Contains(t, errOut, "no DaemonSet of kuma-cni is in any namespace; if it has other labels than its chart gives, name it by --daemonset\n")
	for _, wrong := range [][]string{{"--from", "calico"}, {"--daemonset", "a/b"}, {"--daemonset", "b", "--from", "istio-cni"}, {"pod"}} {
		code, _, _ = w.run(t, append([]string{"migrate"}, wrong...)...)
		assert.Equal(t, ExitUsage, code, wrong)
	}
	code, _, errOut = w.run(t, "migrate", "--html", filepath.Join(dir, "none", "x.html"))
	assert.Equal(t, ExitWrong, code)
	assert.Contains(t, errOut, "none/x.html")
	w.peer(t, "consul-cni")
	code, _, errOut = w.run(t, "migrate")
	assert.Equal(t, ExitUsage, code)
	assert.Contains(t, errOut, "there are several: consul-cni (DaemonSet consul/consul-cni), istio-cni (DaemonSet istio-system/istio-cni-node); name one by --from")
	code, out, errOut = w.run(t, "migrate", "--from", "istio-cni", "--daemonset", "istio-system/istio-cni-node")
	assert.Equal(t, ExitWrong, code, errOut)
	assert.Contains(t, out, "from istio-cni: ")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(name, []byte(got), 0o600))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, string(want), got, name)
}

// TestMigrateBySettings: where no agent of ours reads the rules, the settings of Linkerd's plugin that ours does not have make the
// difference, but for pods whose own annotations count instead.
func TestMigrateBySettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.peer(t, "linkerd-cni")
	w.node(t, "a", nil)
	linkerd := func(annotations map[string]string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			uid := int64(2102)
			p.Annotations = annotations
			p.Spec.Containers[1] = corev1.Container{Name: "linkerd-proxy", Image: "i", SecurityContext: &corev1.SecurityContext{RunAsUser: &uid}}
		}
	}
	w.meshPod(t, "shop", "plain", "a", linkerd(map[string]string{"linkerd.io/proxy-version": "x"}))
	w.meshPod(t, "shop", "said", "a", linkerd(map[string]string{
		"linkerd.io/proxy-version": "x", "config.linkerd.io/skip-outbound-ports": "25", "config.linkerd.io/skip-inbound-ports": "9998-9999",
	}))
	code, out, errOut := w.run(t, "migrate", "-o", "json")
	require.Equal(t, ExitWrong, code, errOut)
	r := decode[migration.Report](t, out)
	require.Len(t, r.Groups, 2)
	assert.Equal(t, migration.Differs, r.Groups[0].Verdict)
	assert.Equal(t, migration.Model, r.Groups[0].Evidence)
	assert.Equal(t, []string{"shop/plain"}, r.Groups[0].Pods)
	assert.Contains(t, r.Groups[0].Cause, "to port 5432: pass there, redirect 4140 here")
	assert.Contains(t, r.Groups[0].Cause, "by linkerd.inbound-ports-to-ignore, linkerd.outbound-ports-to-ignore")
	assert.Equal(t, migration.Same, r.Groups[1].Verdict)
	assert.Equal(t, []string{"shop/said"}, r.Groups[1].Pods)
}

// TestMigrateUnmodelled: settings that change the rules in a way that this program cannot follow leave nothing to be told.
func TestMigrateUnmodelled(t *testing.T) {
	t.Parallel()
	peer, _ := migration.Named(builtin.Facts(), "linkerd-cni")
	for key, want := range map[migration.Setting]migration.Verdict{
		{Key: "linkerd.simulate", Value: "true"}:                     migration.Unknown,
		{Key: "linkerd.shiny", Value: "1"}:                           migration.Unknown,
		{Key: "linkerd.ipv6", Value: "false"}:                        migration.Differs,
		{Key: "linkerd.ipv6", Value: "true"}:                         migration.Same,
		{Key: "linkerd.ports-to-redirect", Value: "[8080]"}:          migration.Differs,
		{Key: "linkerd.subnets-to-ignore", Value: `["10.9.0.0/16"]`}: migration.Differs,
		{Key: "linkerd.proxy-uid", Value: "3000"}:                    migration.Differs,
	} {
		uid := int64(2102)
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name = "shop", "cart"
		pod.Annotations = map[string]string{"linkerd.io/proxy-version": "x"}
		pod.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: "linkerd-proxy", SecurityContext: &corev1.SecurityContext{RunAsUser: &uid}}}
		pod.Status.PodIPs = []corev1.PodIP{{IP: "10.244.1.5"}, {IP: "fd00::5"}}
		m := move{cluster: &cluster{}}
		m.Dialects = dialects.All()
		require.NoError(t, m.choose(migration.Make(peer, []migration.Setting{key})))
		x, err := m.judge.Explain(pod, nil)
		require.NoError(t, err)
		require.True(t, x.Decision.Selected)
		require.ErrorIs(t, x.Err(), dialect.ErrNamespaceUnknown)
		x, err = m.judge.Explain(pod, &corev1.Namespace{})
		require.NoError(t, err)
		m.judge.Add(x, migration.Observed{LiveError: noAgent})
		groups := m.judge.Groups()
		require.Len(t, groups, 1)
		assert.Equal(t, want, groups[0].Verdict, "%v: %s", key, groups[0].Cause)
	}
}

// TestMigrateInitContainers: pods are judged as the injector would make them, against what their init containers were told.
func TestMigrateInitContainers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node(t, "a", nil)
	code, _, errOut := w.run(t, "migrate")
	assert.Equal(t, ExitWrong, code)
	assert.Contains(t, errOut, "nothing to move from was found: no DaemonSet of istio-cni, linkerd-cni, kuma-cni, consul-cni, and no pod with an init container")

	init := func(args ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "istio-init", Image: "i", Args: append([]string{"istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*"}, args...)}}
		}
	}
	w.meshPod(t, "shop", "same", "a", init("-d", "15090,15021,15020", "-o", "15020", "--log_output_level=default:info"))
	w.meshPod(t, "shop", "more", "a", init("-d", "15090,15021,15020,9000", "-o", "15020"))
	w.meshPod(t, "shop", "strange", "a", init("--shiny"))
	code, out, errOut := w.run(t, "migrate", "-o", "json")
	require.Equal(t, ExitWrong, code, errOut)
	r := decode[migration.Report](t, out)
	assert.Equal(t, "init-containers", r.From)
	assert.Equal(t, "istio", r.Plan.Values["dialect"])
	require.Len(t, r.Groups, 3)
	assert.Equal(t, []string{"shop/more"}, r.Groups[0].Pods)
	assert.Equal(t, migration.Differs, r.Groups[0].Verdict)
	assert.Contains(t, r.Groups[0].Cause, "in tcp to port 9000: pass there, redirect 15006 here")
	assert.Equal(t, []string{"shop/strange"}, r.Groups[1].Pods)
	assert.Contains(t, r.Groups[1].Cause, "shiny")
	assert.Equal(t, []string{"shop/same"}, r.Groups[2].Pods)
	assert.Equal(t, migration.Same, r.Groups[2].Verdict)
}

// TestMigrateOtherInitContainers: so are the pods of the other meshes, and Consul's pods without plugin count as pods of the mesh.
func TestMigrateOtherInitContainers(t *testing.T) {
	t.Parallel()
	config := `{"ProxyUserID": "5995", "ProxyInboundPort": 20000}`
	yes, uid := true, int64(2102)
	for mesh, tc := range map[string]struct {
		annotations map[string]string
		proxy       corev1.Container
		init, other corev1.Container // the same as ours, and one that is not
		verdict     migration.Verdict
		cause       string
	}{
		"linkerd": {
			map[string]string{"linkerd.io/proxy-version": "x"},
			corev1.Container{Name: "linkerd-proxy", Image: "i", SecurityContext: &corev1.SecurityContext{RunAsUser: &uid}},
			corev1.Container{Name: "linkerd-init", Image: "i", Args: []string{"-p", "4143", "-o", "4140", "-u", "2102", "--inbound-ports-to-ignore", "4190,4191"}},
			corev1.Container{Name: "linkerd-init", Image: "i", Args: []string{"-p", "4143", "-o", "4140", "-u", "2102", "--inbound-ports-to-ignore", "4190,4191,4567"}},
			migration.Differs, "in tcp to port 4567: pass there, redirect 4143 here",
		},
		"kuma": {
			map[string]string{"kuma.io/sidecar-injected": "true", "traffic.kuma.io/transparent-proxy-config": "redirect: {outbound: {port: 15001}}"},
			corev1.Container{Name: "kuma-sidecar", Image: "i"},
			corev1.Container{Name: "kuma-init", Image: "i", Args: []string{"--config", "redirect: {outbound: {port: 15001}}"}},
			corev1.Container{Name: "kuma-init", Image: "i", Args: []string{"--config-file", "/config/x.yaml"}},
			migration.Unknown, "its configuration is in file /config/x.yaml",
		},
		"consul": {
			map[string]string{"consul.hashicorp.com/connect-inject-status": "injected"},
			corev1.Container{Name: "consul-dataplane", Image: "i"},
			corev1.Container{Name: "consul-connect-inject-init", Image: "i", Env: []corev1.EnvVar{{Name: "CONSUL_REDIRECT_TRAFFIC_CONFIG", Value: config}}, SecurityContext: &corev1.SecurityContext{Privileged: &yes}},
			corev1.Container{Name: "consul-connect-inject-init", Image: "i", Env: []corev1.EnvVar{{Name: "CONSUL_REDIRECT_TRAFFIC_CONFIG", Value: "{}"}}, SecurityContext: &corev1.SecurityContext{Privileged: &yes}},
			migration.Refused, "ProxyUserID",
		},
	} {
		t.Run(mesh, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.node(t, "a", nil)
			with := func(c corev1.Container) func(*corev1.Pod) {
				return func(p *corev1.Pod) {
					p.Annotations, p.Spec.Containers[1], p.Spec.InitContainers = tc.annotations, tc.proxy, []corev1.Container{c}
				}
			}
			w.meshPod(t, "shop", "same", "a", with(tc.init))
			w.meshPod(t, "shop", "other", "a", with(tc.other))
			_, out, errOut := w.run(t, "migrate", "--from", "init-containers", "-o", "json")
			require.NotEmpty(t, out, errOut)
			r := decode[migration.Report](t, out)
			assert.Equal(t, mesh, r.Plan.Values["dialect"])
			require.Len(t, r.Groups, 2, out)
			assert.Equal(t, []string{"shop/other"}, r.Groups[0].Pods)
			assert.Equal(t, tc.verdict, r.Groups[0].Verdict)
			assert.Contains(t, r.Groups[0].Cause, tc.cause)
			assert.Equal(t, []string{"shop/same"}, r.Groups[1].Pods)
			assert.Equal(t, migration.Same, r.Groups[1].Verdict, r.Groups[1].Cause)
		})
	}
}
