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

// TestNeighboursBreaker: a tenant all of whose pods are broken, and who has most of the node's, holds back its own deletions alone.
func TestNeighboursBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := append(podsIn(t, "tenant", "crash-loop", 30), podsIn(t, "shop", "crash-loop", 2)...)
		b := start(t, func(_ *bench, c *repair.Options) {
			c.Action, c.TrialInterval = repair.ActionDelete, time.Hour
		}, append(pods, podsIn(t, "shop", "passed", 3)...)...)
		assert.Equal(t, map[string]int{"shop": 2}, b.evicted())
		assert.Equal(t, 30, b.outcomes()["held too-many-broken"])
		assert.Equal(t, map[string]int{"too-many-broken": 1}, b.counter("meshcni_repair_held"), "though another namespace is not held")
		time.Sleep(time.Hour)
		assert.Equal(t, map[string]int{"shop": 2, "tenant": 1}, b.evicted(), "a trial")
		for _, p := range pods[:30] {
			b.cluster.Gone(p.Namespace, p.Name)
		}
		time.Sleep(time.Minute)
		assert.Empty(t, b.counter("meshcni_repair_held"), "nobody is left who is held")
	})
}

// TestNeighboursNode: while most of a node's namespaces have mostly broken pods, the fault is the node's: each has one trial in an
// interval, also those of a few pods.
func TestNeighboursNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*corev1.Pod
		for i := range 5 {
			pods = append(pods, podsIn(t, fmt.Sprintf("broken-%d", i), "crash-loop", 2)...)
		}
		pods = append(pods, podsIn(t, "well", "passed", 9)...)
		pods = append(pods, podsIn(t, "well", "crash-loop", 1)...)
		b := start(t, func(_ *bench, c *repair.Options) {
			c.Action, c.TrialInterval = repair.ActionDelete, 5*time.Minute
		}, pods...)
		assert.Equal(t, map[string]int{"held too-many-broken": 11}, b.outcomes())
		assert.Empty(t, b.evicted())
		assert.Contains(t, b.log.String(), "most pods in the mesh are broken in 5 of the node's 6 namespaces")
		time.Sleep(5*time.Minute + 10*time.Second)
		for namespace, n := range b.evicted() {
			assert.LessOrEqual(t, n, 2, namespace)
		}
		assert.Len(t, b.evicted(), 6, "each namespace has its trial")
		time.Sleep(10 * time.Minute)
		assert.Equal(t, 11, b.outcomes()["evicted check-failed"])
		assert.Empty(t, b.counter("meshcni_repair_held"))
	})
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
