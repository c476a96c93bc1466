package kuma

import (
	"slices"

	"github.com/meshcni/meshcni/redirect"
)

// longestCompared bounds the annotations that are compared with the YAML, in bytes:
// they have no effect, so they must not cost much.
const longestCompared = 8 << 10

// beside warns of annotations that the YAML does not agree with. They have no
// effect: Kuma's plugin does not read them, and those that the pod had when it was
// injected are in the YAML.
func (p *parser) beside() {
	for _, a := range annotations {
		value, ok := p.annotations[a.key]
		switch {
		case !ok:
			continue
		case len(value) > longestCompared:
			p.Warn(redirect.WarningNoEffect, a.key, "annotation %s has no effect: annotation %s alone counts; with %d bytes it is too long to say whether they agree", a.key, Config, len(value))
			continue
		}
		q := newParser(p.pod)
		if err := a.parse(q, value); err == nil && a.told(p, q) {
			continue
		}
		p.Warn(redirect.WarningNoEffect, a.key, "annotation %s=%.64q has no effect: annotation %s, which says otherwise, alone counts", a.key, value, Config)
	}
}

func same[T comparable](of func(*parser) *T) func(p, q *parser) bool {
	return func(p, q *parser) bool { return *of(p) == *of(q) }
}

func toldInboundPorts(p, q *parser) bool {
	return !p.inbound || holds(*excludeInbound(p), *excludeInbound(q))
}

func toldUsers(p, q *parser) bool {
	told := map[string]bool{}
	for _, e := range p.excludeUsers {
		told[e.String()] = true
	}
	return !slices.ContainsFunc(q.excludeUsers, func(e redirect.Exclusion) bool { return !told[e.String()] })
}

// holds reports whether a has all of b. The injector adds ports of its own.
func holds[T interface {
	Union(o T) T
	Equal(o T) bool
}](a, b T) bool {
	return a.Union(b).Equal(a)
}
