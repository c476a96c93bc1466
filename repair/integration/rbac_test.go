package integration

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/repair"
)

// modes are the deployments that deploy/rbac has a role for.
var modes = []struct {
	name      string
	manifests []string
	action    repair.Action
	force     bool
	linkerd   bool // a mesh that reads namespaces
}{
	{"none", []string{"repair-none"}, repair.ActionNone, false, false},
	{"label", []string{"repair-label"}, repair.ActionLabel, false, false},
	{"delete", []string{"repair-delete"}, repair.ActionDelete, false, false},
	{"auto", []string{"repair-auto"}, repair.ActionDelete, false, false},
	{"force-delete", []string{"repair-force-delete"}, repair.ActionDelete, true, false},
	{"repair", []string{"repair-repair"}, repair.ActionRepair, false, false},
	{"repair, linkerd", []string{"repair-repair", "repair-namespaces"}, repair.ActionRepair, false, true},
}

func wanted(a repair.Action, force, namespaces bool) map[string]bool {
	o := repair.Options{Node: "n", Action: a, Force: force, Meshes: dialect.SetOf(istio.New())}
	if namespaces {
		o.Meshes = dialect.SetOf(linkerd.New())
	}
	out := map[string]bool{}
	for _, p := range o.Permissions() {
		out[api.Text(p)] = true
	}
	return out
}

// TestRolesGrantNoMore asks the server, for each mode's role and for everything
// that might be tempting, whether it would allow it.
func TestRolesGrantNoMore(t *testing.T) {
	t.Parallel()
	s := kubetest.Shared(t)
	a := newAdmin(t, s)
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	resources := strings.Fields("pods pods/status pods/eviction pods/log pods/exec pods/binding pods/ephemeralcontainers pods/resize " +
		"events nodes nodes/status nodes/proxy namespaces secrets configmaps services serviceaccounts serviceaccounts/token " +
		"leases.coordination.k8s.io deployments.apps daemonsets.apps jobs.batch poddisruptionbudgets.policy validatingadmissionpolicies.admissionregistration.k8s.io " +
		"clusterroles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io")
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			user, _ := account(t, a, m.manifests...)
			want, got := wanted(m.action, m.force, m.linkerd), map[string]bool{}
			for _, resource := range resources {
				for _, verb := range verbs {
					if p := permission(verb, resource); allowed(t, a, user, p) {
						got[api.Text(p)] = true
					}
				}
			}
			assert.Equal(t, want, got)
		})
	}
}

func permission(verb, what string) api.Right {
	p := api.Right{Verb: verb}
	p.Resource, p.Subresource, _ = strings.Cut(what, "/")
	if p.Subresource == "" {
		p.Resource, p.Group, _ = strings.Cut(what, ".")
	}
	return p
}

func allowed(t testing.TB, a *admin, user string, p api.Right) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + agentNamespace, "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: p.Verb, Group: p.Group, Resource: p.Resource, Subresource: p.Subresource, Namespace: p.Namespace, Name: p.Name,
		},
	}}
	a.Do(t, http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", review, review)
	return review.Status.Allowed
}

// TestRolesGrantNoLess runs each mode with its role, and compares what the
// server saw it do with what the role grants: nothing was refused, and nothing is
// granted in vain.
func TestRolesGrantNoLess(t *testing.T) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if m.force {
				w.Block(t, w.ns)
			}
			for _, name := range []string{"web-0", "web-1"} {
				pod := podFrom(t, map[bool]string{false: "crash-loop", true: "linkerd"}[m.linkerd], w.ns, name, w.node)
				pod.Status.Phase = corev1.PodRunning
				w.Create(t, pod)
			}
			if m.linkerd { // one to verify
				pod := podFrom(t, "linkerd", w.ns, "well-1", w.node)
				pod.Status = w.Pod(t, w.ns, "well-0").Status
				w.Create(t, pod)
			}
			ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
				if m.linkerd {
					o.Meshes = dialect.SetOf(linkerd.New())
				}
				o.Action, o.Force = m.action, m.force
				o.VerifyInterval = 100 * time.Millisecond // of a pod without a process: it is read again, and then known as such
			})
			outcome := map[repair.Action]string{
				repair.ActionLabel: "labelled check-failed", repair.ActionDelete: "evicted check-failed",
				repair.ActionRepair: "no-process no-process",
			}[m.action]
			if m.force {
				outcome = "deleted check-failed"
			}
			if outcome != "" { // repair that is off counts none; its event tells
				ag.outcome(outcome)
			}
			eventually(t, "verified", func() bool { return ag.counts("meshcni_verifications_total")["no-process"] > 0 })
			eventually(t, "event", func() bool { return len(w.Events(t, w.ns)["web-0"]) > 0 })
			want := wanted(m.action, m.force, m.linkerd)
			want["create selfsubjectaccessreviews.authorization.k8s.io"] = true // any account may
			got := map[string]bool{}
			eventually(t, "everything granted is used", func() bool {
				got = map[string]bool{}
				for what := range w.s.Calls(t, ag.user) {
					got[what] = true
				}
				for p := range want {
					// The recorder patches what it has said before: seen of it only where
					// something is said twice.
					if !got[p] && p != "patch events" {
						return false
					}
				}
				return true
			})
			for p := range got {
				assert.True(t, want[p], "not granted: %s", p)
			}
			assert.NoError(t, ag.ctl.Ready())
		})
	}
}

// TestMissingPermission: with the role of another mode there is one clear error,
// a reason for not being ready, and no attempts; once granted, it goes on.
func TestMissingPermission(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.make(t, "crash-loop", name)
	}
	user, token := account(t, w.admin, "repair-none")
	ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
		o.Action, o.Config.BearerToken = "label", token
	})
	eventually(t, "not ready, and why", func() bool {
		err := ag.ctl.Ready()
		return err != nil && strings.Contains(err.Error(), "missing permission: patch pods/status")
	})
	assert.Empty(t, w.Pod(t, w.ns, "a").Labels[meshcni.Identity{}.Key("not-redirected")])
	made := w.s.Calls(t, user)
	assert.NotEmpty(t, made, "the account's own calls")
	for what := range made {
		assert.NotContains(t, what, "FORBIDDEN", "it is asked for, not run into")
	}
	applyRBAC(t, w.admin, "repair-label", strings.TrimPrefix(user, "system:serviceaccount:"+agentNamespace+":"))
	eventually(t, "granted", func() bool { return ag.outcomes()["labelled check-failed"] == 3 })
	eventually(t, "ready", func() bool { return ag.ctl.Ready() == nil })
}

// TestNoPermissionAtAll: not even the pods can be listed.
func TestNoPermissionAtAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user, token := account(t, w.admin)
	ag := runAgent(t, w.s, w.node, func(o *repair.Options) {
		o.Action, o.Config.BearerToken = "delete", token
	})
	eventually(t, "not ready, and why", func() bool {
		err := ag.ctl.Ready()
		return err != nil && strings.Contains(err.Error(), "list pods") && strings.Contains(err.Error(), "create pods/eviction")
	})
	eventually(t, "the list is tried again", func() bool { return ag.counts("meshcni_pods_watch_errors_total")["forbidden"] > 2 })
	assert.LessOrEqual(t, strings.Count(ag.log.String(), "\n"), 2, "%s", ag.log)
	w.make(t, "crash-loop", "a")
	applyRBAC(t, w.admin, "repair-delete", strings.TrimPrefix(user, "system:serviceaccount:"+agentNamespace+":"))
	ag.outcome("evicted check-failed")
}
