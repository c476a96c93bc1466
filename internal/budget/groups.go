package budget

import (
	"sync"
	"time"
)

// Groups gives each group of what is watched, such as a namespace, a budget and a breaker of its own, so that what is done to one
// holds back no other. It is safe for concurrent use.
type Groups struct {
	budget  Budget
	breaker Breaker // its settings
	since   time.Time
	full    bool

	mu     sync.Mutex
	byName map[string]*Group
}

// Group is the budget of one group.
type Group struct {
	Node
	Breaker
}

// ForGroups returns budgets that are all empty now, and breakers. A group's budget fills from now on, whenever it is first asked for.
func ForGroups(b Budget, maxShare float64, minBroken int, trialInterval time.Duration) *Groups {
	return &Groups{
		budget: b, breaker: Breaker{MaxShare: maxShare, MinBroken: minBroken, TrialInterval: trialInterval}, since: time.Now(),
		byName: map[string]*Group{},
	}
}

// FullGroups returns budgets that are all full at first, for what has a cause that is known and over.
func FullGroups(b Budget) *Groups {
	g := ForGroups(b, 1, 0, 0)
	g.full = true
	return g
}

// Of returns the group of a name.
func (g *Groups) Of(name string) *Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	group := g.byName[name]
	if group == nil {
		group = &Group{
			Node:    Node{Budget: g.budget, state: Bucket{0, g.since}},
			Breaker: Breaker{MaxShare: g.breaker.MaxShare, MinBroken: g.breaker.MinBroken, TrialInterval: g.breaker.TrialInterval},
		}
		if g.full {
			group.state = Bucket{float64(g.budget.Burst), time.Now()}
		}
		g.byName[name] = group
	}
	return group
}

// Keep drops the groups of all other names. One that comes back has a full budget, if there was time to fill it.
func (g *Groups) Keep(names map[string]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.byName {
		if !names[name] {
			delete(g.byName, name)
		}
	}
}
