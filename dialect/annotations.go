package dialect

import (
	"slices"
	"strings"

	"github.com/meshcni/meshcni/selection"
)

// Reads reports whether the dialect may read an annotation: it is one that the Policy names, or of the Domains. A dialect without Domains
// does not say what it reads, and may read any.
func (d Dialect) Reads(key string) bool {
	if len(d.Domains) == 0 {
		return true
	}
	domain, _, prefixed := strings.Cut(key, "/")
	if prefixed && slices.ContainsFunc(d.Domains, func(suffix string) bool { return domain == suffix || strings.HasSuffix(domain, "."+suffix) }) {
		return true
	}
	p := d.Policy
	if _, applied := d.Applied[key]; applied || slices.Contains([]string{p.InjectKey, p.ForeignAnnotation, p.StatusAnnotation, d.StatusAnnotation()}, key) {
		return true
	}
	return slices.Contains(p.Traces, key) || slices.ContainsFunc(d.Retired, func(q Retired) bool { return q.Key == key }) ||
		slices.ContainsFunc(p.Required, func(q selection.Requirement) bool { return slices.Contains(q.Keys, key) })
}
