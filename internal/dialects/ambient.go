package dialects

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/selection"
)

// configure returns the dialects with the settings that a configuration has for one of them. With settings for a dialect
// that is not among them it does nothing, since a configuration may serve several programs. The error names every setting
// that cannot be.
func configure(known dialect.List, a netconf.Ambient) (dialect.List, error) {
	at := slices.IndexFunc(known, func(d dialect.Dialect) bool { return d.Name == ambient.Name })
	if at < 0 || a.IsZero() {
		return known, nil
	}
	o := ambient.Options{
		ExcludedNamespaces: known[at].Policy.ExcludedNamespaces,
		NoDNSCapture:       a.DNSCapture == netconf.Off, NoIPv6: a.IPv6 == netconf.Off,
		ProbeIPv4: a.ProbeIPv4.Netip(), ProbeIPv6: a.ProbeIPv6.Netip(),
	}
	if a.EnablementSelectors != nil {
		o.Selectors = make([]selection.Selector, len(a.EnablementSelectors))
		for i, s := range a.EnablementSelectors {
			o.Selectors[i] = selection.Selector{Pod: labelSelector(s.PodSelector), Namespace: labelSelector(s.NamespaceSelector)}
		}
	}
	if err := o.Validate(); err != nil {
		return known, err
	}
	known = slices.Clone(known)
	known[at] = ambient.New(o)
	return known, nil
}

func labelSelector(s netconf.LabelSelector) metav1.LabelSelector {
	l := metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, e := range s.MatchExpressions {
		l.MatchExpressions = append(l.MatchExpressions, metav1.LabelSelectorRequirement{Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values})
	}
	return l
}
