package dialect_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
)

// reader changes a dialect so that it reads the namespace by one field. Its pods are captured, and the field decides about them
// or about their settings, where the namespace has the label and the annotation mesh=on.
type reader func(*dialect.Dialect)

var on = map[string]string{"mesh": "on"}

func byLabel(d *dialect.Dialect) {
	d.Policy.Selectors = []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: on}}}
}

func byExpression(d *dialect.Dialect) {
	d.Policy.Selectors = []selection.Selector{{Namespace: metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "mesh", Operator: metav1.LabelSelectorOpIn, Values: []string{"on"}}},
	}}}
}

func byExcludedLabels(d *dialect.Dialect) {
	d.Policy.ExcludedNamespaceLabels = []labels.Selector{labels.SelectorFromSet(on)}
}

func inherited() redirect.Schema {
	return redirect.Schema{Defaults: redirect.Default(), Settings: []redirect.Setting{
		{Field: "outbound.ports", Keys: []string{"other"}},
		{Field: "inbound.excludePorts", Keys: []string{"ports"}, Inherited: true},
	}}
}

func bySchema(d *dialect.Dialect) { d.Build = dialect.FromSchema(inherited()) }

// inside is a schema that a function of the mesh's own reads.
func inside(d *dialect.Dialect) {
	d.Build = func(in dialect.Input) (dialect.Reading, error) {
		name := in.Proxy.Name // which is there in each pod of the mesh
		r, err := in.Read(inherited())
		r.ProxyContainers = append(r.ProxyContainers, name)
		return r, err
	}
}

func bySaying(d *dialect.Dialect) {
	d.NeedsNamespace = true
	d.Build = func(in dialect.Input) (r dialect.Reading, _ error) {
		r.Redirect = redirect.Default()
		r.Redirect.DropInvalid = in.Namespace.Annotations["mesh"] == "on"
		return r, nil
	}
}

// reads says of each field of a dialect how it makes the dialect read a pod's namespace; none: it does not.
var reads = map[reflect.Type]map[string][]reader{
	reflect.TypeFor[dialect.Dialect](): {
		"Name": nil, "Policy": {byLabel}, "Build": {bySchema, inside}, "Names": nil, "NeedsNamespace": {bySaying}, "Applied": nil, "Configure": nil,
		"Sandboxes": nil, "Check": nil, "NodeProxy": nil, "Domains": nil, "Retired": nil, "Injected": nil,
	},
	reflect.TypeFor[selection.Policy](): {
		"ExcludedNamespaces": nil, // by name, which the pod has
		"InitContainers":     nil, "PrivilegedInitContainers": nil, "ProxyContainers": nil, "DisableEnv": nil, "ProxyCommand": nil,
		"ProxyTypes": nil, "InjectKey": nil, "InjectOn": nil, "InjectOff": nil, "InjectSelects": nil, "ForeignAnnotation": nil, "StatusAnnotation": nil,
		"Required": nil, "Decline": nil, "Traces": nil,
		"MissingProxy":            nil, // Selectors do
		"ExcludedNamespaceLabels": {byExcludedLabels}, "Selectors": {byLabel, byExpression},
	},
	reflect.TypeFor[selection.Selector]():   {"Pod": nil, "Namespace": {byLabel, byExpression}},
	reflect.TypeFor[metav1.LabelSelector](): {"MatchLabels": {byLabel}, "MatchExpressions": {byExpression}},
	reflect.TypeFor[redirect.Schema]():      {"Defaults": nil, "Settings": {bySchema}, "Prefixes": nil, "OtherKeys": nil, "RunAs": nil, "RunAsUser": nil},
	reflect.TypeFor[redirect.Setting](): {
		"Field": nil, "Source": nil, "Keys": nil, "Grammar": nil, "Set": nil, "Add": nil, "Allowed": nil, "Inherited": {bySchema}, "Lenient": nil,
	},
}

// TestEachFieldSaysWhatItReads: a new field has to have an answer in the table above, and dialect/reads.go to know of it.
func TestEachFieldSaysWhatItReads(t *testing.T) {
	for part, fields := range reads {
		for i := range part.NumField() {
			_, ok := fields[part.Field(i).Name]
			assert.True(t, ok, "does %s.%s make a dialect read the pod's namespace? Answer in the table, and in reads.go", part, part.Field(i).Name)
		}
		assert.Len(t, fields, part.NumField(), "a field of %s is gone", part)
	}
}

// TestNeededNamespace: each way of reading a namespace makes it needed, of this dialect and of a list, and nothing is decided or built
// without it.
func TestNeededNamespace(t *testing.T) {
	pod := toyPod(nil)
	for part, fields := range reads {
		for field, readers := range fields {
			for i, reads := range readers {
				d := dialect.Dialect{Name: "mine", Policy: selection.Policy{ProxyContainers: []string{"toy-proxy"}}, Names: redirect.Default().Names}
				d.Build = dialect.FromSchema(redirect.Schema{Defaults: redirect.Default()})
				require.False(t, d.ReadsNamespace(nil))
				reads(&d)
				other := dialect.Dialect{Name: "other", Policy: selection.Policy{ProxyContainers: []string{"none"}}, Build: d.Build}
				for _, l := range []dialect.Set{dialect.SetOf(d), dialect.SetOf(other, d)} {
					name := part.String() + "." + field + " " + l.String()
					assert.True(t, l.ReadsNamespace(nil), "%s %d", name, i)
					assert.True(t, l.ReadsNamespace(pod), name)
					p, err := l.Plan(dialect.Subject{Pod: pod, Addrs: v4})
					require.ErrorIs(t, err, redirect.ErrNamespaceUnknown, name)
					assert.True(t, p.Decision.Selected, "nobody may take it for a pod outside")
					assert.Equal(t, "mine", p.Dialect)
					assert.Nil(t, p.Ruleset.IPv4)

					with := func(ns corev1.Namespace) dialect.Plan {
						p, err := l.Plan(dialect.Subject{Pod: pod, Namespace: &ns, Addrs: v4})
						require.NoError(t, err, name)
						return p
					}
					none := with(corev1.Namespace{})
					some := with(corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: on, Annotations: map[string]string{"mesh": "on", "ports": "9090"}}})
					assert.False(t, none.Decision.Selected == some.Decision.Selected && reflect.DeepEqual(none.Redirect, some.Redirect), "%s changes nothing", name)
				}
				out := pod.DeepCopy()
				out.Spec.HostNetwork = true
				assert.False(t, d.ReadsNamespace(out), "a pod that is out anyhow")
				_, err := d.Plan(dialect.Subject{Pod: out}, dialect.Options{})
				require.NoError(t, err)
			}
		}
	}
}

// TestUnsaidNamespace: a Build that reads the namespace and does not say so gets none from anybody, so that a test shows it; and
// what a schema inherits is never taken for absent.
func TestUnsaidNamespace(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"ports": "9090"}}}
	d := toy()
	d.NeedsNamespace = false
	got := ns
	d.Build = func(in dialect.Input) (r dialect.Reading, _ error) {
		got = in.Namespace
		r.Redirect = redirect.Default()
		return r, nil
	}
	_, err := d.Plan(dialect.Subject{Pod: toyPod(nil), Namespace: ns}, dialect.Options{})
	require.NoError(t, err)
	assert.Nil(t, got)

	for name, build := range map[string]func(dialect.Input) (dialect.Reading, error){
		"of some pods": func(in dialect.Input) (dialect.Reading, error) {
			if in.Pod.Annotations["v2"] == "" {
				return in.Read(redirect.Schema{Defaults: redirect.Default()})
			}
			return in.Read(inherited())
		},
		"past Read": func(in dialect.Input) (r dialect.Reading, err error) {
			r.Redirect, r.Origins, r.Warnings, err = inherited().Build(in.Values())
			return r, err
		},
	} {
		d.Build = build
		_, err := d.Plan(dialect.Subject{Pod: toyPod(map[string]string{"v2": "yes"}), Namespace: ns}, dialect.Options{})
		require.ErrorIs(t, err, redirect.ErrNamespaceUnknown, name)
		assert.ErrorContains(t, err, "NeedsNamespace")
		d.NeedsNamespace = true
		p, err := d.Plan(dialect.Subject{Pod: toyPod(map[string]string{"v2": "yes"}), Namespace: ns}, dialect.Options{})
		require.NoError(t, err, name)
		assert.Equal(t, "9090", p.Redirect.Inbound.ExcludePorts.String())
		d.NeedsNamespace = false
	}
}

// TestUndecided: where the Decision without the Namespace is not Undecided, no namespace changes it.
func TestUndecided(t *testing.T) {
	halves := []metav1.LabelSelector{
		{}, {MatchLabels: on}, {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "mesh", Operator: metav1.LabelSelectorOpDoesNotExist}}},
	}
	var selectors []selection.Selector
	for _, pod := range halves {
		for _, namespace := range halves {
			selectors = append(selectors, selection.Selector{Pod: pod, Namespace: namespace})
		}
	}
	off := labels.SelectorFromSet(labels.Set{"mesh": "off"})
	undecided := 0
	for i, a := range selectors {
		for _, b := range selectors[i:] {
			for _, excluded := range [][]labels.Selector{nil, {off}} {
				p := selection.Policy{Selectors: []selection.Selector{a, b}, ExcludedNamespaceLabels: excluded, StatusAnnotation: "injected"}
				for _, text := range []string{"", "mesh", "injected", "mesh injected"} {
					pod := &corev1.Pod{}
					pod.Labels, pod.Annotations = map[string]string{}, map[string]string{}
					if strings.Contains(text, "mesh") {
						pod.Labels["mesh"] = "on"
					}
					if strings.Contains(text, "injected") {
						pod.Annotations["injected"] = ""
					}
					alone := p.Decide(pod, nil)
					var answers []bool
					for _, part := range []map[string]string{nil, on, {"mesh": "off"}, {"mesh": "x"}} {
						d := p.Decide(pod, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: part}})
						assert.False(t, d.Undecided)
						answers = append(answers, d.Selected)
					}
					switch {
					case alone.Undecided:
						undecided++
						assert.True(t, p.ReadsNamespace())
					default:
						assert.False(t, slices.Contains(answers, !alone.Selected), "%+v %q: %v", p, text, answers)
					}
				}
			}
		}
	}
	assert.Positive(t, undecided)
}
