package kuma

import (
	"net/netip"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// longestCompared bounds, in bytes, the annotations that are compared with the
// YAML: what has no effect must not cost much either.
const longestCompared = 8 << 10

// beside warns of annotations that say what the YAML does not. They have no
// effect, whoever wrote them: Kuma's plugin does not read them, and what was
// there when the pod was injected is in the YAML. The injector writes some of
// them itself, so those that the YAML agrees with are no news.
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

// toldInboundPorts: the YAML has the injector's own ports besides.
func toldInboundPorts(p, q *parser) bool {
	return !p.inbound || excludeInbound(p).Union(*excludeInbound(q)).Equal(*excludeInbound(p))
}

func toldUsers(p, q *parser) bool {
	told := map[string]bool{}
	for _, e := range p.excludeUsers {
		told[e.String()] = true
	}
	for _, e := range q.excludeUsers {
		if !told[e.String()] {
			return false
		}
	}
	return true
}

// holds reports whether a has all prefixes of b.
func holds(a, b *redirect.PrefixSet) bool {
	told := map[netip.Prefix]bool{}
	for _, f := range ruleset.Families {
		for _, prefix := range a.Family(f) {
			told[prefix] = true
		}
	}
	for _, f := range ruleset.Families {
		for _, prefix := range b.Family(f) {
			if !told[prefix] {
				return false
			}
		}
	}
	return true
}
