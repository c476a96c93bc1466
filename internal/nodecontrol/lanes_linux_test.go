package nodecontrol_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// clogged is a [nodecontrol.Namespaces] whose looks at some pods take until their time is over, or until the test ends them.
type clogged struct {
	*namespaces

	mu     sync.Mutex
	slow   map[types.UID]bool
	held   chan struct{} // closed to end the looks after a pod's first; nil: their own time ends them, as it ends the first
	inside map[types.UID]bool
	ended  map[types.UID]int
	most   int // looks at once, of those after a pod's first
}

func (c *clogged) Find(ctx context.Context, pod nodecontrol.Sought) (nodecontrol.NetNS, error) {
	c.mu.Lock()
	if !c.slow[pod.UID] {
		c.mu.Unlock()
		return c.namespaces.Find(ctx, pod)
	}
	if ctx.Err() != nil { // on a machine with much else to do, the attempt may be over before it looks: that is a look too
		c.ended[pod.UID]++
		c.mu.Unlock()
		return nil, ctx.Err()
	}
	held, over := c.held, ctx.Done()
	if c.ended[pod.UID] == 0 {
		held = nil
	}
	if held != nil {
		over = nil
	}
	c.inside[pod.UID] = true
	again := 0
	for uid := range c.inside {
		if c.ended[uid] > 0 {
			again++
		}
	}
	c.most = max(c.most, again)
	c.mu.Unlock()
	select {
	case <-held:
	case <-over:
	}
	c.mu.Lock()
	delete(c.inside, pod.UID)
	c.ended[pod.UID]++
	c.mu.Unlock()
	if over != nil {
		return nil, ctx.Err()
	}
	return c.namespaces.Find(context.WithoutCancel(ctx), pod)
}

// bounds lets an attempt at a slow pod end soon, and each is slow however long it took. All others have minutes, and are never slow.
func (c *clogged) bounds(uid types.UID) (attempt, look time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slow[uid] {
		return 50 * time.Millisecond, 0
	}
	return netnstest.Patience, netnstest.Patience
}

func (c *clogged) with(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// now returns the pods that are being looked at and take long.
func (c *clogged) now() (uids []types.UID) {
	c.with(func() {
		for uid := range c.inside {
			uids = append(uids, uid)
		}
	})
	return uids
}

// cloggedNode is a node with five pods whose looks take long, and a sixth, in a namespace of its own, whose looks do not.
func cloggedNode(t *testing.T) (n *node, c *clogged, sixth types.UID) {
	t.Helper()
	n = newNode(t, ruleset.BackendNftables)
	c = &clogged{namespaces: n.namespaces, slow: map[types.UID]bool{}, inside: map[types.UID]bool{}, ended: map[types.UID]int{}}
	for i := range 5 {
		c.slow[n.pod(i)] = true
	}
	sixth = n.pod(6)
	n.pods.change(sixth, func(p *corev1.Pod) { p.Namespace = "bank" })
	n.pods.label("bank", "")
	n.options = func(o *nodecontrol.Options) { o.Namespaces, o.Workers = c, 4 }
	n.made = func(made *nodecontrol.Controller) { made.Bound(c.bounds) }
	return n, c, sixth
}

// TestSlowPodsDelayNoOthers: pods whose looks take until their time is over hold a worker once. From then on one worker sees to them all,
// while another pod joins, is mended and leaves; and when a look at them is quick, they are as all others.
func TestSlowPodsDelayNoOthers(t *testing.T) {
	t.Parallel()
	n, c, sixth := cloggedNode(t)
	first := make(chan struct{})
	release := sync.OnceFunc(func() { close(first) })
	c.held = first // from the start: a pod that is slow a second time would need more than one quick look to be as all others
	n.start()
	t.Cleanup(release) // before the node's, which waits for the looks
	n.until("started", func() bool { return n.c.Ready() == nil })
	n.pods.label("shop", "ambient")
	n.until("each has been looked at", func() bool {
		all := true
		c.with(func() {
			for uid := range c.slow {
				all = all && c.ended[uid] > 0
			}
		})
		return all
	})
	n.until("the second round", func() bool {
		var again int
		c.with(func() {
			for uid := range c.inside {
				again += min(c.ended[uid], 1)
			}
		})
		return again == 1 && len(c.now()) == 1
	})

	n.pods.label("bank", "ambient")
	n.captured(sixth)
	n.flush(sixth)
	n.until("the sixth is mended", func() bool {
		differ, _ := n.rules(sixth)
		return len(differ) == 0
	})
	n.pods.label("bank", "")
	n.eventually(sixth, status.StateOutside, "not-enabled")
	require.Len(t, c.now(), 1, "the others wait for one worker")
	c.with(func() { require.Equal(t, 1, c.most, "slow pods that were worked on at once") })

	var slow []types.UID
	c.with(func() {
		for uid := range c.slow {
			slow = append(slow, uid)
		}
		clear(c.slow)
		release()
	})
	for _, uid := range slow {
		n.captured(uid)
	}
	// One quick look is enough, unless an attempt was over before its look, on a machine with much else to do: then it counted twice.
	n.until("none is slow any more", func() bool {
		some := false
		for _, uid := range slow {
			some = n.c.LookAgain(uid) || some
		}
		return !some
	})
	second := make(chan struct{})
	defer close(second)
	c.with(func() {
		c.held = second
		for _, uid := range slow {
			c.slow[uid] = true
		}
	})
	n.until("they have more than one worker again", func() bool { return len(c.now()) > 1 })
}

// TestSlowPodsDelayNoStart: pods whose looks take long delay the first snapshot by a bound, and after it no other pod.
func TestSlowPodsDelayNoStart(t *testing.T) {
	t.Parallel()
	n, c, sixth := cloggedNode(t)
	n.pods.label("shop", "ambient")
	n.pods.label("bank", "ambient")
	n.start()
	n.captured(sixth)
	c.with(func() {
		require.LessOrEqual(t, c.most, 1, "slow pods that were worked on at once after the first look")
	})
}
