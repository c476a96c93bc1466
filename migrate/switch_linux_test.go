package migrate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// report is what migrate says.
func (y *switchNodeFixture) report(t *testing.T) (code int, stdout, stderr string) {
	t.Helper()
	return y.world.run(t)
}

// TestSwitchAndBack: a node goes over with the entry taken out, again without effect, and back to what it was, byte for byte and
// field for field, whether the other's agent cleans up after itself or not.
func TestSwitchAndBack(t *testing.T) {
	t.Parallel()
	for _, tidy := range []bool{false, true} {
		t.Run(fmt.Sprintf("cleans up %v", tidy), func(t *testing.T) {
			t.Parallel()
			y := newSwitchNode(t, tidy)
			before := y.theirSet(t)
			for _, name := range []string{"both-1", "theirs-1"} {
				y.MeshPod(t, "shop", name, "a", func(p *corev1.Pod) {
					began := metav1.NewTime(time.Now().Add(-time.Hour))
					p.Status.StartTime = &began
				})
			}
			y.MeshPod(t, "shop", "new-1", "a", func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }) // no kubelet has seen it

			code, out, errs := y.report(t)
			assert.Contains(t, out, "\n1 nodes with both plugins: a\n", "exit code %d: %s", code, errs)
			code, out, errs = y.run(t, "switch", "a", "--dry-run")
			require.Equal(t, 0, code, errs)
			assert.Contains(t, out, "a: to do: DaemonSet istio-system/istio-cni-node gets a node affinity")
			assert.Contains(t, out, "\n-    {\"type\": \"istio-cni\", \"kubernetes\": {\"kubeconfig\": \"/x\"}},\n")
			assert.Equal(t, withBoth, y.text(t))
			assert.Equal(t, before.ResourceVersion, y.theirSet(t).ResourceVersion)
			assert.Empty(t, y.label(t))

			y.answer = "no\n"
			code, _, errs = y.run(t, "switch", "a")
			assert.Equal(t, 1, code)
			assert.Contains(t, errs, "node a: take istio-cni out? [yes/no] ")
			assert.Contains(t, errs, "nothing was changed")
			assert.Equal(t, before.ResourceVersion, y.theirSet(t).ResourceVersion)

			y.answer = "yes\n"
			code, out, errs = y.run(t, "switch", "a", "--from", "istio-cni")
			require.Equal(t, 0, code, out+errs)
			assert.Equal(t, withOurs, y.text(t))
			assert.Empty(t, y.theirs(t))
			assert.Equal(t, "istio-cni", y.label(t))
			assert.Equal(t, 1, y.tried)
			now := y.theirSet(t)
			assert.Equal(t, appsv1.OnDeleteDaemonSetStrategyType, now.Spec.UpdateStrategy.Type, "pods elsewhere stay")
			assert.True(t, migration.KeepsOff(own, now, "istio-cni"))
			assert.Contains(t, out, "a: 1 pod started with both plugins, and may have rules of both; restart soon: shop/both-1\n")
			assert.Contains(t, out, "a: 1 pod with the rules of istio-cni, which stay in force; restart when it suits you: shop/theirs-1\n")
			assert.NotContains(t, out, "shop/new-1", "it gets our rules alone")

			code, out, errs = y.report(t)
			assert.Contains(t, out, "\n1 nodes switched to ours: a\n", "exit code %d: %s", code, errs)

			y.answer = ""
			code, out, errs = y.run(t, "switch", "--all")
			require.Equal(t, 0, code, errs)
			assert.Contains(t, out, "a: going on\n")
			assert.Equal(t, withOurs, y.text(t))

			code, _, errs = y.run(t, "back", "a")
			assert.Equal(t, 1, code)
			assert.Contains(t, errs, "nothing was changed")
			code, out, errs = y.run(t, "back", "a", "--yes")
			require.Equal(t, 0, code, out+errs)
			assert.Empty(t, y.label(t))
			assert.Len(t, y.theirs(t), 1)
			assert.Equal(t, before.Spec, y.theirSet(t).Spec)
			assert.NotContains(t, y.theirSet(t).Annotations, own.Key("before-switch"))
			if tidy {
				assert.Contains(t, out, "by its own agent")
				assert.Contains(t, y.text(t), `"again"`)
			} else {
				assert.Equal(t, withBoth, y.text(t))
			}
			left, err := os.ReadDir(y.conf)
			require.NoError(t, err)
			assert.Len(t, left, 1)
			code, out, _ = y.run(t, "back", "a", "--yes")
			assert.Equal(t, 0, code)
			assert.Contains(t, out, "a: it is not switched: ")
		})
	}
}

// TestSwitchRefuses: on what is not sound, nothing is changed.
func TestSwitchRefuses(t *testing.T) {
	t.Parallel()
	y := newSwitchNode(t, false)
	before := y.theirSet(t)
	y.Node(t, "b", nil)
	for name, tc := range map[string]struct {
		args    []string
		prepare func(t *testing.T)
		code    int
		want    string
	}{
		"no node":        {args: []string{"switch"}, code: 2, want: "name nodes, or give --all"},
		"both":           {args: []string{"switch", "a", "--all"}, code: 2, want: "name nodes, or give --all"},
		"no such node":   {args: []string{"switch", "z", "--yes"}, code: 1, want: "node z: there is no such node"},
		"no such plugin": {args: []string{"switch", "a", "--from", "init-containers"}, code: 2, want: "none of istio-cni, linkerd-cni, kuma-cni, consul-cni"},
		"nobody's":       {args: []string{"switch", "a", "--from", "kuma-cni", "--yes"}, code: 0, want: "nothing of kuma-cni is there"},
		"no agent":       {args: []string{"switch", "b", "--yes"}, code: 1, want: "no agent runs there: install the chart first"},
		"the agent is not ready": {args: []string{"switch", "a", "--yes"}, code: 1, want: "node-not-ready: write-failed: x", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) {
				n.Ready, n.News = false, []status.News{{Kind: status.KindReadiness, Code: "write-failed", Text: "x"}}
			}
		}},
		"another file is loaded": {args: []string{"switch", "a", "--yes"}, code: 1, want: "not-loaded: the runtime loads /host/etc/cni/net.d/00.conf", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.Installed.Loaded = "/host/etc/cni/net.d/00.conf" }
		}},
		"a file of our own": {args: []string{"switch", "a", "--yes"}, code: 1, want: "keeps a list of its own", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.Installed.File = "/host/etc/cni/net.d/00-meshcni.conflist" }
		}},
		"no backend": {args: []string{"switch", "a", "--yes"}, code: 1, want: "no-backend: none", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.BackendError = "none" }
		}},
		"it runs, and its entry is not there": {args: []string{"switch", "a", "--yes"}, code: 1, want: "it may be about to write it", prepare: func(*testing.T) {
			y.change = func(n *agentapi.Node) { n.Installed.Plugins = []string{"ptp", "meshcni"} }
		}},
		"switched from another": {args: []string{"switch", "a", "--from", "istio-cni", "--yes"}, code: 1, want: "it is switched from kuma-cni", prepare: func(t *testing.T) {
			_, err := y.client.CoreV1().Nodes().Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"meshcni.io/switched-from":"kuma-cni"}}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			t.Cleanup(func() {
				_, err := y.client.CoreV1().Nodes().Patch(context.Background(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"meshcni.io/switched-from":null}}}`), metav1.PatchOptions{})
				require.NoError(t, err)
			})
		}},
		"it cannot be seen": {args: []string{"switch", "a", "--yes"}, code: 1, want: "read-only file system", prepare: func(*testing.T) {
			y.job = func(string) error { return errors.New("read-only file system") }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			y.set(func() { y.change, y.job = nil, nil })
			if tc.prepare != nil {
				tc.prepare(t)
			}
			code, out, errs := y.run(t, tc.args...)
			assert.Equal(t, tc.code, code, out+errs)
			assert.Contains(t, out+errs, tc.want)
			assert.Equal(t, withBoth, y.text(t))
			assert.Equal(t, before.ResourceVersion, y.theirSet(t).ResourceVersion)
			assert.NotEqual(t, "istio-cni", y.label(t))
		})
	}
}

// TestSwitchGoesBack: whatever fails after the operator's word, the node goes back by itself with --yes, and the exit code says so.
func TestSwitchGoesBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(y *switchNodeFixture, t *testing.T)
		args    []string
		want    []string
	}{
		"our agent does not answer any more": {
			prepare: func(y *switchNodeFixture, _ *testing.T) {
				y.job = func(words string) error {
					y.silent.Store(words == "take" && y.takes.Add(1) == 2) // until the way back
					return nil
				}
			},
			args: []string{"--timeout=5s"},
			want: []string{"our agent is not ready without it: not within 5s: ", "connection refused"},
		},
		"connections are not captured": {
			prepare: func(y *switchNodeFixture, _ *testing.T) { y.failing = true },
			want:    []string{"throw-away pods of the node are not captured as they should be"},
		},
		"the list cannot be written": {
			prepare: func(y *switchNodeFixture, _ *testing.T) {
				takes := 0
				y.job = func(words string) error {
					if words == "take" {
						if takes++; takes == 2 { // after the dry run
							return errors.New("no space left on device")
						}
					}
					return nil
				}
			},
			want: []string{"take the entry of istio-cni out: no space left on device"},
		},
		"the entry comes back": {
			prepare: func(y *switchNodeFixture, t *testing.T) {
				y.Create(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "meshcni-system", Name: "scribe"}, Spec: corev1.PodSpec{
					NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: "i"}},
					Volumes: []corev1.Volume{{Name: "etc", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}}},
				}})
				y.change = func(n *agentapi.Node) {
					if !slices.Contains(n.Installed.Plugins, "istio-cni") {
						n.Installed.Plugins = append(n.Installed.Plugins, "istio-cni")
						y.write(t, withBoth)
					}
				}
			},
			want: []string{"the entry of istio-cni is in 10-x.conflist again: another program has written it; these pods of the node may have: meshcni-system/scribe"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := newSwitchNode(t, false)
			before := y.theirSet(t)
			tc.prepare(y, t)
			code, out, errs := y.run(t, append([]string{"switch", "a", "--yes"}, tc.args...)...)
			assert.Equal(t, 1, code, out+errs)
			for _, want := range tc.want {
				assert.Contains(t, errs, want)
			}
			assert.Contains(t, out, "a: back: ")
			assert.Equal(t, withBoth, y.text(t))
			assert.Equal(t, before.Spec, y.theirSet(t).Spec)
			assert.Empty(t, y.label(t))
			assert.Len(t, y.theirs(t), 1)
		})
	}
	t.Run("asked", func(t *testing.T) {
		t.Parallel()
		y := newSwitchNode(t, false)
		y.failing, y.answer = true, "yes\nno\n"
		code, out, errs := y.run(t, "switch", "a")
		assert.Equal(t, 1, code)
		assert.Contains(t, errs, "node a: go back to istio-cni? [yes/no] ")
		assert.Contains(t, out, "it stays as it is")
		assert.Equal(t, withOurs, y.text(t))
	})
}

// TestBackPassesOver: among all nodes there may be some that the other plugin was never on. They do not end it.
func TestBackPassesOver(t *testing.T) {
	t.Parallel()
	y := newSwitchNode(t, false)
	y.write(t, withOurs)
	code, out, errs := y.run(t, "back", "--all", "--yes")
	assert.Equal(t, 0, code, errs)
	assert.Equal(t, "a: it is not switched, and nothing of istio-cni is kept there\n", out)
	assert.Equal(t, withOurs, y.text(t))
}

// TestSwitchLeavesPods: what has been done on a node is not undone because a pod of ours stays there. It is named, and the exit code
// says so.
func TestSwitchLeavesPods(t *testing.T) {
	t.Parallel()
	y := newSwitchNode(t, false)
	takes := 0
	y.job = func(words string) error {
		if words == "take" {
			takes++
		}
		return nil
	}
	y.remains = func(c *kubectl.Cluster) {
		if takes == 2 { // the first is the dry run
			c.Leave(errors.New("left behind: pod meshcni-system/meshcni-job-x: forbidden"))
		}
	}
	code, out, errs := y.run(t, "switch", "a", "--yes")
	assert.Equal(t, 1, code, out+errs)
	assert.Contains(t, out, "a: switched: new pods are captured by our plugin alone\n")
	assert.Equal(t, withOurs, y.text(t))
	assert.Contains(t, errs, "kubectl-meshcni-migrate: left behind: pod meshcni-system/meshcni-job-x: forbidden\n")
}

// TestSwitchInterrupted: at each step an interrupt leaves a node that the same command carries over, and that back gives back.
func TestSwitchInterrupted(t *testing.T) {
	t.Parallel()
	y := newSwitchNode(t, false)
	for _, next := range []string{"switch", "back"} {
		for _, at := range []string{"its pod does not end", "before take", "after take", "while watching"} {
			t.Run(at+", then "+next, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				takes := 0
				y.set(func() {
					y.paused = at == "its pod does not end"
					y.job = func(words string) error {
						if words != "take" {
							return nil
						}
						if takes++; takes == 2 && at == "before take" {
							interrupt()
							return context.Canceled
						}
						return nil
					}
					y.change = func(n *agentapi.Node) {
						out := !slices.Contains(n.Installed.Plugins, "istio-cni")
						if out && at == "while watching" || out && at == "after take" && takes == 2 {
							interrupt()
						}
					}
				})
				y.heard = func(text string) {
					if at == "its pod does not end" && strings.Contains(text, "keeps off switched nodes") {
						interrupt()
					}
				}
				code, out, errs := y.runIn(ctx, "switch", "a", "--yes")
				require.Equal(t, 1, code, out+errs)
				assert.Contains(t, errs, "node a: interrupted; the same command goes on, and kubectl meshcni migrate back a goes back")
				y.heard = nil
				y.set(func() { y.paused, y.job, y.change = false, nil, nil })
				if next == "switch" {
					code, out, errs = y.run(t, "switch", "a")
					require.Equal(t, 0, code, out+errs)
					assert.Contains(t, out, "a: going on\n")
					assert.Equal(t, withOurs, y.text(t))
				}
				code, out, errs = y.run(t, "back", "a", "--yes")
				require.Equal(t, 0, code, out+errs)
				assert.Equal(t, withBoth, y.text(t))
				assert.Empty(t, y.label(t))
			})
		}
	}
}

// TestSwitchWithoutAPIServer: with the API server away in the middle, both failures are told, and the list is as it was.
func TestSwitchWithoutAPIServer(t *testing.T) {
	t.Parallel()
	y := newSwitchNode(t, false)
	gone, takes := errors.New("connection refused"), 0
	y.job = func(words string) error {
		if takes++; takes > 1 {
			return gone
		}
		return nil
	}
	code, _, errs := y.run(t, "switch", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "take the entry of istio-cni out: connection refused")
	assert.Contains(t, errs, "and going back failed: node a: connection refused")
	assert.Equal(t, withBoth, y.text(t))
	y.set(func() { y.job = nil })
	code, out, errs := y.run(t, "back", "a", "--yes")
	require.Equal(t, 0, code, out+errs)
	assert.Equal(t, withBoth, y.text(t))
}

// TestBackWithoutDaemonSet: the entry goes back from what is kept, unless the other's program is gone with the DaemonSet.
func TestBackWithoutDaemonSet(t *testing.T) {
	t.Parallel()
	y := newSwitchNode(t, false)
	code, out, errs := y.run(t, "switch", "a", "--yes", "--no-test")
	require.Equal(t, 0, code, out+errs)
	assert.Zero(t, y.tried)
	require.NoError(t, y.client.AppsV1().DaemonSets("istio-system").Delete(t.Context(), "istio-cni-node", metav1.DeleteOptions{}))
	require.NoError(t, os.Rename(y.bin+"/istio-cni", y.bin+"/x"))
	code, _, errs = y.run(t, "back", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "its program is not on the node")
	assert.Equal(t, withOurs, y.text(t))
	require.NoError(t, os.Rename(y.bin+"/x", y.bin+"/istio-cni"))
	code, out, errs = y.run(t, "back", "a", "--yes", "--from", "istio-cni")
	require.Equal(t, 0, code, out+errs)
	assert.Equal(t, withBoth, y.text(t))
}

// TestSwitchRights: who may not carry it through does not begin.
func TestSwitchRights(t *testing.T) {
	t.Parallel()
	y := newSwitchNode(t, false)
	y.Grant(t, "reader", "reader", map[string][]string{"nodes": {"list", "get"}, "pods": {"list"}})
	code, _, errs := y.run(t, "switch", "a", "--yes", "--from", "kuma-cni", "--as", "reader")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "daemonsets.apps is forbidden")

	rule := func(group string, resources, verbs []string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	role := &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}, ObjectMeta: metav1.ObjectMeta{Name: "mover"}, Rules: []rbacv1.PolicyRule{
		rule("", []string{"nodes"}, []string{"get", "list"}), rule("", []string{"pods"}, []string{"list"}), rule("", []string{"namespaces", "configmaps"}, []string{"get"}),
		rule("apps", []string{"daemonsets"}, []string{"get", "list", "update"}),
	}}
	y.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterroles", role, nil)
	_, err := y.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mover"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "mover"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "mover"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		code, _, errs = y.run(t, "switch", "a", "--yes", "--as", "mover")
		return strings.Contains(errs, "you may not patch nodes, which it takes")
	}, netnstest.Patience, 100*time.Millisecond)
	assert.Equal(t, 1, code)
	assert.Equal(t, withBoth, y.text(t))
	assert.Empty(t, y.label(t))
	role.Rules[0].Verbs = append(role.Rules[0].Verbs, "patch")
	y.Do(t, http.MethodPut, "/apis/rbac.authorization.k8s.io/v1/clusterroles/mover", role, nil)
	require.Eventually(t, func() bool {
		code, _, errs = y.run(t, "switch", "a", "--yes", "--as", "mover")
		return code == 0
	}, netnstest.Patience, 100*time.Millisecond, errs)
	code, out, errs := y.run(t, "back", "a", "--yes", "--as", "mover")
	assert.Equal(t, 0, code, out+errs)
	assert.Equal(t, withBoth, y.text(t))
}

// TestSwitchRefusesAmbient: two agents cannot hold the proxy's socket. Back goes on.
func TestSwitchRefusesAmbient(t *testing.T) {
	t.Parallel()
	y := newSwitchNode(t, false)
	_, err := y.client.CoreV1().ConfigMaps("istio-system").Patch(t.Context(), "istio-cni-config", types.MergePatchType, []byte(`{"data":{"AMBIENT_ENABLED":"true"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	code, _, errs := y.run(t, "switch", "a", "--yes")
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "istio-cni serves pods of a mesh with a proxy on the node, and only one agent may hold the proxy's socket")
	assert.Equal(t, withBoth, y.text(t))
	code, out, errs := y.run(t, "back", "a", "--yes")
	assert.Equal(t, 0, code, out+errs)
}
