package repair_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/repair/internal/repairtest"
	"github.com/meshcni/meshcni/status"
)

func TestRepairUntilTheCheckSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := func(p *corev1.Pod) {
			at := metav1.NewTime(time.Now().Add(2 * time.Second).Truncate(time.Second))
			p.Status.InitContainerStatuses[0].LastTerminationState.Terminated.StartedAt = at
		}
		b := start(t, action(repair.ActionRepair), with(named(t, "crash-loop", "a"), fails))
		require.Equal(t, map[string]int{"repaired check-failed": 1}, b.outcomes())
		calls := len(b.rules.Calls())
		b.cluster.Set(with(b.pod("a"), func(p *corev1.Pod) { p.Annotations["x"] = "y" }))
		time.Sleep(time.Hour)
		assert.Len(t, b.rules.Calls(), calls, "the check has not run since: wait")

		for range 10 {
			b.cluster.Set(with(b.pod("a"), fails))
			time.Sleep(time.Minute)
		}
		assert.Equal(t, map[string]int{"repaired check-failed": 1, "ineffective fails-again": 1, "ineffective gave-up": 1}, b.outcomes())
		b.cluster.Set(named(t, "recovered", "a"))
		b.settle()
		assert.Equal(t, 1, b.outcomes()["recovered recovered"])
	})
}

func TestRestartFindsWhatIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := []*corev1.Pod{named(t, "crash-loop", "a")}
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionRepair
			b.rules.SetRules(b.pod("a").UID, true) // by the controller before this one
		}, pods...)
		assert.Equal(t, map[string]int{"intact check-failed": 1}, b.outcomes())
	})
}

func TestNoProcessYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionRepair
			b.rules.Fail(fmt.Errorf("find: %w", repair.ErrNoProcess))
		}, named(t, "crash-loop", "a"))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, map[string]int{"no-process no-process": 1}, b.outcomes(), "said once")
		b.rules.Fail(nil)
		time.Sleep(3 * time.Minute)
		assert.Equal(t, 1, b.outcomes()["repaired check-failed"])
	})
}

func TestVerification(t *testing.T) {
	for _, a := range []repair.Action{repair.ActionNone, repair.ActionRepair} {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var uid types.UID
				b := start(t, func(b *bench, c *repair.Options) {
					c.Action, c.VerifyInterval = a, 10*time.Minute
					for _, name := range []string{"a", "b"} {
						b.rules.SetRules(b.pod(name).UID, true)
					}
					uid = b.pod("a").UID
				}, named(t, "passed", "a"), named(t, "recovered", "b"), named(t, "host-network", "c"), named(t, "deleting", "d"), named(t, "mirror", "e"))
				before := len(b.requests())
				time.Sleep(time.Hour)
				results := b.counter("meshcni_verifications_total")
				assert.InDelta(t, 12, results["intact"], 1, "two pods, six rounds")
				assert.Len(t, results, 1)
				assert.Len(t, b.requests(), before, "a pod that is right costs no request")
				b.rules.SetRules(uid, false)
				time.Sleep(time.Hour)
				results = b.counter("meshcni_verifications_total")
				if a == repair.ActionNone {
					assert.InDelta(t, 6, results["drifted"], 1)
					assert.Equal(t, []string{"Warning MeshRulesDrifted"}, b.drainEvents(), "said once")
					assert.Equal(t, 1, b.counter("meshcni_pods")["drifted"])
					return
				}
				assert.Equal(t, 1, results["drifted"])
				assert.Equal(t, 1, results["restored"])
				assert.Equal(t, []string{"Normal MeshRulesRestored", "Warning MeshRulesDrifted"}, b.drainEvents())
				assert.Equal(t, 0, b.counter("meshcni_pods")["drifted"])
			})
		})
	}
}

// TestSuspects: a report of drifted rules names who may have replaced them.
func TestSuspects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.VerifyInterval = 10 * time.Minute
			c.Suspects = func() []string { return []string{"istio-cni, after our entry", "another"} }
			b.rules.SetRules(b.pod("a").UID, false)
		}, named(t, "passed", "a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Contains(t, b.log.String(), "; chains of our names may have been replaced by istio-cni, after our entry, another")
	})
}

// TestNoPauseProcess: the pod has a process only while its check runs.
func TestNoPauseProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionRepair
			b.rules.Fail(repair.ErrNoProcess)
		}, named(t, "crash-loop", "a"))
		time.Sleep(10 * time.Minute)
		b.rules.Fail(nil)
		b.cluster.Set(named(t, "running-again", "a"))
		b.settle()
		assert.Equal(t, map[string]int{"no-process no-process": 1, "repaired checking": 1}, b.outcomes())
		time.Sleep(time.Second)
		b.cluster.Set(named(t, "recovered", "a"))
		b.settle()
		assert.Equal(t, 1, b.outcomes()["recovered recovered"])
	})
}

// TestDriftOfAReplacedPod: what drifts is read again; a pod that has taken its
// name meanwhile is none of it.
func TestDriftOfAReplacedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action, c.VerifyInterval = repair.ActionRepair, time.Minute
			b.rules.SetRules(b.pod("a").UID, true)
		}, named(t, "passed", "a"))
		// The informer is told nothing of what comes.
		b.cluster.SetHook(func(verb string, _ types.NamespacedName) error {
			if verb == "list" || verb == "watch" {
				return fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
			}
			return nil
		})
		b.cluster.Interrupt(false)
		b.rules.SetRules(b.pod("a").UID, false)
		b.cluster.Gone("default", "a")
		b.cluster.Set(named(t, "passed", "a"))
		time.Sleep(10 * time.Minute)
		assert.Zero(t, b.counter("meshcni_verifications_total")["drifted"])
		assert.NotContains(t, b.rules.Calls(), "apply default/a")
		b.cluster.SetHook(nil)
	})
}

// TestVerificationFails: what keeps a pod from being verified is said once, and
// nothing is concluded from it.
func TestVerificationFails(t *testing.T) {
	for result, err := range map[string]error{
		"variant": fmt.Errorf("pod: %w", repair.ErrVariant), "no-process": repair.ErrNoProcess, "failed": errors.New("no such netlink"),
	} {
		t.Run(result, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, func(b *bench, c *repair.Options) {
					c.Action, c.VerifyInterval = repair.ActionRepair, time.Minute
					b.rules.Fail(err)
				}, named(t, "passed", "a"))
				time.Sleep(10 * time.Minute)
				assert.Equal(t, []string{result}, slices.Collect(maps.Keys(b.counter("meshcni_verifications_total"))))
				assert.LessOrEqual(t, strings.Count(b.log.String(), "cannot be verified"), 1)
				assert.Empty(t, b.drainEvents())
				assert.NotContains(t, b.rules.Calls(), "apply default/a")
			})
		})
	}
	t.Run("not in the mesh after all", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := start(t, func(b *bench, c *repair.Options) {
				c.VerifyInterval = time.Minute
				b.rules.Fail(repair.ErrNotSelected)
			}, named(t, "passed", "a"))
			time.Sleep(10 * time.Minute)
			assert.Empty(t, b.counter("meshcni_verifications_total"))
			assert.Empty(t, b.requests())
		})
	})
}

// TestEventsFit: an error of more settings than fit an event says what they are
// called, and long rules are cut.
func TestEventsFit(t *testing.T) {
	var errs []error
	for i := range 12 {
		errs = append(errs, &redirect.SettingError{
			Source: redirect.FromAnnotation, Key: fmt.Sprintf("traffic.mesh.io/excludeOutboundPorts%d", i),
			Value: strings.Repeat("x,", 20_000), Err: errors.New(strings.Repeat("no port, ", 5_000)), Allowed: "ports",
		})
	}
	bad := fmt.Errorf("rules of pod %s: mesh configuration of pod %[1]s: %w", "default/"+strings.Repeat("a", 253), errors.Join(errs...))
	message := func(b *bench) string {
		select {
		case e := <-b.events:
			return strings.Join(strings.Fields(e)[2:], " ")
		default:
			return "no event"
		}
	}
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action = repair.ActionRepair
			b.rules.Fail(bad)
		}, named(t, "crash-loop", "a"))
		time.Sleep(time.Minute)
		got := message(b)
		assert.LessOrEqual(t, len(got), 1024)
		for i := range 12 {
			assert.Contains(t, got, fmt.Sprintf("traffic.mesh.io/excludeOutboundPorts%d", i))
		}
		assert.Less(t, len(b.log.String()), 100<<10)
	})
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.VerifyInterval = time.Minute
			b.rules.Rule = "-m comment --comment " + strings.Repeat("x", 5000)
		}, named(t, "passed", "a"))
		time.Sleep(10 * time.Minute)
		got := message(b)
		assert.Contains(t, got, "1 rules differ")
		assert.LessOrEqual(t, len(got), 1024)
	})
}

// noRoute is a namespace that takes the rules but not their routing, as where IPv6 is off.
type noRoute struct{ *repairtest.Redirector }

const route = "ip -6 route add local ::/0 dev lo table 133"

func (noRoute) Apply(context.Context, *corev1.Pod) (apply.Result, error) {
	return apply.Result{Changed: true, Unusable: []apply.Unusable{{Family: ruleset.IPv6, What: route, Reason: "IPv6 is off"}}}, nil
}

func (noRoute) Check(context.Context, *corev1.Pod) ([]ruleset.Difference, error) {
	return []ruleset.Difference{{Kind: ruleset.KindMissing, Family: ruleset.IPv6, Table: ruleset.RoutingTable, Rule: route}}, nil
}

// TestUnusable: what a namespace does not take is said, and does not make the repair a failure.
func TestUnusable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, o *repair.Options) {
			o.Action = repair.ActionRepair
			o.SetRedirector(noRoute{b.rules})
		}, named(t, "crash-loop", "a"))
		assert.Equal(t, map[string]int{"repaired check-failed": 1}, b.outcomes())
		assert.Contains(t, b.log.String(), "IPv6 is off")
		assert.Contains(t, <-b.events, "IPv6 is off")
	})
}

// unsure is rules of which it cannot be told whether packets come to them.
type unsure struct{ repair.Redirector }

func (unsure) Check(context.Context, *corev1.Pod) ([]ruleset.Difference, error) {
	return []ruleset.Difference{{Kind: ruleset.KindUnknown, Family: ruleset.IPv4, Chain: "outbound", Rule: "-m statistic"}}, nil
}

// handedOn is a pod whose packets do not come to its rules.
type handedOn struct{ repair.Redirector }

func (handedOn) Check(context.Context, *corev1.Pod) ([]ruleset.Difference, error) {
	return nil, &dialect.BypassError{Bypass: dialect.Bypass{Code: dialect.BypassSandboxed, Interface: "eth0", HandedTo: "tap0, by tc"}}
}

// TestVerificationOfPacketsThatAreHandedOn: what the pod's packets do not come to is not intact, and to write it again is no remedy.
func TestVerificationOfPacketsThatAreHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action, c.VerifyInterval, c.Detect = repair.ActionRepair, time.Minute, &repair.Detection{}
			c.SetRedirector(handedOn{b.rules})
		}, named(t, "passed", "a"))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"sandboxed"}, slices.Collect(maps.Keys(b.counter("meshcni_verifications_total"))))
		assert.Contains(t, <-b.events, `MeshBypass sandboxed: the pod bypasses the mesh: what arrives at its interface "eth0" is handed on to "tap0, by tc"`)
		assert.Empty(t, b.events, "said once")
		assert.NotContains(t, b.rules.Calls(), "apply default/a")
		pods := b.ctl.Pods()
		require.Len(t, pods, 1)
		assert.Equal(t, []any{status.StateFailed, status.Code("sandboxed"), []string{"sandboxed"}}, []any{pods[0].State, pods[0].Reason, pods[0].Bypasses})
		assert.True(t, pods[0].NeedsAttention())
	})
}

// TestVerificationCannotTell: rules that are there behind somebody else's of which it is not known what it does are neither intact nor drifted,
// and nothing is written.
func TestVerificationCannotTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, func(b *bench, c *repair.Options) {
			c.Action, c.VerifyInterval = repair.ActionRepair, time.Minute
			c.SetRedirector(unsure{b.rules})
		}, named(t, "passed", "a"))
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{"cannot-tell"}, slices.Collect(maps.Keys(b.counter("meshcni_verifications_total"))))
		assert.Equal(t, 1, strings.Count(b.log.String(), "-m statistic"), "said once")
		assert.NotContains(t, b.rules.Calls(), "apply default/a")
	})
}
