package migration

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni"
)

// TestKeepOff: affinities that a DaemonSet may have come back as they were, and what others have changed since stays.
func TestKeepOff(t *testing.T) {
	own := meshcni.DefaultIdentity()
	linux := corev1.NodeSelectorRequirement{Key: "kubernetes.io/os", Operator: corev1.NodeSelectorOpIn, Values: []string{"linux"}}
	terms := func(r ...corev1.NodeSelectorRequirement) *corev1.Affinity {
		a := &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}}
		for _, one := range r {
			s := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{one}})
		}
		return a
	}
	for name, affinity := range map[string]*corev1.Affinity{"none": nil, "empty": {}, "of nodes": {NodeAffinity: &corev1.NodeAffinity{}}, "one term": terms(linux), "two terms": terms(linux, linux)} {
		t.Run(name, func(t *testing.T) {
			ds := &appsv1.DaemonSet{}
			ds.Spec.Template.Spec.Affinity = affinity
			ds.Spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
			was := ds.DeepCopy()
			assert.False(t, KeepsOff(own, ds, "istio-cni"))
			require.NoError(t, KeepOff(own, ds, "istio-cni"))
			assert.True(t, KeepsOff(own, ds, "istio-cni"))
			assert.False(t, KeepsOff(own, ds, "kuma-cni"))
			for _, term := range required(ds.Spec.Template.Spec.Affinity) {
				assert.Len(t, slices.DeleteFunc(slices.Clone(term.MatchExpressions), func(r corev1.NodeSelectorRequirement) bool { return r.Key != own.Key(SwitchedFrom) }), 1)
			}
			changed := ds.DeepCopy()
			require.NoError(t, LetBack(own, ds, "istio-cni"))
			assert.Equal(t, was.Spec, ds.Spec)

			gpu := corev1.NodeSelectorRequirement{Key: "gpu", Operator: corev1.NodeSelectorOpExists}
			required(changed.Spec.Template.Spec.Affinity)[0].MatchExpressions = append(required(changed.Spec.Template.Spec.Affinity)[0].MatchExpressions, gpu)
			require.NoError(t, LetBack(own, changed, "istio-cni"))
			assert.False(t, KeepsOff(own, changed, "istio-cni"))
			assert.Contains(t, required(changed.Spec.Template.Spec.Affinity)[0].MatchExpressions, gpu)
		})
	}
	// A term of nothing else must not stay, empty: no node would satisfy it. One that was empty must stay so.
	ds := &appsv1.DaemonSet{}
	require.NoError(t, KeepOff(own, ds, "istio-cni"))
	ds.Spec.Template.Spec.Affinity.PodAffinity = &corev1.PodAffinity{}
	require.NoError(t, LetBack(own, ds, "istio-cni"))
	assert.Equal(t, &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}, PodAffinity: &corev1.PodAffinity{}}, ds.Spec.Template.Spec.Affinity)
	none := &appsv1.DaemonSet{}
	none.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{}, {MatchExpressions: []corev1.NodeSelectorRequirement{linux}}},
	}}}
	require.NoError(t, KeepOff(own, none, "istio-cni"))
	assert.True(t, KeepsOff(own, none, "istio-cni"))
	assert.Empty(t, required(none.Spec.Template.Spec.Affinity)[0].MatchExpressions)

	given := &appsv1.DaemonSet{}
	given.Spec.Template.Spec.Affinity = terms(corev1.NodeSelectorRequirement{Key: own.Key(SwitchedFrom), Operator: corev1.NodeSelectorOpDoesNotExist})
	assert.True(t, KeepsOff(own, given, "istio-cni"), "by the operator's own values")
	require.NoError(t, LetBack(own, given, "istio-cni"))
	assert.True(t, KeepsOff(own, given, "istio-cni"), "which stay")
}
