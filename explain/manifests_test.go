package explain_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// plainApp is the spec of a pod that asks for nothing.
const plainApp = `{containers: [{name: app, image: i, securityContext: {runAsUser: 1000, capabilities: {drop: [ALL]}}}]}`

func check(meshes dialect.Set, text string, injected bool) explain.ManifestReport {
	return explain.CheckManifests(meshes, explain.ManifestCheck{
		Files: map[string][]byte{"a.yaml": []byte(text)}, AsInjected: injected, Each: explain.Input{Facts: facts.All()},
	})
}

// said are the findings without the file's name.
func said(all []explain.Finding) (lines []string) {
	for _, f := range all {
		lines = append(lines, strings.TrimPrefix(f.String(), "a.yaml:"))
	}
	return lines
}

// TestManifestsOfEveryKind: the pod of each kind is found under its workload's name, and captured as it would be once injected.
func TestManifestsOfEveryKind(t *testing.T) {
	template := "{spec: " + plainApp + "}"
	for kind, text := range map[string]string{
		"Pod":                   "apiVersion: v1\nspec: " + plainApp,
		"PodTemplate":           "apiVersion: v1\ntemplate: " + template,
		"ReplicationController": "apiVersion: v1\nspec: {template: " + template + "}",
		"Deployment":            "apiVersion: apps/v1\nspec: {template: " + template + "}",
		"StatefulSet":           "apiVersion: apps/v1\nspec: {template: " + template + "}",
		"DaemonSet":             "apiVersion: extensions/v1beta1\nspec: {template: " + template + "}",
		"ReplicaSet":            "apiVersion: apps/v1\nspec: {template: " + template + "}",
		"Job":                   "apiVersion: batch/v1\nspec: {template: " + template + "}",
		"CronJob":               "apiVersion: batch/v1\nspec: {jobTemplate: {spec: {template: " + template + "}}}",
		"Rollout":               "apiVersion: argoproj.io/v1alpha1\nspec: {template: " + template + "}",
	} {
		r := check(dialect.SetOf(istio.New()), "kind: "+kind+"\nmetadata: {generateName: web-, namespace: shop}\n"+text, true)
		require.Empty(t, r.Unreadable, kind)
		require.Len(t, r.Pods, 1, kind)
		assert.Equal(t, kind+" shop/web-", r.Pods[0].Object)
		assert.Equal(t, status.StateCaptured, r.Pods[0].Verdict.State, kind)
		assert.Empty(t, r.Failing(explain.FindingKinds...), kind)
	}
}

// TestManifestsOfEveryMesh: each mesh's injector leaves a pod that the mesh captures, and the pod's own word counts.
func TestManifestsOfEveryMesh(t *testing.T) {
	own := dialect.Dialect{Name: "fabric", Names: istio.DefaultRedirect().Names, Policy: selection.Policy{
		ProxyContainers: []string{"fabric-proxy"}, InjectKey: "fabric.example/inject", InjectSelects: true,
		Selectors: []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"fabric.example/mesh": "on"}}}},
		Required:  []selection.Requirement{{Keys: []string{"fabric.example/status"}}},
	}, Build: dialect.FromSchema(redirect.Schema{Defaults: istio.DefaultRedirect(), RunAs: true})}
	off := map[string]string{
		"istio": "sidecar.istio.io/inject: 'false'", "linkerd": "linkerd.io/inject: disabled", "consul": "consul.hashicorp.com/connect-inject: 'false'",
		"fabric": "fabric.example/inject: 'false'",
	}
	for _, d := range append(builtin.All(), own) {
		require.NoError(t, d.Validate())
		pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: {a: b}}\nspec: " + plainApp
		r := check(dialect.SetOf(d), pod, true)
		require.Empty(t, r.Unreadable, d.Name)
		assert.Equal(t, d.Name, r.Pods[0].Verdict.Mesh)
		assert.Empty(t, said(r.Failing("refused", "bypass", "nothing-captured", "outside", "warning")), d.Name)
		if off[d.Name] != "" {
			r = check(dialect.SetOf(d), strings.Replace(pod, "a: b", off[d.Name], 1), true)
			assert.Len(t, r.Failing("outside"), 1, d.Name)
		}
	}
	// A namespace's label selects, and the pod's annotation overrides it.
	text := `
apiVersion: v1
kind: Namespace
metadata: {name: in, labels: {fabric.example/mesh: "on"}}
---
apiVersion: v1
kind: Namespace
metadata: {name: out}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: in}, spec: ` + plainApp + `}
---
{apiVersion: v1, kind: Pod, metadata: {name: b, namespace: in, annotations: {fabric.example/inject: "false"}}, spec: ` + plainApp + `}
---
{apiVersion: v1, kind: Pod, metadata: {name: c, namespace: out}, spec: ` + plainApp + `}
---
{apiVersion: v1, kind: Pod, metadata: {name: d, namespace: out, annotations: {fabric.example/inject: "true"}}, spec: ` + plainApp + `}
`
	r := check(dialect.SetOf(own), text, true)
	require.Len(t, r.Pods, 4)
	for i, want := range []status.State{status.StateCaptured, status.StateOutside, status.StateOutside, status.StateCaptured} {
		assert.Equal(t, want, r.Pods[i].Verdict.State, r.Pods[i].Object)
	}
	assert.Len(t, r.Failing("outside"), 2)
}

// TestManifestsConsulsSettings: what Consul's injector reads is in the rules.
func TestManifestsConsulsSettings(t *testing.T) {
	consul := dialect.SetOf(builtin.All()...).Lookup("consul")
	r := check(dialect.SetOf(*consul), `{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {consul.hashicorp.com/transparent-proxy-exclude-outbound-ports: "5432,abc"}}, spec: `+plainApp+`}`, true)
	assert.Len(t, r.Failing("refused"), 1)
	r = check(dialect.SetOf(*consul), `{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {consul.hashicorp.com/transparent-proxy-exclude-outbound-ports: "5432"}}, spec: `+plainApp+`}`, true)
	require.Len(t, r.Pods, 1)
	assert.True(t, r.Pods[0].Explanation.Redirect.Outbound.ExcludePorts.Contains(5432))
	r = check(dialect.SetOf(*consul), `{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {consul.hashicorp.com/transparent-proxy: "false"}}, spec: `+plainApp+`}`, true)
	assert.Len(t, r.Failing("outside"), 1)
}

// TestManifestsAllThatIsWrong: everything is found at once, on its line, with key and value.
func TestManifestsAllThatIsWrong(t *testing.T) {
	r := check(dialect.SetOf(istio.New()), `# web
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  template:
    metadata:
      annotations:
        traffic.sidecar.istio.io/excludeOutboundPorts: "443,x"
        traffic.sidecar.istio.io/excludeOutboundIPRanges: 10.0.0.0/33
    spec:
      containers:
      - name: app
        imge: i
      hostNetwrk: true
---
apiVersion: v1
kind: Pod
metadata:
  name: typed
  annotations:
    port: 443
    flag: true
spec: {containers: [{name: a, env: [{name: A, value: 1}]}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: root
spec:
  containers:
  - {name: app, securityContext: {runAsUser: 1000, capabilities: {drop: [ALL]}}}
  - name: helper
    securityContext: {runAsUser: 1337}
---
kind: Pod
metadata: {name: x}
---
apiVersion: apps/v1
kind: deployment
metadata: {name: x}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec: {templte: {}}
---
apiVersion: v1
kind: Pod
metadata: {name: "a\nb"}
---
apiVersion: v1
kind: Pod
spec: {}
---
[1, 2]
`, true)
	assert.Equal(t, []string{
		`15: Deployment default/web: unreadable: Kubernetes has no field "spec.template.spec.containers[0].imge" here`,
		`16: Deployment default/web: unreadable: Kubernetes has no field "spec.template.spec.hostNetwrk" here`,
		`24: Pod default/typed: unreadable: "metadata.annotations.flag" is true, and no string: put it in quotes`,
		`23: Pod default/typed: unreadable: "metadata.annotations.port" is 443, and no string: put it in quotes`,
		`25: Pod default/typed: unreadable: "spec.containers[0].env[0].value" is 1, and no string: put it in quotes`,
		`37: Pod: unreadable: the object has no apiVersion`,
		`41: deployment: unreadable: the kind "deployment" is written Deployment`,
	}, said(r.Unreadable)[:7])
	assert.Equal(t, []string{"refused", "refused", "bypass"}, func() (kinds []string) {
		for _, f := range r.Failing("refused", "bypass")[len(r.Unreadable):] {
			kinds = append(kinds, f.Kind)
		}
		return kinds
	}())
	failing := said(r.Failing("refused", "bypass"))[len(r.Unreadable):]
	assert.Contains(t, failing[0], `10: Deployment default/web: refused: annotation traffic.sidecar.istio.io/excludeOutboundPorts="443,x"`)
	assert.Contains(t, failing[1], `11: Deployment default/web: refused: annotation traffic.sidecar.istio.io/excludeOutboundIPRanges="10.0.0.0/33"`)
	assert.Contains(t, failing[2], `34: Pod default/root: bypass: `)
	rest := strings.Join(said(r.Unreadable)[7:], "\n")
	for _, want := range []string{"the Deployment has no template of pods (spec.template)", `"a\nb" is no name`, "neither a name nor a generateName", "it is no object with an apiVersion and a kind"} {
		assert.Contains(t, rest, want)
	}
	assert.Len(t, r.Unreadable, 11)
}

// TestManifestsPassedOver: what makes no pod is counted by its kind, and a status is the cluster's to know.
func TestManifestsPassedOver(t *testing.T) {
	r := check(dialect.SetOf(istio.New()), `
{apiVersion: v1, kind: Service, metadata: {name: a}}
---
{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {tasks: []}}
---
apiVersion: v2
name: a-chart
---
replicas: 3
---
{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: a}, spec: {workloadRef: {name: a}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostNetwork: true}, status: {somethingNew: 1}}
`, false)
	assert.Empty(t, said(r.Unreadable))
	assert.Equal(t, map[string]int{"Service": 1, "Job.batch.volcano.sh": 1, "no kind": 2, "Rollout.argoproj.io of another's template": 1}, r.PassedOver)
	assert.Len(t, r.Pods, 1)
}

// TestManifestsInLists: lists of lists, typed lists whose items do not say what they are, and streams of JSON are read, within a bound.
func TestManifestsInLists(t *testing.T) {
	pod := func(name string) string {
		return `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "` + name + `"}, "spec": {"containers": [{"name": "a"}], "x": 1}}`
	}
	r := check(dialect.SetOf(istio.New()), `{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "List", "items": [`+pod("a")+`]},
`+pod("b")+`,
{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "c"}}]}, {"apiVersion": "apps/v1", "kind": "DeploymentList", "items": []}
]}
`+pod("d"), false)
	var names []string
	for _, p := range r.Pods {
		names = append(names, fmt.Sprint(p.Line, " ", p.Object))
	}
	assert.Equal(t, []string{"2 Pod default/a", "3 Pod default/b", "4 Pod default/c", "6 Pod default/d"}, names)
	assert.Len(t, r.Unreadable, 3, "each unknown field, on its line")
	assert.Equal(t, 6, r.Unreadable[2].Line)

	deep := pod("deep")
	for range 20 {
		deep = `{"apiVersion": "v1", "kind": "List", "items": [` + deep + `]}`
	}
	r = check(dialect.SetOf(istio.New()), deep, false)
	require.Len(t, r.Unreadable, 1)
	assert.Contains(t, r.Unreadable[0].Text, "lists are in one another")

	// A long list takes as long as its objects do: its items are not copied once for each of them.
	const many = 100_000
	long := func(n int) {
		r = check(dialect.SetOf(istio.New()), `{"apiVersion": "v1", "kind": "List", "items": [`+strings.Repeat(`{"apiVersion":"v1","kind":"Secret"},`, n)+pod("last")+`]}`, false)
	}
	allocated := func(n int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		long(n)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	tenth := allocated(many / 10)
	assert.Less(t, allocated(many), 30*tenth, "bytes, for ten times as many")
	assert.Equal(t, many, r.PassedOver["Secret"])
	assert.Len(t, r.Pods, 1)
}

// TestManifestsUndecided: without its namespace a pod of which that decides is neither in the mesh nor out of it, and that fails every check.
func TestManifestsUndecided(t *testing.T) {
	ambient := dialect.SetOf(*dialect.SetOf(builtin.All()...).Lookup("ambient"))
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop}\nspec: " + plainApp
	r := check(ambient, pod, false)
	require.Len(t, r.Failing(), 1)
	assert.Equal(t, "undecided", r.Failing()[0].Kind)
	for labels, state := range map[string]status.State{"": status.StateOutside, "istio.io/dataplane-mode: ambient": status.StateCaptured} {
		r = explain.CheckManifests(ambient, explain.ManifestCheck{Files: map[string][]byte{
			"z.yaml": []byte(pod), "ns.yaml": []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {" + labels + "}}"),
		}})
		require.Empty(t, r.Failing())
		assert.Equal(t, state, r.Pods[0].Verdict.State)
	}
	r = explain.CheckManifests(ambient, explain.ManifestCheck{Files: map[string][]byte{
		"1.yaml": []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}"), "2.yaml": []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {a: b}}"),
	}})
	require.Len(t, r.Failing(), 1)
	assert.Contains(t, r.Failing()[0].Text, "the namespace is also in 1.yaml, line 1, with other labels")
}

// TestManifestsLenient: a newer cluster's field is passed over where that is asked for; what is no YAML is not.
func TestManifestsLenient(t *testing.T) {
	c := explain.ManifestCheck{Lenient: true, Namespace: "shop", Files: map[string][]byte{"a": []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {newField: 1}\n---\na: [")}}
	r := explain.CheckManifests(dialect.SetOf(istio.New()), c)
	require.Len(t, r.Failing(), 1)
	assert.Equal(t, "Pod shop/a", r.Pods[0].Object)
	c.Lenient = false
	assert.Len(t, explain.CheckManifests(dialect.SetOf(istio.New()), c).Failing(), 2)
}
