package repair_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/repair"
)

// podsIn makes pods of a namespace, each of an owner of its own.
func podsIn(t *testing.T, namespace, file string, n int) (pods []*corev1.Pod) {
	for i := range n {
		pods = append(pods, with(named(t, file, fmt.Sprintf("%s-%02d", file, i)), func(p *corev1.Pod) {
			p.Namespace = namespace
			for j := range p.OwnerReferences {
				p.OwnerReferences[j].UID += "-" + p.UID
			}
		}))
	}
	return pods
}

// evicted counts the evictions by namespace.
func (b *bench) evicted() map[string]int {
	n := map[string]int{}
	for _, r := range b.requests() {
		if pod, ok := strings.CutPrefix(r, "evict "); ok {
			namespace, _, _ := strings.Cut(pod, "/")
			n[namespace]++
		}
	}
	return n
}

// TestNeighboursBudget: what one namespace's pods have used up is not taken from another's.
func TestNeighboursBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := append(podsIn(t, "tenant", "crash-loop", 20), podsIn(t, "tenant", "passed", 30)...)
		b := start(t, func(_ *bench, c *repair.Options) {
			c.Action, c.NodeBudget = repair.ActionDelete, repair.Budget{PerMinute: 0.2, Burst: 2}
		}, pods...)
		time.Sleep(20 * time.Minute)
		busy := b.evicted()["tenant"]
		assert.InDelta(t, 4, busy, 1)
		for _, p := range podsIn(t, "shop", "crash-loop", 2) {
			b.cluster.Set(p)
		}
		b.settle()
		assert.Equal(t, 2, b.evicted()["shop"], "at once")
		assert.Equal(t, busy, b.evicted()["tenant"])
	})
}

// TestFlappingIsLookedAtSeldom: a pod that changes twenty times a second is looked at once a second after the first twenty, and its last
// change is acted on.
func TestFlappingIsLookedAtSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, action(repair.ActionLabel), named(t, "passed", "a"))
		uid := b.pod("a").UID
		for i := range 400 {
			file := []string{"crash-loop", "passed"}[i%2]
			b.cluster.Set(with(named(t, file, "a"), func(p *corev1.Pod) { p.UID = uid }))
			time.Sleep(50 * time.Millisecond)
		}
		assert.LessOrEqual(t, len(b.requests()), 200, "some four for each look")
		b.cluster.Set(with(named(t, "crash-loop", "a"), func(p *corev1.Pod) { p.UID = uid }))
		time.Sleep(time.Minute)
		assert.NotEmpty(t, b.pod("a").Labels["meshcni.io/not-redirected"])
	})
}
