package nodecontrol_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// indexed is a [nodecontrol.Pods] which counts the looks.
type indexed struct {
	*pods

	mu    sync.Mutex
	byUID map[types.UID]int
	all   int
	known []status.ID
}

func (i *indexed) Pods() []*corev1.Pod {
	i.mu.Lock()
	i.all++
	i.mu.Unlock()
	return i.pods.Pods()
}

// ByUID knows the static pod of uidN(1) by the UID that the runtime has of it.
func (i *indexed) ByUID(uid types.UID) *corev1.Pod {
	i.mu.Lock()
	i.byUID[uid]++
	i.mu.Unlock()
	if uid == static {
		uid = uidN(1)
	}
	return i.get(uid)
}

func (i *indexed) RuntimeUID(pod *corev1.Pod) types.UID {
	if pod.UID == uidN(1) {
		return static
	}
	return pod.UID
}

func (i *indexed) Known(id status.ID) *corev1.Pod {
	i.mu.Lock()
	i.known = append(i.known, id)
	i.mu.Unlock()
	return i.ByUID(types.UID(id.UID))
}

func (i *indexed) looks() (all int, each map[types.UID]int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	each = map[types.UID]int{}
	for uid, n := range i.byUID {
		each[uid] = n
	}
	return i.all, each
}

const static = types.UID("0123456789abcdef0123456789abcdef")

// TestEndedPodsAreNotLookedAt: thousands of pods that have ended cost a node's agent nothing, neither while it verifies nor when proxies come
// and go. Those of which something is left, or which say that they are in the mesh, are cleaned up.
func TestEndedPodsAreNotLookedAt(t *testing.T) {
	t.Parallel()
	const many = 5000
	n := newNode(t, ruleset.BackendNftables)
	index := &indexed{pods: n.pods, byUID: map[types.UID]int{}}
	n.options = func(o *nodecontrol.Options) { o.Pods = index }
	running := n.pod(2)
	end := func(i int) types.UID {
		uid := uidN(i)
		p := makePod(uid, "shop", fmt.Sprintf("job-%d", i), fmt.Sprintf("10.245.%d.%d", i/250, i%250+2))
		p.Status.Phase = []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}[i%2]
		n.pods.pods[uid] = p
		return uid
	}
	for i := range many {
		end(1000 + i)
	}
	boasting, left := end(10), end(11)
	n.pods.pods[boasting].Annotations = map[string]string{"ambient.istio.io/redirection": "enabled"}
	require.NoError(t, n.probes.Put(left, []netip.Addr{netip.MustParseAddr("10.245.0.13")}))
	n.pods.label("shop", "ambient")
	n.start()
	n.captured(running)
	n.until("what is left is cleaned up", func() bool {
		entries, _ := n.probes.Entries()
		_, there := entries[netip.MustParseAddr("10.245.0.13")]
		return !there && n.pods.annotation(boasting) == ""
	})
	for range 3 {
		_, before := index.looks()
		n.c.ProxyChanged()
		n.until("the running pod is looked at again", func() bool { _, now := index.looks(); return now[running] >= before[running]+3 })
	}
	_, each := index.looks()
	for i := range many {
		require.Zero(t, each[uidN(1000+i)], "pod %d", i)
	}
	n.pods.change(uidN(1000), func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
	n.until("one that changes is looked at", func() bool { _, now := index.looks(); return now[uidN(1000)] > 0 })
	assert.Len(t, n.c.Pods(), 3, "the running one, and the two of which something was left")
}

// TestIndex: pods are found by the index, not by a look at all of them, and are known by the UID that it says the runtime has.
func TestIndex(t *testing.T) {
	t.Parallel()
	n := newNode(t, ruleset.BackendNftables)
	index := &indexed{pods: n.pods, byUID: map[types.UID]int{}}
	n.options = func(o *nodecontrol.Options) { o.Pods, o.VerifyInterval = index, 20*time.Millisecond }
	mirror := n.pod(1)
	n.netns[static] = n.netns[mirror]
	n.namespaces.mu.Lock()
	n.namespaces.paths[static] = n.namespaces.paths[mirror]
	delete(n.namespaces.paths, mirror)
	n.namespaces.mu.Unlock()
	n.pods.label("shop", "ambient")
	n.start()
	n.eventually(static, status.StateCaptured, "captured")
	n.until("annotated", func() bool { return n.pods.annotation(mirror) == "enabled" })
	assert.True(t, n.proxy.holds(static))
	assert.False(t, n.proxy.holds(mirror), "the proxy and the control groups know it by the other UID")
	all, each := index.looks()
	n.until("it is verified", func() bool { _, now := index.looks(); return now[static] >= each[static]+20 })
	now, _ := index.looks()
	assert.Less(t, now, all+20, "a look at one pod is no look at all")
	for _, p := range n.c.Pods() {
		assert.Equal(t, string(static), p.UID, "it is one pod")
	}
}
