package zds

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPace counts turns, by a clock of the test's own.
func TestPace(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	p := pace{burst: 3, every: time.Second}
	turns := func() (n int) {
		for p.wait(now) == 0 {
			p.take()
			n++
		}
		return n
	}
	assert.Equal(t, 3, turns())
	assert.Equal(t, time.Second, p.wait(now))
	now = now.Add(2 * time.Second)
	assert.Equal(t, 2, turns())
	now = now.Add(time.Hour)
	assert.Equal(t, 3, turns(), "rest is not saved up")
}

// TestChangesAreCoalesced: many changes are told few times, and the last of them is told.
func TestChangesAreCoalesced(t *testing.T) {
	t.Parallel()
	c := newCrowd()
	c.changes = pace{burst: 2, every: time.Hour}
	told := 0
	for range 1000 {
		c.changed(func() { told++ })
	}
	assert.Equal(t, 2, told)
	require.NotNil(t, c.delayed, "the others are one call that is still to come")
	c.end()
	late := newCrowd()
	late.changes = pace{burst: 1, every: time.Millisecond}
	calls := make(chan struct{}, 1000)
	for range 3 {
		late.changed(func() { calls <- struct{}{} })
	}
	<-calls
	<-calls
}

// TestCrowdByGroup: a group that crowds the socket, or its log, does so at its own cost, and the number of those that are remembered is
// bounded.
func TestCrowdByGroup(t *testing.T) {
	t.Parallel()
	c := newCrowd()
	dial := func() *net.UnixConn { return &net.UnixConn{} } // whose Close is an error
	quiet := dial()
	c.enter(quiet, "one")
	for range 1000 {
		c.enter(dial(), "crowd")
	}
	require.Len(t, c.silent, maxSilent)
	assert.Same(t, quiet, c.silent[0].conn)
	c.leave(quiet)
	assert.Len(t, c.silent, maxSilent-1)

	lines := 0
	for range 1000 {
		if ok, _ := c.mayLog("crowd"); ok {
			lines++
		}
	}
	assert.Equal(t, logBurst, lines)
	ok, _ := c.mayLog("one")
	assert.True(t, ok)
	for range connectBurst {
		require.True(t, c.turn(t.Context(), "crowd", 0))
	}
	assert.False(t, c.turn(t.Context(), "crowd", 0))
	assert.True(t, c.turn(t.Context(), "one", 0))
	for i := range 1000 {
		c.peer(strconv.Itoa(i))
	}
	assert.LessOrEqual(t, len(c.peers), maxPeers)
}
