package selection_test

import (
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

func TestSelectorOfNamespaces(t *testing.T) {
	on := metav1.LabelSelector{MatchLabels: map[string]string{"mode": "on"}}
	p := selection.Policy{Selectors: []selection.Selector{{Namespace: on}}}
	pod := &corev1.Pod{}
	assert.Equal(t, status.CodeNotEnabled, p.Decide(pod, nil).Reason)
	assert.Equal(t, status.CodeNotEnabled, p.Decide(pod, &corev1.Namespace{}).Reason)
	d := p.Decide(pod, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"mode": "on"}}})
	assert.True(t, d.Selected)
	assert.Contains(t, d.Detail, "selector")
}

func TestInvalidSelector(t *testing.T) {
	wrong := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "mode", Operator: "Like"}}}
	p := selection.Policy{Selectors: []selection.Selector{{}, {Namespace: wrong}}}
	assert.ErrorContains(t, p.Validate(), `namespace selector 2: "Like" is not a valid label selector operator`)
	assert.NoError(t, policy.Validate())
	p.Selectors = p.Selectors[1:]
	d := p.Decide(&corev1.Pod{}, nil)
	require.ErrorContains(t, d.Err, "namespace selector 1", "what cannot be is no reason to leave a pod alone")
	assert.True(t, d.Selected && d.Undecided)
}

// TestNamesThatNothingHas: no pod is left alone, with or without a look at the whole of it, by a Policy that could match nothing.
func TestNamesThatNothingHas(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "proxy"}}}}
	for want, p := range map[string]selection.Policy{
		"ProxyContainers: nothing in a cluster can have the name \"The Proxy\"":        {ProxyContainers: []string{"The Proxy"}},
		"InitContainers has an empty name":                                             {InitContainers: []string{""}},
		"PrivilegedInitContainers: nothing in a cluster can have the name \"Init_it\"": {PrivilegedInitContainers: []string{"Init_it"}},
		"StatusAnnotation: no annotation can have the key \"a b\"":                     {StatusAnnotation: "a b"},
		"InjectKey: no annotation can have the key \"a//b\"":                           {InjectKey: "a//b"},
		"requirement 1 has no Keys":                                                    {Required: []selection.Requirement{{}}},
		"Traces: nothing in a cluster can have the name \"/x\"":                        {Traces: []string{"/x"}},
		"ExcludedNamespaceLabels 1 is nil":                                             {ExcludedNamespaceLabels: []labels.Selector{nil}},
		"ExcludedNamespaceLabels 1 requires nothing":                                   {ExcludedNamespaceLabels: []labels.Selector{labels.Everything()}},
		"ProxyCommand \"proxy\" without ProxyTypes":                                    {ProxyContainers: []string{"proxy"}, ProxyCommand: "proxy"},
	} {
		d := p.Decide(pod, nil)
		require.ErrorContains(t, d.Err, want)
		require.ErrorContains(t, p.Validate(), want)
		assert.True(t, d.Selected && d.Undecided, want)
		d, out := p.RuleOut(map[string]string{})
		assert.False(t, out, want)
		require.ErrorContains(t, d.Err, want)
		_, out = p.PresumeOut(map[string]string{})
		assert.False(t, out, want)
	}
	d := selection.Policy{}.Decide(nil, nil)
	require.ErrorIs(t, d.Err, selection.ErrNoPod)
	assert.True(t, d.Selected && d.Undecided)
}

func TestRuleOutByRequirement(t *testing.T) {
	p := selection.Policy{ForeignAnnotation: "other", Required: []selection.Requirement{{Keys: []string{"a", "b"}}}}
	d, out := p.RuleOut(map[string]string{"a": ""})
	assert.True(t, out)
	assert.Equal(t, `annotation a is ""`, d.Detail)
	d, _ = p.RuleOut(nil)
	assert.Equal(t, "annotation a or b is absent", d.Detail)
	d, _ = p.RuleOut(map[string]string{"b": "x", "other": ""})
	assert.Equal(t, status.CodeHasSidecar, d.Reason)
	_, out = p.RuleOut(map[string]string{"b": "x"})
	assert.False(t, out)
}

func TestPresumeOut(t *testing.T) {
	p := selection.Policy{ProxyContainers: []string{"mesh-proxy"}, Traces: []string{"mesh/version", "mesh/by"}}
	for _, annotations := range []map[string]string{{}, {"other": "x"}, {"mesh/inject": "disabled"}} {
		d, out := p.PresumeOut(annotations)
		assert.True(t, out, annotations)
		assert.Equal(t, status.CodeNotInjected, d.Reason)
		assert.Contains(t, d.Detail, "mesh/version or mesh/by")
		_, out = p.RuleOut(annotations)
		assert.False(t, out, "a pod that can be read is looked at")
	}
	for _, annotations := range []map[string]string{nil, {"mesh/version": ""}, {"mesh/by": "x"}} {
		_, out := p.PresumeOut(annotations)
		assert.False(t, out, annotations)
	}
	_, out := selection.Policy{}.PresumeOut(map[string]string{})
	assert.False(t, out, "a mesh that leaves no trace cannot tell")
}

// TestInjectSelects: "by the label of the namespace, or by the pod's own annotation", as data.
func TestInjectSelects(t *testing.T) {
	t.Parallel()
	byLabel := selection.Policy{
		InjectKey: "net.example/join", InjectOn: []string{"on", "always"}, InjectOff: []string{"off"},
		Selectors: []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"net.example/mesh": "on"}}}},
	}
	either := byLabel
	either.InjectSelects = true
	require.NoError(t, either.Validate())
	mesh := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"net.example/mesh": "on"}}}
	plain := &corev1.Namespace{}
	for _, c := range []struct {
		labels, annotations map[string]string
		namespace           *corev1.Namespace
		gated, either       status.Code
		warned              warning.Code // by the first
	}{
		{nil, nil, mesh, status.CodeSelected, status.CodeSelected, ""},
		{nil, nil, plain, status.CodeNotEnabled, status.CodeNotEnabled, ""},
		{nil, map[string]string{"net.example/join": "on"}, mesh, status.CodeSelected, status.CodeSelected, ""},
		{nil, map[string]string{"net.example/join": "on"}, plain, status.CodeNotEnabled, status.CodeSelected, warning.NoEffect},
		{map[string]string{"net.example/join": "always"}, nil, plain, status.CodeNotEnabled, status.CodeSelected, warning.NoEffect},
		{nil, map[string]string{"net.example/join": "off"}, mesh, status.CodeInjectDisabled, status.CodeInjectDisabled, ""},
		{map[string]string{"net.example/join": "off"}, map[string]string{"net.example/join": "on"}, plain, status.CodeInjectDisabled, status.CodeInjectDisabled, ""},
		{nil, map[string]string{"net.example/join": "true"}, plain, status.CodeNotEnabled, status.CodeNotEnabled, warning.Invalid},
		{nil, map[string]string{"net.example/jion": "on"}, plain, status.CodeNotEnabled, status.CodeNotEnabled, warning.Unknown},
		{map[string]string{"net.example/Join": "off"}, nil, mesh, status.CodeSelected, status.CodeSelected, warning.Unknown},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, Annotations: c.annotations}}
		gated, both := byLabel.Decide(pod, c.namespace), either.Decide(pod, c.namespace)
		assert.Equal(t, c.gated, gated.Reason, "%v %v", c.labels, c.annotations)
		assert.Equal(t, c.either, both.Reason, "%v %v", c.labels, c.annotations)
		if c.warned == "" {
			assert.Empty(t, gated.Warnings)
			continue
		}
		if assert.Len(t, gated.Warnings, 1) {
			assert.Equal(t, c.warned, gated.Warnings[0].Code)
		}
		if c.warned == warning.NoEffect {
			assert.Empty(t, both.Warnings)
			assert.Contains(t, both.Detail, "net.example/join is ")
			assert.True(t, either.Decide(pod, nil).Selected, "the namespace is not needed")
		}
	}
}

// TestSettingsThatSayNothing are errors.
func TestSettingsThatSayNothing(t *testing.T) {
	t.Parallel()
	some := []selection.Selector{{}}
	for want, p := range map[string]selection.Policy{
		"without InjectKey":  {InjectOn: []string{"yes"}},
		"without Selectors":  {InjectKey: "m/k", InjectSelects: true},
		"without InjectOn":   {InjectKey: "m/k", InjectOff: []string{"no"}, InjectSelects: true, Selectors: some},
		`"x" is both`:        {InjectKey: "m/k", InjectOn: []string{"x"}, InjectOff: []string{"y", "x"}},
		"empty word":         {InjectKey: "m/k", InjectOff: []string{""}},
		"InjectSelects mean": {InjectSelects: true, Selectors: some},
	} {
		assert.ErrorContains(t, p.Validate(), want)
	}
	assert.NoError(t, selection.Policy{InjectKey: "m/k", InjectSelects: true, Selectors: some}.Validate())
}
