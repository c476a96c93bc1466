package explain_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/playground"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// shop is a Namespace with labels or annotations.
func shop(metadata string) string { return `{"metadata": {"name": "shop", ` + metadata + `}}` }

// pod is one of the namespace shop, with metadata and a spec.
func pod(metadata, spec string) string {
	return `{"metadata": {"name": "cart", "namespace": "shop", ` + metadata + `}, "spec": {` + spec + `}}`
}

// reasonCase is a pod that a mesh leaves alone.
type reasonCase struct {
	mesh      string
	reason    status.Code
	pod       string
	namespace string // empty: not known
	sentence  string // part of it
	do        string // part of one
}

const (
	app       = `"containers": [{"name": "app"}]`
	noSidecar = `"containers": [{"name": "istio-proxy"}]`
	injected  = `"annotations": {"sidecar.istio.io/status": "{}"}`
	none      = `"labels": {}`
)

var reasonCases = []reasonCase{
	{"istio", status.CodeNoProxy, pod(none, app), shop(none), "nothing asks Istio (sidecar) for one", "kubectl label --overwrite namespace shop istio-injection=enabled"},
	{"istio", status.CodeNoProxy, pod(none, app), "", "its namespace asks for it is not known", "--namespace-file"},
	{"istio", status.CodeNoProxy, pod(none, app), shop(`"labels": {"istio-injection": "disabled"}`), "its namespace has the label istio-injection=disabled", "istio-injection=enabled"},
	{"istio", status.CodeNoProxy, pod(none, app), shop(`"labels": {"istio-injection": "enabled"}`), "although its namespace has the label istio-injection=enabled", "check-inject"},
	{"istio", status.CodeNoProxy, pod(none, app), shop(`"labels": {"istio.io/rev": "canary"}`), "although its namespace has the label istio.io/rev=canary", "Restart it\\|create it again"},
	{"istio", status.CodeNoProxy, pod(`"labels": {"sidecar.istio.io/inject": "false"}`, app), shop(`"labels": {"istio-injection": "enabled"}`), "the pod has the label sidecar.istio.io/inject=false", `the label sidecar.istio.io/inject: "true"`},
	{"istio", status.CodeNoProxy, pod(`"labels": {"sidecar.istio.io/inject": "true"}`, app), shop(`"labels": {"istio-injection": "disabled"}`), "istio-injection=disabled", "istio-injection=enabled"},
	{"istio", status.CodeNoProxy, `{"metadata": {"name": "a", "namespace": "kube-system"}, "spec": {` + app + `}}`, shop(none), "never touches kube-system", "Nothing"},
	{"istio", status.CodeInitContainer, pod(injected, noSidecar+`, "initContainers": [{"name": "istio-init"}]`), shop(none), "it is the mesh's own, and captures the pod", "pilot.cni.enabled=true"},
	{"istio", status.CodeProxyDisabled, pod(injected, `"containers": [{"name": "istio-proxy", "env": [{"name": "DISABLE_ENVOY", "value": "true"}]}]`), shop(none), "its proxy is switched off: DISABLE_ENVOY=true", "proxyMetadata"},
	{"istio", status.CodeProxyType, pod(injected, `"containers": [{"name": "istio-proxy", "args": ["proxy", "router"]}]`), shop(none), `the proxy is a "router"`, "Nothing, this is by design"},
	{"istio", status.CodeInjectDisabled, pod(`"labels": {"sidecar.istio.io/inject": "false"}, `+injected, noSidecar), shop(none), `its label sidecar.istio.io/inject is "false", although it has a proxy`, `sidecar.istio.io/inject: "true"`},
	{"istio", status.CodeNotInjected, pod(none, noSidecar), shop(none), "annotation sidecar.istio.io/status is absent", "istio-injection=enabled"},
	{"istio", status.CodeInterceptionNone, pod(`"annotations": {"sidecar.istio.io/status": "{}", "sidecar.istio.io/interceptionMode": "NONE"}`, noSidecar), shop(none), "a proxy without redirection", "take the annotation sidecar.istio.io/interceptionMode out"},
	{"istio", status.CodeInterceptionNone, pod(injected, `"containers": [{"name": "istio-proxy", "env": [{"name": "ISTIO_META_INTERCEPTION_MODE", "value": "NONE"}]}]`), shop(none), "a proxy without redirection", "proxy.istio.io/config"},
	{"ambient", "node-proxy-pod", `{"metadata": {"name": "ztunnel-a", "namespace": "istio-system", "labels": {"app": "ztunnel", "istio.io/dataplane-mode": "ambient"}}, "spec": {` + app + `}}`, shop(none), "mesh's own proxy on the node", "Nothing, this is by design"},
	{"ambient", status.CodeNotEnabled, pod(none, app), shop(none), "neither it nor its namespace has the label istio.io/dataplane-mode=ambient", "kubectl label --overwrite namespace shop istio.io/dataplane-mode=ambient"},
	{"ambient", status.CodeNotEnabled, pod(none, app), shop(`"labels": {"istio.io/dataplane-mode": "none"}`), "its namespace has the label istio.io/dataplane-mode=none", "namespace shop istio.io/dataplane-mode=ambient"},
	{"ambient", status.CodeNotEnabled, pod(`"labels": {"istio.io/dataplane-mode": "none"}`, app), shop(`"labels": {"istio.io/dataplane-mode": "ambient"}`), "the pod has the label istio.io/dataplane-mode=none", `istio.io/dataplane-mode: "ambient"`},
	{"ambient", status.CodeNotEnabled, `{"metadata": {"name": "a", "namespace": "kube-system"}, "spec": {` + app + `}}`, shop(none), "has the label", "Nothing, this is by design"},
	{"kuma", status.CodeNoProxy, `{"metadata": {"name": "a", "namespace": "kube-system"}, "spec": {` + app + `}}`, shop(none), "it has no proxy", "Nothing, this is by design"},
	{"ambient", status.CodeHasSidecar, pod(injected, app), shop(`"labels": {"istio.io/dataplane-mode": "ambient"}`), "it has a sidecar of its own", "istio-injection-"},
	{"linkerd", status.CodeNoProxy, pod(none, app), shop(`"annotations": {"linkerd.io/inject": "disabled"}`), "its namespace has the annotation linkerd.io/inject=disabled", "kubectl annotate --overwrite namespace shop linkerd.io/inject=enabled"},
	{"linkerd", status.CodeNoProxy, pod(`"annotations": {"linkerd.io/inject": "enabled"}`, app), shop(`"annotations": {"linkerd.io/inject": "disabled"}`), "although the pod has the annotation linkerd.io/inject=enabled", "proxy-injector"},
	{"linkerd", status.CodeInitContainer, pod(none, `"containers": [{"name": "linkerd-proxy"}], "initContainers": [{"name": "linkerd-init"}]`), shop(none), "linkerd-init", "cniEnabled=true"},
	{"kuma", status.CodeNoProxy, pod(none, app), shop(`"labels": {"kuma.io/sidecar-injection": "disabled"}`), "kuma.io/sidecar-injection=disabled", "kuma.io/sidecar-injection=enabled"},
	{"kuma", status.CodeNotInjected, pod(none, `"containers": [{"name": "kuma-sidecar"}]`), shop(none), "annotation kuma.io/sidecar-injected is absent", "kuma.io/sidecar-injection=enabled"},
	{"kuma", status.CodeInitContainer, pod(none, `"containers": [{"name": "kuma-sidecar"}], "initContainers": [{"name": "kuma-init"}]`), shop(none), "kuma-init", "INJECTOR_CNI_ENABLED=true"},
	{"kuma", status.CodeDryRun, pod(`"annotations": {"kuma.io/sidecar-injected": "true", "traffic.kuma.io/transparent-proxy-config": "dryRun: true"}`, `"containers": [{"name": "kuma-sidecar"}]`), shop(none), "asks for a dry run", "Take dryRun out"},
	{"consul", status.CodeNotInjected, pod(none, app), shop(none), "nothing asks Consul for one", `consul.hashicorp.com/connect-inject: "true"`},
	{"consul", status.CodeNotInjected, pod(`"annotations": {"consul.hashicorp.com/connect-inject": "true", "consul.hashicorp.com/connect-inject-status": "injected"}`, app), shop(none), "transparent-proxy-status is absent", "-enable-cni=true"},
}

// everywhere are reasons that each mesh has.
func everywhere(mesh string) []reasonCase {
	return []reasonCase{
		{mesh, status.CodeHostNetwork, pod(none, `"hostNetwork": true, `+app), shop(none), "uses the network of its node", "Nothing"},
		{mesh, status.CodeExcludedNamespace, `{"metadata": {"name": "a", "namespace": "quiet"}, "spec": {` + app + `}}`, shop(none), "excludes its namespace, quiet", "take quiet out of exclude_namespaces (excludeNamespaces in the chart's values); kube-system remains there"},
		{mesh, status.CodeExcludedNamespace, `{"metadata": {"name": "a", "namespace": "kube-system"}, "spec": {` + app + `}}`, shop(none), "excludes its namespace, kube-system", "Nothing, this is by design"},
	}
}

// possible are the reasons that a mesh can give, by its policy.
func possible(p selection.Policy) []status.Code {
	all := []status.Code{status.CodeExcludedNamespace, status.CodeHostNetwork, status.CodeNamespaceExcludedByLabel}
	for reason, is := range map[status.Code]bool{
		status.CodeInitContainer: len(p.InitContainers) > 0, status.CodeProxyDisabled: p.DisableEnv != "", status.CodeNoProxy: len(p.ProxyContainers) > 0,
		status.CodeProxyType: p.ProxyCommand != "", status.CodeInjectDisabled: p.InjectKey != "", status.CodeHasSidecar: p.ForeignAnnotation != "",
		status.CodeNotEnabled: p.Selectors != nil, status.CodeNotInjected: p.StatusAnnotation != "" || len(p.Required) > 0,
	} {
		if is {
			all = append(all, reason)
		}
	}
	return all
}

// declines are the reasons of the meshes' own functions.
var declines = map[string]status.Code{"istio": status.CodeInterceptionNone, "kuma": status.CodeDryRun, "ambient": "node-proxy-pod"}

// TestEveryReason: each reason that a mesh can give for leaving a pod alone has a sentence, and something to do about it or an
// explicit nothing.
func TestEveryReason(t *testing.T) {
	byLabel := map[string]string{
		"istio": pod(injected, noSidecar), "ambient": pod(`"labels": {"istio.io/dataplane-mode": "ambient"}`, app), "linkerd": pod(none, `"containers": [{"name": "linkerd-proxy"}]`),
		"kuma":   pod(`"annotations": {"kuma.io/sidecar-injected": "true"}`, `"containers": [{"name": "kuma-sidecar"}]`),
		"consul": pod(`"annotations": {"consul.hashicorp.com/connect-inject-status": "injected", "consul.hashicorp.com/transparent-proxy-status": "waiting"}`, app),
	}
	cases := slices.Clone(reasonCases)
	for _, name := range builtin.Names() {
		cases = append(cases, everywhere(name)...)
		cases = append(cases, reasonCase{name, status.CodeNamespaceExcludedByLabel, byLabel[name], shop(`"labels": {"mesh": "off"}`), `its labels match "mesh=off"`, "exclude_namespace_selector"})
	}
	seen := map[string]bool{}
	for _, c := range cases {
		name := fmt.Sprintf("%s, %s: %s", c.mesh, c.reason, c.pod)
		config := netconf.Config{Dialects: []string{c.mesh}}
		if c.namespace != "" && (!strings.Contains(c.pod, `"kube-system"`) || c.reason == status.CodeExcludedNamespace) {
			config.Kubernetes = netconf.Kubernetes{ExcludeNamespaces: []string{"kube-system", "quiet"}, ExcludeNamespaceSelector: "mesh=off"}
		}
		l, err := dialect.Configure(builtin.All(), config)
		require.NoError(t, err)
		x := ask(t, l, c.pod, c.namespace)
		assert.Equal(t, c.reason, x.Decision.Reason, name)
		assert.Equal(t, status.Code(c.reason), x.Verdict.Code, name)
		assert.Contains(t, codes(), x.Verdict.Code, name)
		assert.Regexp(t, `^(This pod is not captured|The plugin leaves this pod alone), because [^A-Z].*\.$`, x.Verdict.Sentence, name)
		assert.Contains(t, x.Verdict.Sentence, c.sentence, name)
		assert.True(t, slices.ContainsFunc(x.Verdict.Do, func(do string) bool {
			return slices.ContainsFunc(strings.Split(c.do, `\|`), func(want string) bool { return strings.Contains(do, want) })
		}), "%s: %q is not in %q", name, c.do, x.Verdict.Do)
		for _, do := range x.Verdict.Do {
			assert.NotEmpty(t, strings.TrimSpace(do), name)
		}
		seen[c.mesh+" "+string(c.reason)] = true
	}
	for _, d := range builtin.All() {
		want := possible(d.Policy)
		if reason, ok := declines[d.Name]; assert.Equal(t, d.Policy.Decline != nil, ok, d.Name) && ok {
			want = append(want, reason)
		}
		for _, reason := range want {
			assert.True(t, seen[d.Name+" "+string(reason)], "%s can say %s, and no case has it", d.Name, reason)
		}
		assert.NotEqual(t, d.Name, facts.All().Title(d.Name))
	}
	assert.Equal(t, "acme", facts.All().Title("acme"))
}

// TestEveryNotice: each way past the mesh, each field that excludes and each warning comes with what helps.
func TestEveryNotice(t *testing.T) {
	for _, code := range dialect.BypassCodes {
		row, _ := status.Lookup(status.KindBypass, status.Code(code))
		assert.NotEmpty(t, row.Do, code)
	}
	for _, code := range append(warning.Codes(), dialect.WarningContested) {
		row, _ := status.Lookup(status.KindWarning, status.Code(code))
		assert.NotEmpty(t, row.Do, code)
	}
	// An example of the playground for each annotation that excludes something has a notice.
	excluding := 0
	for _, e := range playground.Examples() {
		if !strings.Contains(strings.ToLower(e.Key), "exclude") && !strings.Contains(e.Key, "skip") {
			continue
		}
		v := verdict(t, e.Pod, e.Namespace, builtin.Names()...)
		if assert.Len(t, v.Excluded, 1, e.Key) {
			assert.Contains(t, v.Excluded[0].What, "not captured", e.Key)
			assert.NotEmpty(t, v.Excluded[0].Do)
			excluding++
		}
	}
	assert.Greater(t, excluding, 10)
}

// TestEveryRefusal: each setting of each mesh that is refused has its own remedy, which names it.
func TestEveryRefusal(t *testing.T) {
	refused := 0
	for _, e := range playground.Examples() {
		if !strings.Contains(e.Key, "/") {
			continue
		}
		// Whatever the value is, this is none.
		i := strings.Index(e.Pod, "    "+e.Key+": ")
		require.Positive(t, i, e.Key)
		end := i + strings.Index(e.Pod[i:], "\n")
		bad := e.Pod[:i] + "    " + e.Key + ": \"no %!\"" + e.Pod[end:]
		v := verdict(t, bad, e.Namespace, builtin.Names()...)
		if v.State != status.StateRefused {
			assert.NotEmpty(t, append(v.Warnings, v.Excluded...), "%s is neither refused nor a warning", e.Key)
			continue
		}
		refused++
		assert.Equal(t, status.CodeRefused, v.Code)
		assert.Contains(t, strings.Join(v.Because, "\n"), e.Key)
		assert.Contains(t, strings.Join(v.Do, "\n"), e.Key, e.Key)
	}
	assert.Greater(t, refused, 20)

	// What an operator may refuse, and what the injector has to write.
	strict := func(pod string, names ...string) explain.Verdict {
		return ask(t, known(t, names...).WithOptions(dialect.Options{RefuseProxyUID: true, RefuseNetRaw: true}), pod, shop(none)).Verdict
	}
	v := strict(pod(injected, `"containers": [{"name": "istio-proxy"}, {"name": "app", "securityContext": {"runAsUser": 1337}}]`), "istio")
	assert.Contains(t, v.Sentence, "the plugin is told to refuse such pods")
	assert.Contains(t, v.Do[0], `Container "app": give it another runAsUser than the proxy's, 1337`)
	v = strict(pod(`"labels": {"istio.io/dataplane-mode": "ambient"}`, app), "ambient")
	assert.Contains(t, v.Do[0], `Container "app": drop its capabilities`)
	v = strict(pod(`"annotations": {"consul.hashicorp.com/connect-inject-status": "injected", "consul.hashicorp.com/transparent-proxy-status": "waiting"}`, app), "consul")
	assert.Contains(t, strings.Join(v.Do, "\n"), "The injector writes the annotation consul.hashicorp.com/dual-stack, not you")
	// Keys of the YAML or JSON in an annotation are corrected in it.
	v = verdict(t, pod(`"annotations": {"kuma.io/sidecar-injected": "true", "traffic.kuma.io/transparent-proxy-config": "redirect: {inbound: {port: x}}"}`, `"containers": [{"name": "kuma-sidecar"}]`), shop(none), "kuma")
	assert.Contains(t, v.Do[0], "In the annotation traffic.kuma.io/transparent-proxy-config, which most often the injector writes from the mesh's configuration, correct redirect.inbound.port")
	// Settings of the namespace are corrected there.
	v = verdict(t, pod(none, `"containers": [{"name": "linkerd-proxy"}]`), shop(`"annotations": {"config.linkerd.io/skip-inbound-ports": "x"}`), "linkerd")
	assert.Contains(t, v.Do[0], "kubectl annotate --overwrite namespace shop config.linkerd.io/skip-inbound-ports=VALUE")
	// It cannot be told is neither yes nor no.
	v = verdict(t, pod(none, app), "", "ambient", "istio")
	assert.Equal(t, status.CodeNamespaceUnknown, v.Code)
	assert.Contains(t, v.Sentence, "It cannot be told whether this pod is captured")
	assert.Contains(t, v.Do[0], "--namespace-file")
	for text, mesh := range map[string]string{app: "ambient", `"containers": [{"name": "linkerd-proxy"}]`: "linkerd"} {
		v = verdict(t, pod(none, text), "", mesh)
		assert.Equal(t, status.CodeNamespaceUnknown, v.Code, mesh)
		assert.Contains(t, v.Sentence, "t cannot be told", mesh)
		assert.Contains(t, v.Do[0], "--namespace-file", mesh)
	}
	// The pod's own label decides.
	v = verdict(t, pod(`"labels": {"istio.io/dataplane-mode": "ambient"}`, app), "", "ambient")
	assert.Equal(t, status.StateCaptured, v.State)
}

// TestSeveralMeshes: of several meshes those explain that the pod has to do with, and one that was not asked is named.
func TestSeveralMeshes(t *testing.T) {
	v := verdict(t, pod(none, app), shop(none), builtin.Names()...)
	assert.Equal(t, status.CodeNoMesh, v.Code)
	for _, want := range []string{"istio-injection=enabled", "istio.io/dataplane-mode=ambient", "linkerd.io/inject=enabled", "kuma.io/sidecar-injection=enabled", "connect-inject"} {
		assert.Contains(t, strings.Join(v.Do, "\n"), want)
	}
	v = verdict(t, pod(none, app), shop(`"labels": {"istio-injection": "enabled"}`), builtin.Names()...)
	assert.Equal(t, status.CodeNoProxy, v.Code, "only Istio was asked for it")
	assert.NotContains(t, strings.Join(v.Do, "\n"), "kuma")
	v = verdict(t, pod(none, `"hostNetwork": true, `+app), shop(none), builtin.Names()...)
	assert.Empty(t, v.Because, "the same is not said for each")

	v = verdict(t, pod(none, `"containers": [{"name": "linkerd-proxy"}]`), shop(none), "istio", "ambient")
	assert.Equal(t, statuscode.OtherDialect, v.Code)
	assert.Contains(t, v.Sentence, "it is of the mesh Linkerd, and the plugin is configured for Istio (sidecar) and Istio (ambient) only")
	assert.Contains(t, v.Do[0], "Add linkerd to the plugin's dialect (dialect in the chart's values): [istio, ambient, linkerd]")

	template := `{"kind": "Deployment", "metadata": {"name": "cart", "namespace": "shop"}, "spec": {"template": {"spec": {` + app + `}}}}`
	v = verdict(t, template, shop(`"labels": {"istio-injection": "enabled"}`), "istio")
	assert.Contains(t, v.Sentence, "the injector adds the proxy to each pod that is made from it")
	assert.Equal(t, []string{"Ask about one of its pods: kubectl meshcni explain --namespace shop deployment/cart"}, v.Do)
	v = verdict(t, template, shop(`"labels": {"istio.io/dataplane-mode": "ambient"}`), "ambient")
	assert.Equal(t, status.StateCaptured, v.State)
}

// codes lists the codes of verdicts: those that sum up, and the reasons of the decision. A dialect may add its own.
func codes() []status.Code {
	all := []status.Code{
		statuscode.Captured, status.CodePartly, status.CodeNothingCaptured, status.CodeRefused, status.CodeNoMesh, statuscode.OtherDialect, statuscode.NodeProxyPod,
		// The pod's namespace decides too, and is not known. The state is then that of the pod on a node that does not know it either.
		status.CodeNamespaceUnknown,
	}
	for _, r := range selection.Reasons() {
		if r != status.CodeSelected {
			all = append(all, r)
		}
	}
	return all
}
