package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const daemonSet = "meshcni-node"

// release is what a chart makes in a namespace of its own, and the agent of one node.
type release struct {
	*admin
	s     *kubetest.Server
	ns    string
	token string
	dirs  nodeDirs
	agent *process
}

func (r *release) daemonSets() string {
	return "/apis/apps/v1/namespaces/" + r.ns + "/daemonsets"
}

func (r *release) roles(kind string) string {
	return "/apis/rbac.authorization.k8s.io/v1/namespaces/" + r.ns + "/" + kind
}

// install makes the DaemonSet, the account and its role.
func install(t testing.TB, s *kubetest.Server) *release {
	t.Helper()
	r := &release{admin: newAdmin(t, s), s: s}
	r.ns = r.Namespace(t)
	r.token = r.ServiceAccount(t, r.ns, daemonSet)
	r.makeDaemonSet(t)
	meta := metav1.ObjectMeta{Name: daemonSet}
	r.Do(t, http.MethodPost, r.roles("roles"), rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"daemonsets"}, ResourceNames: []string{daemonSet}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{r.ns}, Verbs: []string{"get"}},
	}}, nil)
	r.Do(t, http.MethodPost, r.roles("rolebindings"), rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: daemonSet},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: daemonSet, Namespace: r.ns}},
	}, nil)
	return r
}

func (r *release) makeDaemonSet(t testing.TB) {
	t.Helper()
	label := map[string]string{"app": daemonSet}
	r.Do(t, http.MethodPost, r.daemonSets(), appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: daemonSet},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: label},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: label},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "meshcni/meshcni:test"}}},
			},
		},
	}, nil)
}

// grantNodes makes the node and gives the right to read it.
func (r *release) grantNodes(t testing.TB) {
	t.Helper()
	const roles = "/apis/rbac.authorization.k8s.io/v1/"
	meta := metav1.ObjectMeta{Name: r.ns}
	r.Do(t, http.MethodPost, "/api/v1/nodes", corev1.Node{ObjectMeta: meta}, nil)
	r.Do(t, http.MethodPost, roles+"clusterroles", rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
	}}, nil)
	r.Do(t, http.MethodPost, roles+"clusterrolebindings", rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: r.ns},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: daemonSet, Namespace: r.ns}},
	}, nil)
	eventually(t, "the agent may read its node", func() bool {
		config, err := r.s.Config(r.token)
		require.NoError(t, err)
		return statusCode(t, config, "/api/v1/nodes/"+r.ns) == http.StatusOK
	})
}

func (r *release) patchNode(t testing.TB, patch map[string]any) {
	t.Helper()
	r.Do(t, http.MethodPatch, "/api/v1/nodes/"+r.ns, patch, nil)
}

func (r *release) patchDaemonSet(t testing.TB, spec map[string]any) {
	t.Helper()
	r.Do(t, http.MethodPatch, r.daemonSets()+"/"+daemonSet, map[string]any{"spec": map[string]any{"template": map[string]any{"spec": spec}}}, nil)
}

// run runs the agent until it has installed the plugin.
func (r *release) run(t testing.TB, program string, args ...string) {
	t.Helper()
	r.dirs = newNodeDirs(t, r.s, r.token)
	c := agentContainer(t, r.s, r.dirs, program, append([]string{"--uninstall-on-exit=auto"}, args...)...)
	c.env = append(c.env, "POD_NAMESPACE="+r.ns)
	r.agent = c.start(t)
	eventually(t, "ready", func() bool { return r.agent.get(t, "/readyz") == "ok\n" })
	require.Contains(t, r.dirs.list(t), `"meshcni"`)
}

func (r *release) logged(t testing.TB, text string) {
	t.Helper()
	eventually(t, text, func() bool { return strings.Contains(r.agent.log.String(), text) })
}

// The words of the log.
const (
	isThere   = `"is":"there"`
	isGoing   = `"is":"being deleted"`
	isDeleted = `"is":"deleted"`
	isOther   = `"is":"another one"`
	blind     = "cannot be watched"
)

// end stops the agent's pod, and says whether the plugin has been taken back and how long it took.
func (r *release) end(t testing.TB) (uninstalled bool, took time.Duration) {
	t.Helper()
	began := time.Now()
	require.NoError(t, r.agent.cmd.Process.Signal(unix.SIGTERM))
	require.NoError(t, r.agent.wait())
	return r.dirs.list(t) == ptpList, time.Since(began)
}

// removeRights takes the role and the account away, as helm does right after the DaemonSet.
func (r *release) removeRights(t testing.TB) {
	t.Helper()
	r.Do(t, http.MethodDelete, r.roles("rolebindings/"+daemonSet), nil, nil)
	r.Do(t, http.MethodDelete, r.roles("roles/"+daemonSet), nil, nil)
	r.Do(t, http.MethodDelete, "/api/v1/namespaces/"+r.ns+"/serviceaccounts/"+daemonSet, nil, nil)
	eventually(t, "the agent may not ask any more", func() bool {
		config, err := r.s.Config(r.token)
		require.NoError(t, err)
		// 403, and some seconds later, when the server has forgotten the token, 401.
		code := statusCode(t, config, r.daemonSets()+"/"+daemonSet)
		return code == http.StatusUnauthorized || code == http.StatusForbidden
	})
}

func (r *release) remove(t testing.TB, propagation metav1.DeletionPropagation) {
	t.Helper()
	r.Do(t, http.MethodDelete, r.daemonSets()+"/"+daemonSet, metav1.DeleteOptions{PropagationPolicy: &propagation}, nil)
}

// TestUninstallsWhenTheDaemonSetGoes, or wants the node no more, and only then: each case happens before the pod is stopped.
func TestUninstallsWhenTheDaemonSetGoes(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	s := kubetest.Shared(t)
	program := buildProgram(t, "meshcni-node")
	for name, c := range map[string]struct {
		args        []string
		before      func(t *testing.T, r *release) // the agent's start
		happens     func(t *testing.T, r *release)
		uninstalled bool
		because     string // the log has it
	}{
		"deleted in the background": {happens: func(t *testing.T, r *release) {
			r.remove(t, metav1.DeletePropagationBackground)
			r.logged(t, isDeleted)
		}, uninstalled: true},
		"deleted in the foreground": {happens: func(t *testing.T, r *release) {
			r.remove(t, metav1.DeletePropagationForeground)
			r.logged(t, isGoing)
		}, uninstalled: true},
		"deleted, its pods left": {happens: func(t *testing.T, r *release) {
			r.remove(t, metav1.DeletePropagationOrphan)
			r.logged(t, isGoing)
		}, uninstalled: true},
		"a release deleted, rights and all": {happens: func(t *testing.T, r *release) {
			r.remove(t, metav1.DeletePropagationBackground)
			r.removeRights(t)
			r.logged(t, isDeleted)
		}, uninstalled: true},
		"an update": {happens: func(t *testing.T, r *release) {
			r.Do(t, http.MethodPatch, r.daemonSets()+"/"+daemonSet, map[string]any{"metadata": map[string]any{"labels": map[string]string{"v": "2"}}}, nil)
		}},
		"nothing": {happens: func(*testing.T, *release) {}},
		"the node loses its label": {happens: func(t *testing.T, r *release) {
			r.grantNodes(t)
			r.patchDaemonSet(t, map[string]any{"nodeSelector": map[string]string{"mesh": "on"}})
			r.patchNode(t, map[string]any{"metadata": map[string]any{"labels": map[string]any{"mesh": nil}}})
		}, uninstalled: true, because: "its nodeSelector or affinity leaves the node out"},
		"the node has the label": {happens: func(t *testing.T, r *release) {
			r.grantNodes(t)
			r.patchNode(t, map[string]any{"metadata": map[string]any{"labels": map[string]any{"mesh": "on"}}})
			r.patchDaemonSet(t, map[string]any{"nodeSelector": map[string]string{"mesh": "on"}})
		}},
		"the node gets a taint": {happens: func(t *testing.T, r *release) {
			r.grantNodes(t)
			r.patchNode(t, map[string]any{"spec": map[string]any{"taints": []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoExecute}}}})
		}, uninstalled: true, because: "it does not tolerate the taint gpu:NoExecute"},
		"the node is cordoned": {happens: func(t *testing.T, r *release) {
			r.grantNodes(t)
			taint := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
			r.patchNode(t, map[string]any{"spec": map[string]any{"unschedulable": true, "taints": []corev1.Taint{taint}}})
		}},
		"the node loses its label, and may not be read": {happens: func(t *testing.T, r *release) {
			r.patchDaemonSet(t, map[string]any{"nodeSelector": map[string]string{"mesh": "on"}})
		}, because: "cannot be told: nodes "},
		"its namespace deleted, pods first": {happens: func(t *testing.T, r *release) {
			r.Do(t, http.MethodDelete, "/api/v1/namespaces/"+r.ns, nil, nil)
		}, uninstalled: true},
		"its namespace deleted, DaemonSets first": {happens: func(t *testing.T, r *release) {
			r.Do(t, http.MethodDelete, "/api/v1/namespaces/"+r.ns, nil, nil)
			r.Do(t, http.MethodDelete, r.daemonSets(), nil, nil)
			r.removeRights(t)
			r.logged(t, isDeleted)
		}, uninstalled: true},
		"deleted and made anew": {happens: func(t *testing.T, r *release) {
			r.remove(t, metav1.DeletePropagationBackground)
			r.makeDaemonSet(t)
			r.logged(t, isOther)
		}},
		"rights lost": {happens: func(t *testing.T, r *release) { r.removeRights(t) }},
		"without rights": {
			before: func(t *testing.T, r *release) {
				r.Do(t, http.MethodDelete, r.roles("rolebindings/"+daemonSet), nil, nil)
			},
			happens: func(t *testing.T, r *release) { r.logged(t, blind); r.remove(t, metav1.DeletePropagationBackground) },
		},
		"another name": {args: []string{"--daemonset-name=meshcni"}, happens: func(t *testing.T, r *release) { r.logged(t, blind) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := install(t, s)
			if c.before != nil {
				c.before(t, r)
			}
			r.run(t, program, append([]string{"--node-name=" + r.ns}, c.args...)...)
			if c.before == nil && c.args == nil {
				r.logged(t, isThere)
			}
			c.happens(t, r)
			got, _ := r.end(t)
			assert.Equal(t, c.uninstalled, got, "%s", r.agent.log)
			assert.Contains(t, r.agent.log.String(), c.because)
		})
	}
}

// TestOutageWhileTheAgentEnds: what was seen before counts, and the end does not wait for the API server.
func TestOutageWhileTheAgentEnds(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	s := kubetest.Own(t, servers)
	program := buildProgram(t, "meshcni-node")
	stays, goes, later := install(t, s), install(t, s), install(t, s)
	for _, r := range []*release{stays, goes, later} {
		r.run(t, program)
		r.logged(t, isThere)
	}
	goes.remove(t, metav1.DeletePropagationBackground)
	goes.logged(t, isDeleted)
	s.StopAPI()
	for _, r := range []*release{stays, goes} {
		uninstalled, took := r.end(t)
		assert.Equal(t, r == goes, uninstalled, "%s", r.agent.log)
		t.Logf("ended after %s of a pod's 30 seconds", took)
	}
	// One that outlives the outage goes on watching.
	later.logged(t, blind)
	require.NoError(t, s.StartAPI())
	later.logged(t, "is watched again")
	later.remove(t, metav1.DeletePropagationBackground)
	later.logged(t, isDeleted)
	later.removeRights(t)
	uninstalled, _ := later.end(t)
	assert.True(t, uninstalled, "%s", later.agent.log)
}

// TestWatchCosts: one list and one watch for as long as nothing happens, whatever else does in the namespace, and little memory.
func TestWatchCosts(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	s := kubetest.Shared(t)
	program := buildProgram(t, "meshcni-node")
	r := install(t, s)
	r.run(t, program)
	r.logged(t, isThere)
	with, peak := rss(t, r.agent.cmd.Process.Pid)
	assert.Equal(t, map[string]int{"list daemonsets.apps": 1, "watch daemonsets.apps": 1}, s.Calls(t, "system:serviceaccount:"+r.ns+":"+daemonSet))

	c := agentContainer(t, s, newNodeDirs(t, s, r.token), program)
	p := c.start(t)
	eventually(t, "ready", func() bool { return p.get(t, "/readyz") == "ok\n" })
	without, _ := rss(t, p.cmd.Process.Pid)
	t.Logf("RSS %.1f MB (%.1f MB at most) with the watch, %.1f MB without", with, peak, without)
	assert.Less(t, with-without, 12.0, "MB")
}

// TestTwoAgents: during an update that starts the new agent before the old one ends, and when both go at once.
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	s := kubetest.Shared(t)
	program := buildProgram(t, "meshcni-node")
	start := func(t *testing.T, r *release) *process {
		c := agentContainer(t, s, r.dirs, program, "--uninstall-on-exit=auto")
		c.env = append(c.env, "POD_NAMESPACE="+r.ns)
		p := c.start(t)
		eventually(t, "it has the node", func() bool { return p.get(t, "/readyz") == "ok\n" })
		return p
	}
	for name, together := range map[string]bool{"an update": false, "the end of both": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := install(t, s)
			r.run(t, program)
			r.logged(t, isThere)
			old, now := r.agent, start(t, r)
			eventually(t, "the old one rests", func() bool { return strings.Contains(old.log.String(), `"code":"superseded"`) })
			if together {
				r.agent = now
				r.logged(t, isThere)
				r.remove(t, metav1.DeletePropagationBackground)
				r.logged(t, isDeleted)
				r.agent = old
				r.logged(t, isDeleted)
			}
			uninstalled, _ := r.end(t)
			assert.False(t, uninstalled, "the new one has it")
			eventually(t, "undisturbed", func() bool { return now.get(t, "/readyz") == "ok\n" })
			r.agent = now
			uninstalled, _ = r.end(t)
			assert.Equal(t, together, uninstalled)
		})
	}
}

// TestStartsWithoutTheAPIServer: the plugin is installed and the agent ready, since pods are captured, or wait in their
// ADD; with repair, which does not work, it is not ready. The end comes in time all the same.
func TestStartsWithoutTheAPIServer(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	s := kubetest.Shared(t)
	program := buildProgram(t, "meshcni-node")
	port, err := proctest.FreePort()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		args   []string
		readyz string
	}{
		"install": {nil, "ok\n"},
		"repair":  {[]string{"--repair=label", "--node-name=n"}, "repair: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newNodeDirs(t, s, kubetest.AdminToken)
			container := agentContainer(t, s, d, program, append([]string{"--uninstall-on-exit=auto", fmt.Sprintf("--kubernetes-service-port=%d", port)}, c.args...)...)
			p := container.start(t)
			eventually(t, "installed", func() bool { return strings.Contains(d.list(t), `"meshcni"`) })
			eventually(t, "it says so", func() bool { return strings.HasPrefix(p.get(t, "/readyz"), c.readyz) })
			eventually(t, "it says so", func() bool { return strings.Contains(p.log.String(), blind) })
			require.NoError(t, p.cmd.Process.Signal(unix.SIGTERM))
			require.NoError(t, p.wait())
			assert.Contains(t, d.list(t), `"meshcni"`, "that nothing is known of the DaemonSet is no reason to leave")
		})
	}
}
