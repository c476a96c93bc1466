package repair_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
)

// clogged is a [repair.Redirector] whose looks at a tenant's pods take until their time is over.
type clogged struct {
	repair.Redirector

	mu     sync.Mutex
	inside int
	most   int
	times  map[string][]time.Time // of the looks at each pod
}

func (c *clogged) wait(ctx context.Context, pod *corev1.Pod) error {
	c.mu.Lock()
	name := pod.Namespace + "/" + pod.Name
	c.times[name] = append(c.times[name], time.Now())
	if pod.Namespace != "tenant" {
		c.mu.Unlock()
		return nil
	}
	c.inside++
	c.most = max(c.most, c.inside)
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside--
	return ctx.Err()
}

func (c *clogged) looks(pod string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.times[pod])
}

func (c *clogged) Check(ctx context.Context, pod *corev1.Pod) ([]ruleset.Difference, error) {
	if err := c.wait(ctx, pod); err != nil {
		return nil, err
	}
	return c.Redirector.Check(ctx, pod)
}

func (c *clogged) Apply(ctx context.Context, pod *corev1.Pod) (apply.Result, error) {
	if err := c.wait(ctx, pod); err != nil {
		return apply.Result{}, err
	}
	return c.Redirector.Apply(ctx, pod)
}

// TestSlowPodsDelayNoVerification: pods whose looks take until their time is over delay no other pod's verification, and no round.
func TestSlowPodsDelayNoVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clogged{times: map[string][]time.Time{}}
		const interval, rounds, slow = 10 * time.Second, 30, 8
		quick := []string{"recovered-00", "recovered-01"}
		b := start(t, func(b *bench, o *repair.Options) {
			c.Redirector = b.rules
			o.SetRedirector(c)
			o.Action, o.VerifyInterval = repair.ActionRepair, interval
			for name := range slow {
				b.rules.SetRules(b.in("tenant", fmt.Sprintf("passed-%02d", name)).UID, true)
			}
			for _, name := range quick {
				b.rules.SetRules(b.in("shop", name).UID, true)
			}
		}, append(podsIn(t, "tenant", "passed", slow), podsIn(t, "shop", "recovered", 2)...)...)
		time.Sleep(rounds * interval)
		for _, name := range quick {
			times := c.looks("shop/" + name)
			assert.InDelta(t, rounds, len(times), 1, name)
			for i := 1; i < len(times); i++ {
				assert.Less(t, times[i].Sub(times[i-1]), 2*interval, "%s, look %d", name, i)
			}
		}
		assert.LessOrEqual(t, c.most, 3, "two places, and that of the slow pods")
		assert.Positive(t, b.counter("meshcni_verifications_total")["failed"], "in their own lane their time is over")
		b.rules.SetRules(b.in("shop", "recovered-00").UID, false)
		time.Sleep(2 * interval)
		assert.Equal(t, 1, b.counter("meshcni_verifications_total")["restored"])
	})
}

// TestSlowPodsDelayNoMending: nor do they delay the mending of another's, and that of a pod which is slow is said to have failed only where
// it had its whole time.
func TestSlowPodsDelayNoMending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &clogged{times: map[string][]time.Time{}}
		b := start(t, func(b *bench, o *repair.Options) {
			c.Redirector = b.rules
			o.SetRedirector(c)
			o.Action = repair.ActionRepair
		}, podsIn(t, "tenant", "crash-loop", 8)...)
		time.Sleep(10 * time.Second) // each has been tried in the ordinary lane
		for i := range 20 {
			before := time.Now()
			p := podsIn(t, "shop", "crash-loop", i+1)[i]
			b.cluster.Set(p)
			synctest.Wait()
			if times := c.looks("shop/" + p.Name); assert.NotEmpty(t, times, p.Name) {
				assert.Equal(t, before, times[0], "at once")
			}
			time.Sleep(7 * time.Second)
		}
		assert.Equal(t, 20, b.outcomes()["repaired check-failed"], fmt.Sprint(b.outcomes()))
		time.Sleep(time.Hour)
		assert.Positive(t, b.outcomes()["failed timeout"])
	})
}

// slowCheck is a [repair.Redirector] whose first comparison takes until its time is over.
type slowCheck struct {
	repair.Redirector
	once sync.Once
}

func (s *slowCheck) Check(ctx context.Context, pod *corev1.Pod) ([]ruleset.Difference, error) {
	s.once.Do(func() { <-ctx.Done() })
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return s.Redirector.Check(ctx, pod)
}

// TestWrittenBeforeItsTimeWasOver: rules that an attempt wrote which then took too long are told of as written, by the next one.
func TestWrittenBeforeItsTimeWasOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, o *repair.Options) {
			o.SetRedirector(&slowCheck{Redirector: b.rules})
			o.Action = repair.ActionRepair
		}, podsIn(t, "shop", "crash-loop", 1)...)
		time.Sleep(10 * time.Second)
		assert.Equal(t, map[string]int{"repaired check-failed": 1}, b.outcomes())
	})
}
