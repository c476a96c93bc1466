package selection_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// TestMissingProxy: a pod that the injector has not touched, and that its labels or its namespace's ask for, is minded by a Policy that
// says so, and only such a pod.
func TestMissingProxy(t *testing.T) {
	bare := func(p *corev1.Pod) { withoutProxy(p); p.Annotations = map[string]string{} }
	ns := func(mesh string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"mesh": mesh}}}
	}
	byNamespace := policy
	byNamespace.ExcludedNamespaceLabels = nil
	byNamespace.Selectors = []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"mesh": "on"}}}}
	byPod := byNamespace
	byPod.Selectors = nil
	for _, c := range []struct {
		name      string
		policy    selection.Policy
		pod       *corev1.Pod
		namespace *corev1.Namespace
		reason    status.Code
		undecided bool
	}{
		{"its namespace asks for it", byNamespace, meshed(bare), ns("on"), status.CodeProxyMissing, false},
		{"its namespace does not", byNamespace, meshed(bare), ns("off"), status.CodeNoProxy, false},
		{"its namespace is not known", byNamespace, meshed(bare), nil, status.CodeNoProxy, true},
		{"its label asks for it", byPod, meshed(bare), ns(""), status.CodeProxyMissing, false},
		{"nothing asks for it", byPod, meshed(bare, func(p *corev1.Pod) { p.Labels = nil }), ns(""), status.CodeNoProxy, false},
		{"it is asked for, and declines", byNamespace, meshed(bare, label("false")), ns("on"), status.CodeInjectDisabled, false},
		{"another proxy has it", byNamespace, meshed(bare, annotate("other/status", "x")), ns("on"), status.CodeHasSidecar, false},
		{"on the host's network", byNamespace, meshed(bare, onHost), ns("on"), status.CodeHostNetwork, false},
		{"it has its proxy", byNamespace, meshed(), ns("on"), status.CodeSelected, false},
		{"it has its proxy, and no status", byNamespace, meshed(withoutStatus), ns("on"), status.CodeNotInjected, false},
	} {
		for _, fate := range []status.State{status.StateRefused, status.StateCaptured} {
			c.policy.MissingProxy = fate
			assert.NoError(t, c.policy.Validate(), c.name)
			d := c.policy.Decide(c.pod, c.namespace)
			assert.Equal(t, c.reason, d.Reason, c.name+": "+d.Detail)
			assert.Equal(t, c.reason == status.CodeProxyMissing || c.reason == status.CodeSelected, d.Selected, c.name)
			assert.Equal(t, c.undecided, d.Undecided, c.name)
			_, out := c.policy.RuleOut(c.pod.Annotations)
			assert.False(t, out && d.Selected, "%s: its annotations alone rule out a pod that is minded", c.name)
			_, presumed := c.policy.PresumeOut(c.pod.Annotations)
			assert.False(t, presumed, c.name)
		}
		c.policy.MissingProxy = status.StateOutside
		d := c.policy.Decide(c.pod, c.namespace)
		if c.reason == status.CodeProxyMissing {
			assert.Equal(t, status.CodeNoProxy, d.Reason, c.name)
			assert.False(t, d.Selected, c.name)
		}
	}
}

func TestMissingProxyIsValid(t *testing.T) {
	nobody := selection.Policy{ProxyContainers: []string{"p"}, MissingProxy: status.StateRefused}
	assert.ErrorContains(t, nobody.Validate(), "MissingProxy means nothing without ProxyContainers, and Selectors or InjectKey")
	nobody.MissingProxy = "drifted"
	assert.ErrorContains(t, nobody.Validate(), `MissingProxy is "drifted", and not empty, "outside", "refused" or "captured"`)
}
