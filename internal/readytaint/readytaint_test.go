package readytaint_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/readytaint"
)

var options = readytaint.Options{Grace: time.Minute, MaxShare: 0.2}

// story is a cluster and what is known of it.
type story struct {
	t     *testing.T
	state readytaint.State
	now   time.Time
	nodes map[string]*readytaint.Node
}

func newStory(t *testing.T, nodes ...string) *story {
	s := &story{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), nodes: map[string]*readytaint.Node{}}
	for _, name := range nodes {
		s.nodes[name] = &readytaint.Node{Name: name, UID: name, Boot: "1"}
	}
	return s
}

func agent(instance string, ready bool) []readytaint.Agent {
	return []readytaint.Agent{{Instance: instance, Ready: ready}}
}

// after lets time pass, and returns what is then decided, which is done.
func (s *story) after(d time.Duration) (did []string, plan readytaint.Plan) {
	s.t.Helper()
	s.now = s.now.Add(d)
	var all []readytaint.Node
	for _, n := range s.nodes {
		all = append(all, *n)
	}
	s.state, plan = options.Next(s.state, all, s.now)
	for _, a := range plan.Actions {
		n := s.nodes[a.Node]
		if a.Change == readytaint.Add {
			n.Tainted, n.PutBack = true, true
		} else {
			n.Tainted, n.PutBack, n.Foreign = false, false, false
		}
		did = append(did, fmt.Sprintf("%s %s %s", a.Change, a.Node, a.Why))
	}
	return did, plan
}

func (s *story) expect(d time.Duration, want ...string) readytaint.Plan {
	s.t.Helper()
	did, plan := s.after(d)
	assert.Equal(s.t, want, did, "at %s", s.now)
	return plan
}

// TestNewNode: the taint of its registration goes when its agent is ready, however long that takes, and what a peer left with it.
func TestNewNode(t *testing.T) {
	s := newStory(t, "a")
	n := s.nodes["a"]
	n.Tainted, n.Foreign = true, true
	plan := s.expect(0)
	assert.Equal(t, map[readytaint.Standing]int{readytaint.Waiting: 1}, plan.Nodes)
	assert.Zero(t, plan.Next, "time alone changes nothing")
	s.expect(time.Hour)
	n.Agents = agent("1", false)
	s.expect(time.Hour)
	n.Agents = agent("1", true)
	s.expect(time.Second, "remove a agent-ready")
	s.expect(time.Hour)
}

// TestForeignAlone: a peer's taint goes also where ours is not, but only when the agent is ready, and is never put back.
func TestForeignAlone(t *testing.T) {
	s := newStory(t, "a")
	s.nodes["a"].Foreign = true
	s.expect(0)
	s.nodes["a"].Agents = agent("1", true)
	s.expect(time.Second, "remove a agent-ready")
	s.nodes["a"].Agents = nil
	s.expect(time.Second)
	s.expect(time.Minute, "add a agent-gone")
	assert.False(t, s.nodes["a"].Foreign)
}

// TestGrace: the clock is that of who observes, begins when the agent is seen to be gone, and begins anew each time.
func TestGrace(t *testing.T) {
	s := newStory(t, "a")
	n := s.nodes["a"]
	n.Agents = agent("1", true)
	s.expect(0)
	for range 20 { // it flaps, each time for less than the grace
		n.Agents = agent("1", false)
		assert.Equal(t, time.Minute, s.expect(time.Second).Next)
		s.expect(59 * time.Second)
		n.Agents = agent("1", true)
		s.expect(time.Second)
	}
	n.Agents = nil
	s.expect(0)
	s.expect(time.Minute - time.Nanosecond)
	s.expect(time.Nanosecond, "add a agent-gone")
	s.expect(time.Hour)
	n.Agents = agent("2", true)
	s.expect(0, "remove a agent-ready")
}

// TestSurge: of two agents one that is ready is enough, whichever it is.
func TestSurge(t *testing.T) {
	s := newStory(t, "a")
	n := s.nodes["a"]
	for _, agents := range [][]readytaint.Agent{
		{{Instance: "old", Ready: true}}, {{Instance: "old", Ready: true}, {Instance: "new"}},
		{{Instance: "old"}, {Instance: "new", Ready: true}}, {{Instance: "new", Ready: true}},
	} {
		n.Agents = agents
		s.expect(time.Hour)
	}
}

// TestNewController: one that starts knows nothing of the past, and puts nothing back before the grace; by the taint itself it knows
// what its predecessor put back.
func TestNewController(t *testing.T) {
	s := newStory(t, "a", "b", "c", "d", "e")
	s.expect(0)
	s.expect(time.Minute, "add a agent-gone")
	s.state = nil
	s.expect(time.Hour)
	plan := s.expect(time.Minute)
	assert.Equal(t, []string{"b", "c", "d", "e"}, plan.Held, "a is the one that may be")
}

// TestReboot: a node that boots is tainted at once, until an agent of the new boot is ready. What its agent's status says of the
// time before does not count, but not for ever: the status of the new one may have been seen before the boot was.
func TestReboot(t *testing.T) {
	s := newStory(t, "a")
	n := s.nodes["a"]
	n.Agents = agent("1", true)
	s.expect(0)
	n.Boot = "2"
	s.expect(time.Second, "add a node-booted")
	s.expect(time.Second)
	n.Agents = agent("2", false)
	s.expect(time.Second)
	n.Agents = agent("2", true)
	s.expect(time.Second, "remove a agent-ready")
	s.expect(time.Hour)

	n.Boot = "3"
	plan := s.expect(0, "add a node-booted")
	assert.Equal(t, time.Minute, plan.Next)
	s.expect(time.Minute, "remove a agent-ready")

	n.Boot, n.Agents = "4", agent("3", true)
	s.expect(0) // both seen at once
	n.Boot = ""
	s.expect(0) // what cannot be told is no boot
	n.Boot = "4"
	s.expect(0)
	n.UID, n.Agents = "another", nil
	s.expect(0) // another node of that name
	s.expect(time.Minute, "add a agent-gone")
}

// TestPlaces: where no agent can run there is no taint for long; where another taint keeps agents off, the node stays as it is, and
// when that goes, the time without an agent counts.
func TestPlaces(t *testing.T) {
	s := newStory(t, "a")
	n := s.nodes["a"]
	n.Tainted, n.Place = true, readytaint.NotForAgents
	assert.Equal(t, time.Minute, s.expect(0).Next)
	n.Place = readytaint.ForAgents // its labels came late
	s.expect(time.Minute)
	n.Place = readytaint.NotForAgents
	s.expect(time.Second)
	s.expect(time.Minute, "remove a no-agent")
	s.expect(time.Hour)

	n.Place = readytaint.KeptOff
	s.expect(time.Hour)
	n.Tainted = true
	s.expect(time.Hour)
	n.Tainted = false
	n.Place = readytaint.ForAgents
	s.expect(time.Second, "add a agent-gone")
}

// TestBreaker: of all nodes no more than the share has a taint that was put back, those that were registered with it apart; first
// come those whose agent is gone longest.
func TestBreaker(t *testing.T) {
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("n%02d", i))
	}
	s := newStory(t, names...)
	for _, name := range names[:10] {
		s.nodes[name].Tainted = true
	}
	s.nodes["n19"].Agents, s.nodes["n18"].Agents = agent("1", true), agent("1", true)
	s.expect(0)
	s.nodes["n18"].Agents = nil
	plan := s.expect(time.Minute, "add n10 agent-gone", "add n11 agent-gone", "add n12 agent-gone", "add n13 agent-gone")
	assert.Equal(t, []string{"n14", "n15", "n16", "n17"}, plan.Held)
	assert.Equal(t, map[readytaint.Standing]int{readytaint.Waiting: 10, readytaint.Tainted: 4, readytaint.Held: 4, readytaint.Gone: 1, readytaint.Ready: 1}, plan.Nodes)
	plan = s.expect(time.Minute)
	assert.Equal(t, []string{"n14", "n15", "n16", "n17", "n18"}, plan.Held)
	s.nodes["n11"].Agents = agent("1", true)
	s.expect(time.Second, "remove n11 agent-ready") // which makes room once it is done
	s.expect(0, "add n14 agent-gone")
}

func TestMost(t *testing.T) {
	for _, c := range []struct {
		share     float64
		all, most int
	}{{0.2, 0, 0}, {0.2, 1, 1}, {0.2, 4, 1}, {0.2, 5, 1}, {0.2, 10, 2}, {0.29, 100, 29}, {0.2, 500, 100}, {1, 7, 7}, {0.001, 500, 1}} {
		assert.Equal(t, c.most, readytaint.Options{MaxShare: c.share}.Most(c.all), "%v of %d", c.share, c.all)
	}
}

func TestValidate(t *testing.T) {
	require.NoError(t, options.Validate())
	err := readytaint.Options{Grace: -time.Second, MaxShare: 1.5}.Validate()
	require.ErrorContains(t, err, "grace -1s")
	require.ErrorContains(t, err, "max-share 1.5")
	assert.Error(t, readytaint.Options{Grace: time.Second}.Validate())
}

// TestStillDue: what is looked at again before it is done may have changed.
func TestStillDue(t *testing.T) {
	s := newStory(t, "a")
	s.expect(0)
	s.now = s.now.Add(time.Minute)
	n := *s.nodes["a"]
	assert.True(t, options.StillDue(s.state, n, s.now))
	n.Agents = agent("1", true)
	assert.False(t, options.StillDue(s.state, n, s.now))
	n.Agents, n.Tainted = nil, true
	assert.False(t, options.StillDue(s.state, n, s.now))
}
