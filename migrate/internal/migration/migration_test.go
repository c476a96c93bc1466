package migration_test

import (
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/redirect"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/migrate/otherplugin"
)

var update = flag.Bool("update", false, "write the golden files anew")

// fixture is a peer's DaemonSet and ConfigMaps.
func fixture(t *testing.T, name string) (*appsv1.DaemonSet, map[string]migration.ConfigMap) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	require.NoError(t, err)
	var ds appsv1.DaemonSet
	configMaps := map[string]migration.ConfigMap{}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(doc, "kind: ConfigMap") {
			var m corev1.ConfigMap
			require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &m))
			configMaps[m.Name] = migration.ConfigMap{Data: m.Data}
		} else {
			require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &ds))
		}
	}
	assert.Equal(t, slices.Sorted(maps.Keys(configMaps)), append([]string(nil), migration.ConfigMaps(&ds)...))
	return &ds, configMaps
}

func plan(t *testing.T, name string, change ...func(*appsv1.DaemonSet, map[string]migration.ConfigMap)) migration.Plan {
	t.Helper()
	ds, configMaps := fixture(t, name)
	for _, c := range change {
		c(ds, configMaps)
	}
	peer, ok := migration.Recognise(migration.Sources(facts.All(), otherplugin.Known()), ds)
	require.True(t, ok)
	settings, err := migration.Settings(ds, configMaps)
	require.NoError(t, err)
	p := migration.Make(meshcni.Identity{}, peer, settings)
	for _, s := range settings { // nothing is dropped
		n := 0
		for _, x := range p.Kept {
			n += one(x.Key == s.Key)
		}
		for _, x := range slices.Concat(p.Undone, p.Needless) {
			n += one(x.Key == s.Key)
		}
		for _, x := range p.Unknown {
			n += one(x.Key == s.Key)
		}
		assert.Equal(t, 1, n, "%s is in one list", s.Key)
	}
	return p
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// TestPlans: what each peer's objects become.
func TestPlans(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/helm/meshcni/values.yaml")
	require.NoError(t, err)
	var chart map[string]any
	require.NoError(t, yaml.Unmarshal(text, &chart))
	for name, from := range map[string]string{
		"istio-cni": "istio-cni", "istio-ambient": "istio-cni", "linkerd-cni": "linkerd-cni", "kuma-cni": "kuma-cni", "consul-cni": "consul-cni",
	} {
		p := plan(t, name)
		assert.Equal(t, from, p.From)
		inChart(t, "", p.Values, chart)
		var b strings.Builder
		require.NoError(t, migration.Report{From: p.From, Plan: p}.Print(visible.To(&b)))
		golden(t, name+".txt", b.String())
		golden(t, name+".values.yaml", p.ValuesYAML()) // e2e/deploy renders the chart with it
	}
}

// inChart: the chart has each key.
func inChart(t *testing.T, at string, values, chart map[string]any) {
	for key, v := range values {
		have, ok := chart[key]
		if assert.True(t, ok, "the chart has no value %s%s", at, key) && key != "nodeSelector" && key != "affinity" {
			if m, ok := v.(map[string]any); ok {
				below, _ := have.(map[string]any)
				inChart(t, at+key+".", m, below)
			}
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(got), 0o600))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

// TestUnknown: what cannot be read or understood is named, and changes no value.
func TestUnknown(t *testing.T) {
	unknown := func(p migration.Plan) (all []string) {
		for _, s := range p.Unknown {
			all = append(all, s.String())
		}
		return all
	}
	p := plan(t, "istio-cni", func(_ *appsv1.DaemonSet, m map[string]migration.ConfigMap) {
		m["istio-cni-config"] = migration.ConfigMap{Err: errors.New("forbidden")}
	})
	assert.Equal(t, []string{"all of ConfigMap istio-system/istio-cni-config, whose value is not known: forbidden (DaemonSet istio-system/istio-cni-node)"}, unknown(p))
	assert.Empty(t, p.Entry().Kubernetes.ExcludeNamespaces)

	p = plan(t, "istio-cni", func(_ *appsv1.DaemonSet, m map[string]migration.ConfigMap) {
		d := m["istio-cni-config"].Data
		d["CHAINED_CNI_PLUGIN"], d["REPAIR_ENABLED"], d["AMBIENT_ENABLED"], d["FORCE_IPTABLES_BINARY"] = "maybe", "2", "yes", "xtables"
	})
	assert.Len(t, p.Unknown, 5, unknown(p))
	assert.NotContains(t, p.Values["repair"], "mode")
	assert.NotContains(t, p.Values, "ambient")

	p = plan(t, "linkerd-cni", func(_ *appsv1.DaemonSet, m map[string]migration.ConfigMap) {
		m["linkerd-cni-config"].Data["cni_network_config"] = `{"linkerd": {"proxy-uid": 0, "shiny": [1, 2], "inbound-ports-to-ignore": ["70000"]}`
	})
	assert.Contains(t, strings.Join(unknown(p), "\n"), "CNI_NETWORK_CONFIG, whose value is not known: it is no JSON object")
	p = plan(t, "linkerd-cni", func(_ *appsv1.DaemonSet, m map[string]migration.ConfigMap) {
		m["linkerd-cni-config"].Data["cni_network_config"] = `{"linkerd": {"proxy-uid": 0, "shiny": [1, 2], "inbound-ports-to-ignore": ["70000"]}}`
	})
	for _, want := range []string{`linkerd.shiny="[1,2]"`, `linkerd.proxy-uid, whose value is not known: "0"`, `linkerd.inbound-ports-to-ignore, whose value is not known`} {
		assert.Contains(t, strings.Join(unknown(p), "\n"), want)
	}
	p = plan(t, "linkerd-cni", func(ds *appsv1.DaemonSet, _ map[string]migration.ConfigMap) {
		c := &ds.Spec.Template.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: "API_TOKEN", Value: "hunter2"}, corev1.EnvVar{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}})
	})
	assert.Contains(t, strings.Join(unknown(p), "\n"), `API_TOKEN="(not shown)"`)
	assert.Contains(t, strings.Join(unknown(p), "\n"), "TOKEN, whose value is not known: it is in a Secret")
}

// TestBounds: what an installer never has is refused.
func TestBounds(t *testing.T) {
	ds, m := fixture(t, "linkerd-cni")
	m["linkerd-cni-config"].Data["cni_network_config"] = strings.Repeat(" ", 1<<20)
	_, err := migration.Settings(ds, m)
	require.ErrorIs(t, err, migration.ErrTooMuch)
	ds, m = fixture(t, "istio-cni")
	for i := range 1000 {
		m["istio-cni-config"].Data[strings.Repeat("X", i+1)] = "y"
	}
	_, err = migration.Settings(ds, m)
	require.ErrorIs(t, err, migration.ErrTooMuch)
}

// TestRecognise: no other DaemonSet is taken for a peer, nor ours.
func TestRecognise(t *testing.T) {
	for _, name := range []string{"meshcni-node", "calico-node"} {
		ds := &appsv1.DaemonSet{}
		ds.Name = name
		ds.Spec.Template.Spec.Containers = []corev1.Container{{Name: "install-cni", Command: []string{"/opt/cni/bin/install"}, EnvFrom: []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "calico-config"}}},
		}}}
		_, ok := migration.Recognise(migration.Sources(facts.All(), otherplugin.Known()), ds)
		assert.False(t, ok)
	}
	_, ok := migration.Recognise(migration.Sources(facts.All(), otherplugin.Known()), &appsv1.DaemonSet{})
	assert.False(t, ok)
}

// TestEntry: pods are judged by the chart's own defaults of what no other plugin has.
func TestEntry(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/helm/meshcni/values.yaml")
	require.NoError(t, err)
	var chart struct {
		UncapturedFamily             redirect.UncapturedFamily
		RefuseProxyUID, RefuseNetRaw bool
	}
	require.NoError(t, yaml.Unmarshal(text, &chart))
	require.Equal(t, redirect.UncapturedAllow, chart.UncapturedFamily)
	entry := plan(t, "istio-cni").Entry()
	assert.Equal(t, chart.UncapturedFamily, entry.UncapturedFamily)
	assert.Equal(t, chart.RefuseProxyUID, entry.RefuseProxyUID)
	assert.Equal(t, chart.RefuseNetRaw, entry.RefuseNetRaw)
}
