package migration

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
)

// Keys after the product's prefix.
const (
	// SwitchedFrom is a node's label: the name of the plugin whose agent is kept off the node.
	SwitchedFrom = "switched-from"
	// beforeSwitch is an annotation of the other's DaemonSet: what [KeepOff] has changed in it, as it was.
	beforeSwitch = "before-switch"
)

// before holds the fields of a DaemonSet that switch changes.
type before struct {
	Affinity       *corev1.Affinity               `json:"affinity,omitempty"`
	UpdateStrategy appsv1.DaemonSetUpdateStrategy `json:"updateStrategy"`
}

// KeepsOff reports whether a DaemonSet has no pod on a node that is switched from the plugin.
func KeepsOff(id meshcni.Identity, ds *appsv1.DaemonSet, plugin string) bool {
	terms := required(ds.Spec.Template.Spec.Affinity)
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !matchesNone(t) && !slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == id.Key(SwitchedFrom) && (r.Operator == corev1.NodeSelectorOpDoesNotExist || r.Operator == corev1.NodeSelectorOpNotIn && slices.Contains(r.Values, plugin))
		})
	})
}

// matchesNone reports whether a term is empty: no node satisfies it.
func matchesNone(t corev1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0
}

// required are the terms, of which a node has to satisfy one.
func required(a *corev1.Affinity) []corev1.NodeSelectorTerm {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// KeepOff makes a DaemonSet have no pod on switched nodes. Its pods elsewhere stay as they are: they would take their entry out and
// put it in again when they are replaced, so they are not.
func KeepOff(id meshcni.Identity, ds *appsv1.DaemonSet, plugin string) error {
	text, err := json.Marshal(before{ds.Spec.Template.Spec.Affinity, ds.Spec.UpdateStrategy})
	if err != nil {
		return err
	}
	if ds.Annotations[id.Key(beforeSwitch)] == "" { // else somebody has undone a part of it
		metav1.SetMetaDataAnnotation(&ds.ObjectMeta, id.Key(beforeSwitch), string(text))
	}
	ds.Spec.Template.Spec.Affinity = away(id.Key(SwitchedFrom), ds.Spec.Template.Spec.Affinity, plugin)
	ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	return nil
}

// away adds to an affinity that the node is not switched.
func away(label string, a *corev1.Affinity, plugin string) *corev1.Affinity {
	not := []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpNotIn, Values: []string{plugin}}}
	if a = a.DeepCopy(); a == nil {
		a = &corev1.Affinity{}
	}
	if a.NodeAffinity == nil {
		a.NodeAffinity = &corev1.NodeAffinity{}
	}
	terms := required(a)
	if len(terms) == 0 {
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: not}}}
	}
	for i := range terms {
		if !matchesNone(terms[i]) { // else nodes would satisfy it
			terms[i].MatchExpressions = append(terms[i].MatchExpressions, not...)
		}
	}
	return a
}

// LetBack undoes KeepOff. If somebody has changed the affinity since, only what KeepOff added is taken out.
func LetBack(id meshcni.Identity, ds *appsv1.DaemonSet, plugin string) error {
	text := ds.Annotations[id.Key(beforeSwitch)]
	if text == "" {
		return nil // it was not switch that keeps it off
	}
	var was before
	if err := json.Unmarshal([]byte(text), &was); err != nil {
		return fmt.Errorf("read its annotation %s: %w", id.Key(beforeSwitch), err)
	}
	now := ds.Spec.Template.Spec.Affinity
	if reflect.DeepEqual(now, away(id.Key(SwitchedFrom), was.Affinity, plugin)) {
		ds.Spec.Template.Spec.Affinity = was.Affinity
	} else {
		withoutUs(id.Key(SwitchedFrom), now)
	}
	if ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		ds.Spec.UpdateStrategy = was.UpdateStrategy
	}
	delete(ds.Annotations, id.Key(beforeSwitch))
	return nil
}

// withoutUs takes what KeepOff adds out of an affinity. A term of nothing else goes as well: without it, no node would satisfy it.
func withoutUs(label string, a *corev1.Affinity) {
	var rest []corev1.NodeSelectorTerm
	for _, t := range required(a) {
		others := slices.DeleteFunc(slices.Clone(t.MatchExpressions), func(r corev1.NodeSelectorRequirement) bool { return r.Key == label })
		emptied := len(others) < len(t.MatchExpressions) && len(others) == 0 && len(t.MatchFields) == 0
		t.MatchExpressions = others
		if !emptied {
			rest = append(rest, t)
		}
	}
	switch {
	case len(rest) > 0:
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = rest
	case len(required(a)) > 0:
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	}
}
