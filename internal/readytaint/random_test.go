package readytaint_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/readytaint"
)

// TestRandomClusters: whatever happens to nodes and agents, and however many of the changes fail, a taint is put back only where an
// agent belongs and has been gone for the whole grace; never on more nodes than the share; it is removed wherever an agent is
// ready, and where none is only if none belongs there; and between two looks nothing is missed that the plan did not announce.
func TestRandomClusters(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 16)) //nolint:gosec // a test's
		w := newRandomWorld(random)
		for range 150 {
			w.step(t, random, fmt.Sprintf("seed %d", seed))
		}
	}
}

// model is what the test itself keeps of a node, in the plainest way.
type model struct {
	node     readytaint.Node
	notReady time.Time // since when
	notFor   time.Time
	instance int
}

type randomWorld struct {
	options readytaint.Options
	state   readytaint.State
	now     time.Time
	nodes   []*model
	next    int
}

func newRandomWorld(random *rand.Rand) *randomWorld {
	w := &randomWorld{now: time.Unix(0, 0), options: readytaint.Options{
		Grace: time.Duration(1+random.IntN(60)) * time.Second, MaxShare: []float64{0.01, 0.2, 0.5, 1}[random.IntN(4)],
	}}
	for range 1 + random.IntN(30) {
		w.join(random)
	}
	return w
}

func (w *randomWorld) join(random *rand.Rand) {
	w.next++
	name := fmt.Sprintf("n%d", w.next)
	w.nodes = append(w.nodes, &model{node: readytaint.Node{Name: name, UID: name, Boot: "0", Tainted: random.IntN(2) == 0, Foreign: random.IntN(4) == 0}})
}

func (m *model) ready() bool { return len(m.node.Agents) > 0 && m.node.Agents[0].Ready }

// disturb changes something.
func (w *randomWorld) disturb(random *rand.Rand) {
	switch random.IntN(20) {
	case 0:
		w.join(random)
		return
	case 1:
		if len(w.nodes) > 1 {
			w.nodes = w.nodes[1:]
		}
		return
	case 2:
		w.state = nil // another controller takes over
		for _, m := range w.nodes {
			m.notReady, m.notFor = time.Time{}, time.Time{}
		}
		return
	}
	m := w.nodes[random.IntN(len(w.nodes))]
	switch random.IntN(8) {
	case 0, 1, 2:
		m.node.Agents = nil
	case 3, 4, 5, 6:
		m.instance++
		m.node.Agents = agent(fmt.Sprint(m.instance), random.IntN(3) > 0)
	case 7:
		m.node.Place = readytaint.Place(random.IntN(3))
	}
}

func (w *randomWorld) observations() (all []readytaint.Node) {
	for _, m := range w.nodes {
		all = append(all, m.node)
	}
	return all
}

func (w *randomWorld) step(t *testing.T, random *rand.Rand, where string) {
	for range random.IntN(4) {
		w.disturb(random)
	}
	byName := map[string]*model{}
	before := 0
	for _, m := range w.nodes {
		byName[m.node.Name] = m
		if m.node.PutBack {
			before++
		}
		switch {
		case m.ready():
			m.notReady = time.Time{}
		case m.notReady.IsZero():
			m.notReady = w.now
		}
		switch {
		case m.node.Place != readytaint.NotForAgents:
			m.notFor = time.Time{}
		case m.notFor.IsZero():
			m.notFor = w.now
		}
	}
	state, plan := w.options.Next(w.state, w.observations(), w.now)
	acted := map[string]bool{}
	adds := 0
	for _, a := range plan.Actions {
		m := byName[a.Node]
		require.False(t, acted[a.Node], "%s: %s twice", where, a.Node)
		acted[a.Node] = true
		if a.Change == readytaint.Add {
			adds++
			require.False(t, m.node.Tainted || m.ready() || m.node.Place != readytaint.ForAgents, "%s: %+v of %+v", where, a, m)
			require.GreaterOrEqual(t, w.now.Sub(m.notReady), w.options.Grace, "%s: %+v", where, a)
			continue
		}
		require.True(t, m.node.Tainted || m.node.Foreign, "%s: %+v", where, a)
		require.True(t, m.ready() || !m.notFor.IsZero() && w.now.Sub(m.notFor) >= w.options.Grace, "%s: %+v of %+v", where, a, m)
	}
	if adds > 0 {
		require.LessOrEqual(t, before+adds, w.options.Most(len(w.nodes)), where)
	}
	for _, m := range w.nodes {
		require.False(t, m.ready() && (m.node.Tainted || m.node.Foreign) && !acted[m.node.Name], "%s: %+v stays", where, m)
	}
	w.state = state
	for _, a := range plan.Actions {
		m := byName[a.Node]
		switch {
		case random.IntN(4) == 0: // it fails
		case a.Change == readytaint.Add:
			m.node.Tainted, m.node.PutBack = true, true
		default:
			m.node.Tainted, m.node.PutBack, m.node.Foreign = false, false, false
		}
	}
	// What was not announced does not come by itself.
	_, plan = w.options.Next(w.state, w.observations(), w.now)
	early := w.now.Add(time.Hour)
	if plan.Next > 0 {
		early = w.now.Add(plan.Next - 1)
	}
	_, later := w.options.Next(w.state, w.observations(), early)
	require.Equal(t, plan.Actions, later.Actions, where)
	require.Equal(t, plan.Nodes, later.Nodes, where)
	w.now = w.now.Add(time.Duration(random.Int64N(int64(w.options.Grace))))
	if plan.Next > 0 && random.IntN(2) == 0 {
		w.now = early.Add(1)
	}
}
