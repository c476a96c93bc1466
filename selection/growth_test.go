package selection_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/selection"
)

func TestSelectorOfNamespaces(t *testing.T) {
	on := metav1.LabelSelector{MatchLabels: map[string]string{"mode": "on"}}
	p := selection.Policy{Selectors: []selection.Selector{{Namespace: on}}}
	pod := &corev1.Pod{}
	assert.Equal(t, selection.NotEnabled, p.Decide(pod, nil).Reason)
	assert.Equal(t, selection.NotEnabled, p.Decide(pod, &corev1.Namespace{}).Reason)
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
	assert.Equal(t, selection.NotEnabled, p.Decide(&corev1.Pod{}, nil).Reason, "what cannot be matches nothing")
}

func TestRuleOutByRequirement(t *testing.T) {
	p := selection.Policy{ForeignAnnotation: "other", Required: []selection.Requirement{{Keys: []string{"a", "b"}}}}
	d, out := p.RuleOut(map[string]string{"a": ""})
	assert.True(t, out)
	assert.Equal(t, `annotation a is ""`, d.Detail)
	d, _ = p.RuleOut(nil)
	assert.Equal(t, "annotation a or b is absent", d.Detail)
	d, _ = p.RuleOut(map[string]string{"b": "x", "other": ""})
	assert.Equal(t, selection.HasSidecar, d.Reason)
	_, out = p.RuleOut(map[string]string{"b": "x"})
	assert.False(t, out)
}

func TestPresumeOut(t *testing.T) {
	p := selection.Policy{ProxyContainers: []string{"mesh-proxy"}, Traces: []string{"mesh/version", "mesh/by"}}
	for _, annotations := range []map[string]string{{}, {"other": "x"}, {"mesh/inject": "disabled"}} {
		d, out := p.PresumeOut(annotations)
		assert.True(t, out, annotations)
		assert.Equal(t, selection.NotInjected, d.Reason)
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
