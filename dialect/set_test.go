package dialect_test

import (
	"encoding/json"
	"fmt"
	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/warning"
)

func every() []dialect.Dialect {
	return []dialect.Dialect{istio.New("kube-system"), ambient.New(ambient.Options{ExcludedNamespaces: []string{"kube-system"}}), linkerd.New(), kuma.New("kube-system"), consul.New()}
}

func setOf(t require.TestingT, names ...string) dialect.Set {
	l, err := dialect.Configure(every(), netconf.Config{Dialects: names})
	require.NoError(t, err)
	return l
}

// joined is a pod of all the meshes given, by name: "istio", "linkerd", "kuma", and "ambient" by its own label.
func joined(meshes ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "cart", Annotations: map[string]string{}, Labels: map[string]string{},
	}}
	p.Spec.Containers = []corev1.Container{{Name: "app"}}
	for _, mesh := range meshes {
		switch mesh {
		case "istio":
			p.Annotations["sidecar.istio.io/status"] = "{}"
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "istio-proxy"})
		case "linkerd":
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "linkerd-proxy"})
		case "kuma":
			p.Annotations["kuma.io/sidecar-injected"] = "true"
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "kuma-sidecar"})
		case "ambient":
			p.Labels[ambient.DataplaneMode] = "ambient"
		}
	}
	return p
}

func namespace(labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: labels}}
}

var (
	plain   = namespace(nil)
	enabled = namespace(map[string]string{ambient.DataplaneMode: "ambient"})
)

// TestFirstThatSelectsHasIt: and its Plan is what it would be alone, but for who else was asked.
func TestFirstThatSelectsHasIt(t *testing.T) {
	for _, tt := range []struct {
		list      []string
		pod       *corev1.Pod
		namespace *corev1.Namespace
		has       string
		contested string
	}{
		{[]string{"ambient", "istio"}, joined("istio"), plain, "istio", ""},
		{[]string{"ambient", "istio"}, joined("istio"), enabled, "istio", ""}, // a sidecar keeps ambient away
		{[]string{"ambient", "istio"}, joined(), enabled, "ambient", ""},
		{[]string{"ambient", "istio"}, joined(), plain, "", ""},
		{[]string{"istio", "linkerd"}, joined("linkerd"), plain, "linkerd", ""},
		{[]string{"istio", "linkerd"}, joined("linkerd", "istio"), plain, "istio", "linkerd"},
		{[]string{"linkerd", "istio"}, joined("linkerd", "istio"), plain, "linkerd", "istio"},
		{[]string{"linkerd", "kuma", "ambient", "istio"}, joined("kuma", "ambient"), plain, "kuma", "ambient"},
		{[]string{"ambient", "linkerd", "kuma"}, joined("kuma", "linkerd"), enabled, "ambient", "linkerd and kuma"},
	} {
		l := setOf(t, tt.list...)
		s := dialect.Subject{Pod: tt.pod, Namespace: tt.namespace}
		p, err := l.Plan(s)
		require.NoError(t, err)
		var want []dialect.Answer
		for d := range l.All() {
			want = append(want, dialect.Answer{Dialect: d.Name, Decision: d.Decide(tt.pod, tt.namespace)})
		}
		require.Equal(t, want, p.Answers)
		assert.Equal(t, tt.has, p.Dialect)
		if tt.has == "" {
			assert.False(t, p.Decision.Selected)
			assert.Equal(t, p.Answers[0].Reason, p.Decision.Reason)
			for _, a := range p.Answers {
				assert.Contains(t, p.Decision.Detail, a.Dialect+": "+a.Detail)
			}
			continue
		}
		alone, err := l.Lookup(tt.has).Plan(s, dialect.Options{})
		require.NoError(t, err)
		if tt.contested != "" {
			alone.Warnings = append(alone.Warnings, warning.Warning{
				Code: dialect.WarningContested, Text: tt.contested + " would select the pod too; " + tt.has + " has it, which is asked first",
			})
		}
		alone.Answers = p.Answers
		assert.Equal(t, alone, p)
	}
}

// TestOneMesh: a Set of one is that mesh, also in what it says.
func TestOneMesh(t *testing.T) {
	for _, d := range every() {
		for _, pod := range []*corev1.Pod{joined(), joined("istio"), joined("linkerd"), joined("kuma"), joined("ambient")} {
			for _, ns := range []*corev1.Namespace{nil, plain, enabled} {
				s := dialect.Subject{Pod: pod, Namespace: ns}
				want, errWant := d.Plan(s, dialect.Options{})
				got, err := dialect.SetOf(d).Plan(s)
				assert.Equal(t, want, got)
				assert.Equal(t, errWant, err)
				choice, err := dialect.SetOf(d).Choose(pod, ns)
				assert.Equal(t, want.Decision.Selected, choice.Dialect != nil)
				assert.Equal(t, want.Decision, choice.Decision)
				if choice.Decision.Undecided {
					require.ErrorIs(t, err, redirect.ErrNamespaceUnknown)
					assert.Equal(t, errWant, err)
				} else {
					require.NoError(t, err, "what settings it inherits is no matter of choice")
				}
			}
		}
	}
	d, s := istio.New(), dialect.Subject{Pod: joined("istio")}
	l := dialect.SetOf(d)
	alone := testing.AllocsPerRun(50, func() { _, _ = d.Plan(s, dialect.Options{}) })
	assert.LessOrEqual(t, testing.AllocsPerRun(50, func() { _, _ = l.Plan(s) }), alone)
	_, err := dialect.Set{}.Plan(s)
	require.ErrorContains(t, err, "no mesh is configured")
}

// TestRefusedByWhoHasIt: bad settings do not make the pod the next mesh's.
func TestRefusedByWhoHasIt(t *testing.T) {
	pod := joined("istio", "linkerd")
	pod.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "http"
	p, err := setOf(t, "istio", "linkerd").Plan(dialect.Subject{Pod: pod})
	var wrong *redirect.SettingError
	require.ErrorAs(t, err, &wrong)
	assert.Equal(t, "istio", p.Dialect)
	assert.Equal(t, dialect.WarningContested, p.Warnings[len(p.Warnings)-1].Code)
	_, err = setOf(t, "linkerd", "istio").Plan(dialect.Subject{Pod: pod, Namespace: plain})
	require.NoError(t, err)
}

// TestUnknownNamespaceRefuses: while a mesh may have the pod by its namespace, no later one gets it.
func TestUnknownNamespaceRefuses(t *testing.T) {
	for _, tt := range []struct {
		list    []string
		pod     *corev1.Pod
		refuses string // the mesh that does
		what    string
	}{
		{[]string{"ambient"}, joined(), "ambient", "whether ambient selects it"},
		{[]string{"ambient"}, joined("ambient"), "", ""}, // its own label decides
		{[]string{"linkerd"}, joined(), "", ""},
		{[]string{"linkerd"}, joined("linkerd"), "linkerd", "what settings of linkerd it inherits"},
		{[]string{"ambient", "istio"}, joined(), "ambient", "whether ambient selects it"},
		{[]string{"ambient", "linkerd"}, joined("linkerd"), "ambient", "whether ambient selects it"},
		{[]string{"ambient", "istio"}, joined("istio"), "", ""},
		{[]string{"ambient", "linkerd"}, joined("ambient", "linkerd"), "", ""},
		{[]string{"linkerd", "ambient"}, joined("linkerd"), "linkerd", "what settings of linkerd it inherits"},
		{[]string{"linkerd", "ambient"}, joined(), "ambient", "whether ambient selects it"},
	} {
		l, s := setOf(t, tt.list...), dialect.Subject{Pod: tt.pod}
		p, err := l.Plan(s)
		if tt.refuses == "" {
			require.NoError(t, err, tt.list)
			continue
		}
		require.ErrorIs(t, err, redirect.ErrNamespaceUnknown, tt.list)
		assert.ErrorContains(t, err, tt.what)
		assert.True(t, p.Decision.Selected, "nobody may take it for a pod outside")
		assert.Equal(t, tt.refuses == "ambient", p.Decision.Undecided)
		assert.Equal(t, tt.refuses, p.Dialect)
		assert.Nil(t, p.Ruleset.IPv4)
		assert.True(t, l.ReadsNamespace(tt.pod))
		s.Namespace = plain
		_, err = l.Plan(s)
		require.NoError(t, err)
	}
	second := kuma.New()
	off, err := labels.Parse("mesh=off")
	require.NoError(t, err)
	second.Policy.ExcludedNamespaceLabels = []labels.Selector{off}
	l := dialect.SetOf(istio.New(), second)
	_, err = l.Plan(dialect.Subject{Pod: joined("kuma")})
	require.ErrorIs(t, err, redirect.ErrNamespaceUnknown)
	_, err = l.Plan(dialect.Subject{Pod: joined("istio")})
	require.NoError(t, err)
}

// TestEarlyDecisions hold for all meshes of the list.
func TestEarlyDecisions(t *testing.T) {
	none, sidecar := map[string]string{}, map[string]string{"sidecar.istio.io/status": "{}"}
	declined := map[string]string{"sidecar.istio.io/status": "{}", "sidecar.istio.io/interceptionMode": "NONE"}
	for _, tt := range []struct {
		list        []string
		annotations map[string]string
		out         bool
		presumed    bool
	}{
		{[]string{"istio"}, none, true, true},
		{[]string{"istio", "kuma"}, none, true, true},
		{[]string{"istio", "kuma"}, sidecar, false, false},
		{[]string{"istio", "ambient"}, none, false, false}, // its labels or namespace may enable it
		{[]string{"ambient", "istio"}, declined, true, true},
		{[]string{"ambient", "istio"}, sidecar, false, false},
		{[]string{"istio", "linkerd"}, none, false, true},
		{[]string{"linkerd", "istio"}, map[string]string{linkerd.ProxyVersion: "x"}, false, false},
	} {
		l := setOf(t, tt.list...)
		d, out := l.RuleOut(tt.annotations)
		assert.Equal(t, tt.out, out, "%v %v", tt.list, tt.annotations)
		assert.False(t, d.Selected)
		if out && l.Len() > 1 {
			for mesh := range l.All() {
				alone, _ := mesh.Policy.RuleOut(tt.annotations)
				assert.Contains(t, d.Detail, mesh.Name+": "+alone.Detail)
			}
		}
		_, presumed := l.PresumeOut(tt.annotations)
		assert.Equal(t, tt.presumed, presumed, "%v %v", tt.list, tt.annotations)
		_, presumed = l.PresumeOut(nil)
		assert.False(t, presumed, "unknown annotations")
	}
	assert.True(t, setOf(t, "istio", "ambient").ExcludesNamespace("kube-system"))
	assert.False(t, setOf(t, "istio", "linkerd").ExcludesNamespace("kube-system"), "linkerd does not")
	assert.True(t, setOf(t, "istio", "linkerd").ReadsNamespace(nil))
	assert.False(t, setOf(t, "istio", "kuma").ReadsNamespace(nil))
	var empty dialect.Set
	_, out := empty.RuleOut(none)
	assert.False(t, out || empty.ExcludesNamespace("kube-system") || empty.ReadsNamespace(nil))
}

func TestNames(t *testing.T) {
	l := setOf(t, "ambient", "istio")
	assert.Equal(t, "ambient,istio", l.String())
	assert.Equal(t, "istio", setOf(t).String(), "the first is the default")
	assert.Nil(t, l.Lookup("kuma"))
	_, err := dialect.Configure(every(), netconf.Config{Dialects: []string{"osm", "istio", "", "istio", "osm"}})
	require.EqualError(t, err, `dialect: unknown dialect "osm": known is istio, ambient, linkerd, kuma, consul
unknown dialect "": known is istio, ambient, linkerd, kuma, consul
dialect "istio" is named twice
dialect "osm" is named twice`)
	_, err = dialect.Configure(nil, netconf.Config{Dialects: []string{"istio"}})
	require.ErrorContains(t, err, `unknown dialect "istio"`)
}

// TestSetIsSound: whatever the meshes, their order and the pod, the first that selects the pod has it, what is decided early
// is decided alike later, and nobody has a pod of which it is unknown whether an earlier mesh has it.
func TestSetIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.Permutation(dialect.SetOf(every()...).Names()).Draw(t, "order")[:rapid.IntRange(1, 5).Draw(t, "meshes")]
		l := setOf(t, names...)
		var joins []string
		for _, mesh := range []string{"istio", "linkerd", "kuma", "ambient"} {
			if rapid.Bool().Draw(t, mesh) {
				joins = append(joins, mesh)
			}
		}
		pod := joined(joins...)
		pod.Namespace = rapid.SampledFrom([]string{"shop", "kube-system"}).Draw(t, "namespace")
		pod.Spec.HostNetwork = rapid.IntRange(0, 9).Draw(t, "host network") == 0
		known := rapid.SampledFrom([]*corev1.Namespace{plain, enabled}).Draw(t, "labels")

		choice, err := l.Choose(pod, known)
		require.NoError(t, err)
		var want []string
		for d := range l.All() {
			if d.Decide(pod, known).Selected {
				want = append(want, d.Name)
			}
		}
		var got []string
		if choice.Dialect != nil {
			got = append([]string{choice.Dialect.Name}, choice.Contested...)
		}
		assert.Equal(t, want, got)
		assert.Equal(t, len(want) > 0, choice.Decision.Selected)

		if _, out := l.RuleOut(pod.Annotations); out {
			assert.Empty(t, want, "ruled out early")
		}
		if l.ExcludesNamespace(pod.Namespace) {
			assert.Empty(t, want)
		}
		blind, err := l.Choose(pod, nil)
		if err == nil && l.Len() > 1 {
			assert.Equal(t, fmt.Sprint(choice.Dialect != nil, choice.Decision.Reason), fmt.Sprint(blind.Dialect != nil, blind.Decision.Reason),
				"what is decided without the namespace is decided so with it")
		}
		if !l.ReadsNamespace(pod) {
			assert.NoError(t, err)
		}
	})
}

// TestConfigure: one constructor has all that a configuration says about pods.
func TestConfigure(t *testing.T) {
	t.Parallel()
	c, _, err := netconf.Parse([]byte(`{"dialect": ["linkerd", "ambient"], "refuse_net_raw": true, "uncaptured_family": "drop", "ambient": {"dns_capture": false},
		"kubernetes": {"exclude_namespaces": [" shop ", ""], "exclude_namespace_selector": "mesh=off"}}`), meshcni.Identity{})
	require.NoError(t, err)
	c.Kubernetes.ExcludeNamespaces = []string{" shop ", "", " "} // as flags may leave it
	known := builtin.All()
	set, err := dialect.Configure(known, c)
	require.NoError(t, err)
	assert.Equal(t, []string{"linkerd", "ambient"}, set.Names())
	assert.Equal(t, builtin.Names(), dialect.SetOf(set.Known()...).Names())
	assert.Equal(t, []string{"istio", "kuma", "consul"}, set.Others().Names())
	assert.Equal(t, dialect.Options{UncapturedFamily: redirect.UncapturedDrop, RefuseNetRaw: true}, set.Options())
	for _, s := range []dialect.Set{set, set.Others()} {
		assert.True(t, s.ExcludesNamespace("shop"))
		assert.False(t, s.ExcludesNamespace(""))
		assert.True(t, s.ReadsNamespace(nil))
		assert.True(t, s.Excludes(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}))
		assert.True(t, s.Excludes(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"mesh": "off"}}}))
		assert.False(t, s.Excludes(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}))
	}
	assert.False(t, set.Everywhere().ExcludesNamespace("shop"))
	assert.Equal(t, set.Names(), set.Everywhere().Names())
	assert.Equal(t, set.Others().Names(), set.Everywhere().Others().Names())
	assert.Empty(t, set.Known()[0].Policy.ExcludedNamespaces)
	r, err := set.Lookup("ambient").Redirect(&corev1.Pod{}, nil, nil)
	require.NoError(t, err)
	assert.False(t, r.Redirect.DNS.Enabled(), "the mesh's own settings count")
	r, err = known[1].Redirect(&corev1.Pod{}, nil, nil)
	require.NoError(t, err)
	assert.True(t, r.Redirect.DNS.Enabled(), "what the caller has stays as it is")

	set, err = dialect.Configure(builtin.All(), netconf.Config{})
	require.NoError(t, err)
	assert.Equal(t, builtin.Names()[:1], set.Names(), "the default")
	set, err = dialect.Configure(builtin.All()[:1], netconf.Config{Meshes: map[string]json.RawMessage{"ambient": json.RawMessage(`{"dns_capture": false}`)}})
	require.NoError(t, err, "settings of a mesh that the program does not know may be another's")
	assert.Zero(t, set.Others().Len())
	assert.Equal(t, []string{"ambient", "color"}, set.Unknown([]string{"color", "ambient"}))
}

// TestConfigureWrong: all wrong keys are named at once, by their names or by those of the flags. What is right is there.
func TestConfigureWrong(t *testing.T) {
	t.Parallel()
	c, _, err := netconf.Parse([]byte(`{"dialect": ["osm"], "ambient": {"probe_ipv4": "::1"}}`), meshcni.Identity{})
	require.NoError(t, err)
	c.Kubernetes.ExcludeNamespaceSelector = "a in b"
	set, err := dialect.Configure(builtin.All(), c)
	for _, want := range []string{`dialect: unknown dialect "osm"`, "kubernetes.exclude_namespace_selector: ", `ambient.probe_ipv4: "::1" is not`} {
		require.ErrorContains(t, err, want)
	}
	assert.Len(t, set.Known(), len(builtin.All()))
	var key *dialect.KeyError
	require.ErrorAs(t, err, &key)
	flags := dialect.ByFlag(err, func(e *dialect.KeyError) error { return fmt.Errorf("--%s: %w", e.Flag(), e.Err) })
	for _, want := range []string{"--dialect: ", "--exclude-namespace-selector: ", `--ambient-probe-ipv4: "::1" is not`} {
		require.ErrorContains(t, flags, want)
	}
	require.NoError(t, dialect.ByFlag(nil, nil))
}

// TestSetIsACopy: neither what a Set is made of nor what it gives away changes it.
func TestSetIsACopy(t *testing.T) {
	t.Parallel()
	given := []dialect.Dialect{istio.New(), kuma.New()}
	set := dialect.SetOf(given...)
	given[0].Name = "x"
	set.Known()[0].Name = "x"
	set.Lookup("istio").Name = "x"
	for d := range set.All() {
		d.Name = "x"
	}
	assert.Equal(t, "istio,kuma", set.String())
	assert.Equal(t, dialect.Options{}, set.Options())
	assert.True(t, set.WithOptions(dialect.Options{RefuseNetRaw: true}).Options().RefuseNetRaw)
	assert.False(t, set.Options().RefuseNetRaw)
}
