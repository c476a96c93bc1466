package selection

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/text/misspelt"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// inject returns the value of InjectKey, and where it stands.
func (p Policy) inject(pod *corev1.Pod) (kind, value string) {
	if p.InjectKey == "" {
		return "", ""
	}
	if v, ok := pod.Labels[p.InjectKey]; ok {
		return "label", v
	}
	return "annotation", pod.Annotations[p.InjectKey]
}

// saysOn reports whether the pod asks for the mesh by InjectKey.
func (p Policy) saysOn(pod *corev1.Pod) bool {
	_, value := p.inject(pod)
	on, _ := readSwitch("", "", value, p.InjectOn, p.InjectOff, new(warning.List))
	return value != "" && on
}

// optsIn reports whether the pod needs no selector.
func (p Policy) optsIn(pod *corev1.Pod) bool { return p.InjectSelects && p.saysOn(pod) }

// maxMisspelt bounds the keys that are warned of.
const maxMisspelt = 4

// unheeded warns of a pod that asks for the mesh by InjectKey and is left alone for the lack of a selector, and of keys that
// somebody wrote for InjectKey.
func (p Policy) unheeded(pod *corev1.Pod, d Decision) (warnings warning.List) {
	kind, value := p.inject(pod)
	switch {
	case p.InjectKey == "":
	case value == "":
		names := misspelt.Known(p.keys())
		for _, place := range []struct {
			kind string
			keys map[string]string
		}{{"label", pod.Labels}, {"annotation", pod.Annotations}} {
			for _, key := range slices.Sorted(maps.Keys(place.keys)) {
				if len(warnings) < maxMisspelt && names.Meant(key) == p.InjectKey {
					warnings = append(warnings, warning.New(warning.Unknown, key,
						"%s %s is not known, so it has no effect; did you mean %s?", place.kind, strings.Trim(truncate.Quote(key), `"`), p.InjectKey))
				}
			}
		}
	case d.Reason == status.CodeNotEnabled && !d.Undecided && p.saysOn(pod):
		warnings = warning.List{warning.New(warning.NoEffect, p.InjectKey,
			"%s %s=%s has no effect: %s", kind, p.InjectKey, truncate.Quote(value), d.Detail)}
	}
	return warnings
}

// keys are the labels and annotations that the Policy reads of a pod, InjectKey first.
func (p Policy) keys() []string {
	keys := append([]string{p.InjectKey, p.StatusAnnotation, p.ForeignAnnotation}, p.Traces...)
	for _, r := range p.Required {
		keys = append(keys, r.Keys...)
	}
	for _, s := range p.Selectors {
		keys = slices.AppendSeq(keys, maps.Keys(s.Pod.MatchLabels))
		for _, e := range s.Pod.MatchExpressions {
			keys = append(keys, e.Key)
		}
	}
	return slices.DeleteFunc(keys, func(key string) bool { return key == "" })
}

// validateInject returns an error for each setting about InjectKey that says nothing.
func (p Policy) validateInject() (errs []error) {
	said := len(p.InjectOn)+len(p.InjectOff) > 0 || p.InjectSelects
	if p.InjectKey == "" && said {
		errs = append(errs, fmt.Errorf("InjectOn, InjectOff and InjectSelects mean nothing without InjectKey"))
	}
	if p.InjectSelects && p.Selectors == nil {
		errs = append(errs, fmt.Errorf("InjectSelects means nothing without Selectors, which then select every pod"))
	}
	if p.InjectSelects && len(p.InjectOn) == 0 && len(p.InjectOff) > 0 {
		errs = append(errs, fmt.Errorf("InjectSelects means nothing without InjectOn, as InjectOff has the only words"))
	}
	for _, word := range p.InjectOn {
		if slices.Contains(p.InjectOff, word) {
			errs = append(errs, fmt.Errorf("%s is both in InjectOn and in InjectOff", truncate.Quote(word)))
		}
	}
	if slices.Contains(p.InjectOn, "") || slices.Contains(p.InjectOff, "") {
		errs = append(errs, fmt.Errorf("InjectOn and InjectOff have an empty word, which counts as not set"))
	}
	return errs
}
