package explain

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
)

// meshOf returns what its users know of a mesh: of our own what we know, and of another's, or where selectors decide, what its
// Policy says.
func meshOf(name string, d *dialect.Dialect) mesh {
	m, known := meshes[name]
	if d == nil || known && d.Policy.Selectors == nil {
		return m
	}
	p := d.Policy
	m.title, m.podWins, m.onPod, m.onNamespace = Title(name), true, nil, nil
	var off []wish
	for _, s := range p.Selectors {
		pod, namespace := single(s.Pod), single(s.Namespace)
		switch {
		case pod != nil && len(s.Namespace.MatchLabels)+len(s.Namespace.MatchExpressions) == 0:
			m.onPod = append(m.onPod, *pod)
		case namespace != nil && len(s.Pod.MatchLabels) == 0:
			m.onNamespace = append(m.onNamespace, *namespace)
		}
		for _, e := range s.Pod.MatchExpressions {
			if e.Operator == metav1.LabelSelectorOpNotIn {
				off = append(off, wish{labels, e.Key, nil, e.Values})
			}
		}
	}
	for _, wishes := range [][]wish{m.onPod, m.onNamespace} {
		for _, o := range off {
			if i := slices.IndexFunc(wishes, func(w wish) bool { return w.key == o.key }); i >= 0 {
				wishes[i].off = slices.Concat(wishes[i].off, o.off)
			}
		}
	}
	if p.InjectKey != "" && (p.Selectors == nil || p.InjectSelects) {
		on, no := p.InjectOn, p.InjectOff
		if len(on)+len(no) == 0 {
			on, no = []string{"true"}, []string{"false"}
		}
		if len(on) > 0 {
			m.onPod = append(m.onPod, wish{annotations, p.InjectKey, on, no}, wish{labels, p.InjectKey, on, no})
		}
	}
	return m
}

// single returns the one label that a selector asks for; nil: it asks for none, or for more.
func single(s metav1.LabelSelector) *wish {
	if len(s.MatchExpressions) > 0 || len(s.MatchLabels) != 1 {
		return nil
	}
	for key, value := range s.MatchLabels {
		return &wish{labels, key, []string{value}, nil}
	}
	return nil
}
