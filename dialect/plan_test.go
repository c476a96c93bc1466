package dialect_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// families is a mesh that treats the families as given.
func families(ipv4, ipv6 redirect.FamilyMode) dialect.Dialect {
	return dialect.Dialect{Name: "toy", Build: func(dialect.Input) (dialect.Reading, error) {
		r := redirect.Default()
		r.IPv4, r.IPv6 = ipv4, ipv6
		return dialect.Reading{Redirect: r}, nil
	}}
}

// TestNoPod: nothing is decided about a pod that is nil, and nobody takes it for one outside the mesh.
func TestNoPod(t *testing.T) {
	mesh := families(redirect.FamilyCapture, redirect.FamilyCapture)
	for name, plan := range map[string]func() (dialect.Plan, error){
		"one":     func() (dialect.Plan, error) { return mesh.Plan(dialect.Subject{}, dialect.Options{}) },
		"a set":   func() (dialect.Plan, error) { return dialect.SetOf(mesh).Plan(dialect.Subject{}) },
		"several": func() (dialect.Plan, error) { return dialect.SetOf(mesh, mesh).Plan(dialect.Subject{}) },
	} {
		p, err := plan()
		require.ErrorIs(t, err, selection.ErrNoPod, name)
		assert.True(t, p.Decision.Selected && p.Decision.Undecided, name)
		assert.Equal(t, ruleset.Ruleset{}, p.Ruleset, name)
	}
	_, err := mesh.Redirect(nil, nil, nil)
	require.ErrorIs(t, err, selection.ErrNoPod)
}

// TestUncapturedFamily: what the rules are does not depend on what the kernel has now; what is said does.
func TestUncapturedFamily(t *testing.T) {
	const (
		capture = redirect.FamilyCapture
		pass    = redirect.FamilyPass
		drop    = redirect.FamilyDrop
	)
	var none, four, six, two []netip.Addr
	four = []netip.Addr{netip.MustParseAddr("10.244.1.5")}
	six = []netip.Addr{netip.MustParseAddr("fd00::5")}
	two = append(append(two, four...), six...)
	type names = []dialect.BypassCode
	tests := []struct {
		mesh   dialect.Dialect
		addrs  []netip.Addr
		kernel redirect.Presence // of IPv6
		drop   bool
		ipv6   redirect.FamilyMode
		codes  names
		says   string
	}{
		{families(capture, pass), four, redirect.PresenceUsable, false, pass, names{"ipv6"}, "such an address (fe80::/10)"},
		{families(capture, pass), two, redirect.PresenceUsable, false, pass, names{"ipv6"}, "the pod has fd00::5"},
		{families(capture, pass), four, redirect.PresenceUnknown, false, pass, names{"ipv6"}, "which is not known here"},
		{families(capture, pass), two, redirect.PresenceUnknown, false, pass, names{"ipv6"}, "the pod has fd00::5"},
		{families(capture, pass), none, redirect.PresenceUnknown, false, pass, names{"ipv6"}, "which is not known here"},
		{families(capture, pass), four, redirect.PresenceOff, false, pass, nil, ""},
		{families(capture, pass), four, redirect.PresenceAbsent, false, pass, nil, ""},
		{families(capture, pass), four, redirect.PresenceUsable, true, drop, nil, ""},
		{families(capture, pass), four, redirect.PresenceUnknown, true, drop, nil, ""},
		{families(capture, pass), four, redirect.PresenceOff, true, drop, nil, ""},
		{families(capture, pass), four, redirect.PresenceAbsent, true, drop, nil, ""},
		{families(capture, capture), four, redirect.PresenceUsable, true, capture, nil, ""},
		{families(capture, drop), four, redirect.PresenceUsable, false, drop, nil, ""},
		{families(pass, capture), six, redirect.PresenceUsable, false, capture, names{"ipv4"}, "ipv4 bypasses the mesh: the pod's kernel has it"},
		{families(pass, capture), six, redirect.PresenceUsable, true, capture, nil, ""},
	}
	for _, tt := range tests {
		s := dialect.Subject{Pod: toyPod(nil), Addrs: tt.addrs, Kernel: redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: tt.kernel}}
		var o dialect.Options
		if tt.drop {
			o.UncapturedFamily = redirect.UncapturedDrop
		}
		plan, err := tt.mesh.Plan(s, o)
		require.NoError(t, err)
		assert.Equal(t, tt.ipv6, plan.Redirect.IPv6, "%+v", s)
		assert.Equal(t, tt.codes, plan.BypassCodes(), "%+v", s)
		assert.True(t, plan.Ruleset.Equal(plan.Redirect.MustRuleset()))
		if tt.says != "" {
			require.Len(t, plan.Bypasses, 1)
			assert.Contains(t, plan.Bypasses[0].String(), tt.says)
			assert.Contains(t, plan.Bypasses[0].String(), `uncaptured_family "drop" closes it`)
		}
	}
}

// TestCapturedAndAddressed are told apart: rules may be there for a family without addresses, and the other way round.
func TestCapturedAndAddressed(t *testing.T) {
	six := []netip.Addr{netip.MustParseAddr("fd00::5")}
	plan, err := families(redirect.FamilyCapture, redirect.FamilyCapture).Plan(dialect.Subject{Pod: toyPod(nil), Addrs: six}, dialect.Options{})
	require.NoError(t, err)
	assert.Equal(t, ruleset.Families[:], plan.Captured)
	assert.Equal(t, []ruleset.Family{ruleset.IPv6}, plan.Addressed)

	absent := redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: redirect.PresenceAbsent}
	plan, err = families(redirect.FamilyCapture, redirect.FamilyCapture).Plan(dialect.Subject{Pod: toyPod(nil), Kernel: absent}, dialect.Options{})
	require.NoError(t, err)
	assert.Equal(t, []ruleset.Family{ruleset.IPv4}, plan.Captured)
	assert.Empty(t, plan.Addressed)
	assert.Equal(t, []string{"the kernel has no ipv6 here"}, plan.Warnings.Texts())
}

// TestPlanOfWhoIsNoneOfTheMeshs: nothing is built, so nothing can be wrong.
func TestPlanOfWhoIsNoneOfTheMeshs(t *testing.T) {
	mesh := toy()
	pod := toyPod(map[string]string{"toy/ports": "x"})
	pod.Spec.HostNetwork = true
	plan, err := mesh.Plan(dialect.Subject{Pod: pod}, dialect.Options{})
	require.NoError(t, err)
	assert.Equal(t, dialect.Plan{Decision: mesh.Decide(pod, nil)}, plan)

	pod.Spec.HostNetwork = false
	plan, err = mesh.Plan(dialect.Subject{Pod: pod, Namespace: plain}, dialect.Options{})
	require.ErrorContains(t, err, `toy configuration of pod shop/cart: annotation toy/ports="x"`)
	assert.True(t, plan.Decision.Selected)
}

// TestPlanDoesNotGuessAtLabels: a pod is refused while it is not known whether its namespace is excluded, unless it is out anyhow.
func TestPlanDoesNotGuessAtLabels(t *testing.T) {
	mesh := toy()
	mesh.NeedsNamespace = false
	assert.False(t, mesh.ReadsNamespace(nil))
	mesh.Policy.ExcludedNamespaceLabels = []labels.Selector{labels.SelectorFromSet(labels.Set{"mesh": "off"})}
	assert.True(t, mesh.ReadsNamespace(nil))
	assert.True(t, mesh.ReadsNamespace(toyPod(nil)))
	plan, err := mesh.Plan(dialect.Subject{Pod: toyPod(nil)}, dialect.Options{})
	require.ErrorIs(t, err, redirect.ErrNamespaceUnknown)
	require.ErrorContains(t, err, "pod shop/cart")
	assert.Nil(t, plan.Ruleset.IPv4)

	for value, reason := range map[string]status.Code{"off": status.CodeNamespaceExcludedByLabel, "on": status.CodeSelected} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"mesh": value}}}
		plan, err = mesh.Plan(dialect.Subject{Pod: toyPod(nil), Namespace: ns}, dialect.Options{})
		require.NoError(t, err)
		assert.Equal(t, reason, plan.Decision.Reason)
		assert.Equal(t, value == "on", plan.Ruleset.IPv4 != nil)
	}
	out := toyPod(nil)
	out.Spec.HostNetwork = true
	assert.False(t, mesh.ReadsNamespace(out))
	plan, err = mesh.Plan(dialect.Subject{Pod: out}, dialect.Options{})
	require.NoError(t, err)
	assert.Equal(t, status.CodeHostNetwork, plan.Decision.Reason)
}

// TestPlanSaysAllThatIsWrong: a container that the options refuse does not hide that the settings are wrong too.
func TestPlanSaysAllThatIsWrong(t *testing.T) {
	mesh := dialect.Dialect{Name: "toy", Build: func(dialect.Input) (dialect.Reading, error) {
		r := redirect.Default()
		r.ExcludeInterfaces = []string{"no name"}
		return dialect.Reading{
			Redirect: r,
			Origins:  []redirect.Origin{{Field: "excludeInterfaces", Source: redirect.FromAnnotation, Key: "toy/interfaces", Value: "no name"}},
		}, nil
	}}
	proxy := int64(1337)
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", SecurityContext: &corev1.SecurityContext{RunAsUser: &proxy}}}}}
	for _, refuse := range []bool{false, true} {
		plan, err := mesh.Plan(dialect.Subject{Pod: pod}, dialect.Options{RefuseProxyUID: refuse})
		var blamed *dialect.SettingsError
		require.ErrorAs(t, err, &blamed)
		assert.Equal(t, "annotation toy/interfaces", blamed.Setting())
		var bypass *dialect.BypassError
		assert.Equal(t, refuse, errors.As(err, &bypass))
		assert.Equal(t, ruleset.Ruleset{}, plan.Ruleset)
		assert.Contains(t, plan.BypassCodes(), dialect.BypassProxyID)
	}
}
