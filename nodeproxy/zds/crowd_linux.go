package zds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
)

// Whoever may connect can do so any number of times, for instance a proxy in a loop, or one that was taken over. What a connection costs
// is bounded from before its accept on: how many there are and how many are accepted, whoever makes them; how often a group (see groupOf)
// is served, how often others hear of it, and how much is logged.
const (
	// backlog bounds the connections that wait to be accepted. A further one is refused, or waits itself.
	backlog = 16
	// So many connections are accepted at once, and then one every so often.
	acceptBurst, acceptEvery = 64, 5 * time.Millisecond
	// maxSilent bounds the connections without a hello. A proxy says hello at once.
	maxSilent = 16
	// A group may connect so often at once, and then once every connectEvery.
	connectBurst, connectEvery = 64, 50 * time.Millisecond
	// OnChange is called so often at once, and then once every changeEvery: each has all pods of the node looked at.
	changeBurst, changeEvery = 16, 2 * time.Second
	// So many lines about one group, and about all, and then one every so often.
	logBurst, logEvery       = 16, 10 * time.Second
	logBurstAll, logEveryAll = 64, time.Second
	// maxPeers bounds the groups that are remembered.
	maxPeers = 64
)

// pace lets something happen burst times at once, and then once in a while. The zero time is that of a rested one.
type pace struct {
	burst int
	every time.Duration
	next  time.Time
}

// wait returns how long it is to the next turn.
func (p *pace) wait(now time.Time) time.Duration {
	if rested := now.Add(-time.Duration(p.burst-1) * p.every); p.next.Before(rested) {
		p.next = rested
	}
	return max(0, p.next.Sub(now))
}

// take takes a turn, which may be one that has not come yet.
func (p *pace) take() { p.next = p.next.Add(p.every) }

// peer is a group that has connected.
type peer struct {
	connects, logs pace
	unlogged       int
}

// crowd is all that have connected. It is safe for concurrent use.
type crowd struct {
	mu     sync.Mutex
	silent []silent // oldest first
	peers  map[string]*peer
	// accepts is the pace of those that connect, logs that of lines about all.
	accepts, logs pace
	// changes is the pace of OnChange. delayed is its next call, if that is still to come.
	changes pace
	delayed *time.Timer
	ended   bool
}

// silent is a connection without a hello.
type silent struct {
	conn  *net.UnixConn
	group string
}

// maxExchange bounds the connections of a group that is no crowd: while a proxy is replaced there are two.
const maxExchange = 2

// groupOf returns whom a connection counts for: its process's pod, however many control groups that makes for its forks, or outside of pods
// its control group, which the process and its forks share. What cannot be read leaves the process alone. Those that have ended are one group, so that a process can't have a group for each fork that connects and
// ends; and so are those in a PID namespace that is hidden from here, which have the number 0.
func groupOf(pid int32) string {
	if pid == 0 {
		return "hidden"
	}
	proc := podnetns.At("/proc")
	uid, err := podnetns.Owner(proc, int(pid))
	var text []byte
	if err == nil && uid == "" {
		text, err = fs.ReadFile(proc, fmt.Sprintf("%d/cgroup", pid))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return "ended"
	case err != nil:
		return fmt.Sprint("process ", pid)
	case uid != "":
		return "pod " + uid
	}
	return "control group " + string(text)
}

// crowding returns the index of the oldest connection of the group that has the most, and how many each group has. Connections come
// oldest first. Of groups with as many, the one with the oldest connection counts.
func crowding(groups []string) (oldest int, counts map[string]int) {
	counts = map[string]int{}
	for _, g := range groups {
		counts[g]++
	}
	for i, g := range groups {
		if counts[g] > counts[groups[oldest]] {
			oldest = i
		}
	}
	return oldest, counts
}

func newCrowd() *crowd {
	return &crowd{
		peers: map[string]*peer{}, accepts: pace{burst: acceptBurst, every: acceptEvery}, logs: pace{burst: logBurstAll, every: logEveryAll}, changes: pace{burst: changeBurst, every: changeEvery},
	}
}

// peer is called with the mutex held.
func (c *crowd) peer(group string) *peer {
	p := c.peers[group]
	if p == nil {
		if len(c.peers) >= maxPeers {
			clear(c.peers)
		}
		p = &peer{connects: pace{burst: connectBurst, every: connectEvery}, logs: pace{burst: logBurst, every: logEvery}}
		c.peers[group] = p
	}
	return p
}

// enter counts a connection without a hello. If there are too many, the oldest of the group with the most is closed.
func (c *crowd) enter(conn *net.UnixConn, group string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = append(c.silent, silent{conn, group})
	if len(c.silent) <= maxSilent {
		return
	}
	groups := make([]string, len(c.silent))
	for i, s := range c.silent {
		groups[i] = s.group
	}
	victim, _ := crowding(groups)
	_ = c.silent[victim].conn.Close()
	c.silent = slices.Delete(c.silent, victim, victim+1)
}

// leave ends what enter began: the connection has said hello, or is closed.
func (c *crowd) leave(conn *net.UnixConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = slices.DeleteFunc(c.silent, func(s silent) bool { return s.conn == conn })
}

// admit waits until the next connection is to be accepted.
func (c *crowd) admit(ctx context.Context) {
	c.mu.Lock()
	wait := c.accepts.wait(time.Now())
	c.accepts.take()
	c.mu.Unlock()
	sleep(ctx, wait)
}

// turn waits until a group that connects often is to be served again. It returns false if that is too long.
func (c *crowd) turn(ctx context.Context, group string, patience time.Duration) bool {
	c.mu.Lock()
	p := c.peer(group)
	wait := p.connects.wait(time.Now())
	if wait > patience {
		c.mu.Unlock()
		return false
	}
	p.connects.take()
	c.mu.Unlock()
	return sleep(ctx, wait)
}

// sleep returns false if the context ends first.
func sleep(ctx context.Context, wait time.Duration) bool {
	if wait == 0 {
		return true
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// mayLog reports whether a line about a group may be logged, and how many were left out since the last one.
func (c *crowd) mayLog(group string) (ok bool, unlogged int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, now := c.peer(group), time.Now()
	if p.logs.wait(now) > 0 || c.logs.wait(now) > 0 {
		p.unlogged++
		return false, 0
	}
	p.logs.take()
	c.logs.take()
	unlogged, p.unlogged = p.unlogged, 0
	return true, unlogged
}

// changed calls tell at once, or if there were many changes, once for all of a moment.
func (c *crowd) changed(tell func()) {
	c.mu.Lock()
	if c.delayed != nil {
		c.mu.Unlock()
		return
	}
	wait := c.changes.wait(time.Now())
	c.changes.take()
	if wait > 0 && !c.ended {
		c.delayed = time.AfterFunc(wait, func() {
			c.mu.Lock()
			c.delayed = nil
			ended := c.ended
			c.mu.Unlock()
			if !ended {
				tell()
			}
		})
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	tell()
}

// end says that nobody is to be told any more.
func (c *crowd) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.delayed != nil {
		c.delayed.Stop()
	}
}
