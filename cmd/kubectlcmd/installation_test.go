package kubectlcmd

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// listener notes which pods are asked.
type listener struct {
	*world
	mu    sync.Mutex
	asked []string
}

func (l *listener) get(ctx context.Context, a agents.Agent, path string, into any) error {
	l.mu.Lock()
	l.asked = append(l.asked, a.Namespace+"/"+a.Name)
	l.mu.Unlock()
	return l.world.get(ctx, a, path, into)
}

func (l *listener) runs(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	l.mu.Lock()
	l.asked = nil
	l.mu.Unlock()
	var out, errs output
	p := Program{Stdout: &out, Stderr: &errs, ask: func(*rest.Config) asker { return l }}
	code = p.Main(t.Context(), append([]string{"--kubeconfig", l.Kubeconfig}, args...))
	return code, out.String(), errs.String()
}

// evil is what a tenant would have an administrator run.
const evil = "registry.example/evil:1"

// imitate makes in a tenant's namespace all that a tenant can to look as the agent of a node: a DaemonSet like the agents', its pod, and
// a pod that says it is controlled by the real one.
func (w *world) imitate(t *testing.T, namespace, node string, set *appsv1.DaemonSet) *appsv1.DaemonSet {
	t.Helper()
	_ = w.Try(http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", namespace), nil) // it may be there
	theirs := kubectltest.AgentSet(namespace, "meshcni-node")
	c := &theirs.Spec.Template.Spec.Containers[0]
	c.Image, c.Command = evil, []string{"/evil"}
	c.SecurityContext = &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"}}
	theirs.Spec.Template.Spec.ServiceAccountName = "evil"
	theirs = w.DaemonSet(t, theirs)
	w.Create(t, kubectltest.PodOf(theirs, node))
	if set != nil {
		pod := kubectltest.PodOf(set, node)
		pod.Namespace, pod.Spec = namespace, kubectltest.PodOf(theirs, node).Spec
		pod.Name += "-owned"
		w.Create(t, pod)
	}
	return theirs
}

// TestWhoIsTheAgent: a tenant's pods and DaemonSets are never taken for the agents, whatever they wear, and no pod of an administrator is
// made from them.
func TestWhoIsTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := &listener{world: w}
	w.Do(t, http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", "infra"), nil)
	w.Set = w.Install(t, "infra")
	answer := agentapi.Pod{LiveError: refused, State: &status.Pod{State: status.StateCaptured, Reason: "recorded"}, Records: []attachment.Record{{Selected: true, By: "ADD"}}}
	for _, name := range []string{"a", "b"} {
		base := kubectltest.Sound(name)
		w.Node(t, name, func(path string) (any, error) {
			if path == agentapi.NodePath {
				return base(path)
			}
			return answer, nil
		})
	}
	w.Node(t, "bare", nil)
	for _, node := range []string{"a", "bare"} {
		w.imitate(t, "shop-"+node, node, w.Set)
	}
	// Neither is a pod of the installation's namespace an agent that the DaemonSet does not control.
	for i, owner := range []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: w.Set.Name, UID: "another"}, {APIVersion: "apps/v1", Kind: "DaemonSet", Name: w.Set.Name, UID: w.Set.UID}} {
		stray := kubectltest.PodOf(w.Set, "b")
		stray.Name, stray.OwnerReferences = []string{"stray", "straying"}[i], []metav1.OwnerReference{owner}
		stray.Spec.Containers[0].Image = evil
		w.Create(t, stray)
	}
	// What the pod of an agent has become is no matter for the pod that an administrator makes.
	w.Remove(t, "infra", "meshcni-node-a")
	changed := kubectltest.PodOf(w.Set, "a")
	changed.Spec.Containers[0].Image, changed.Spec.Containers[0].Command = evil, []string{"/evil"}
	w.Create(t, changed)
	cart := w.MeshPod(t, "shop", "cart", "a")
	far := w.MeshPod(t, "shop", "far", "bare")
	k := kubectltest.NewKubelet(t, w.World)
	looked := kubectltest.Looks(t, map[string]agentapi.Pod{string(cart.UID): {Records: answer.Records}, string(far.UID): {Records: answer.Records}})
	k.Next(looked)

	code, out, errs := l.runs(t, "status", "-o", "json")
	assert.Equal(t, exitWrong, code, errs)
	is := kubectltest.Decode[clusterStatus](t, out)
	states := map[string]string{}
	for _, n := range is.Nodes {
		states[n.Node] = n.State
	}
	assert.Equal(t, map[string]string{"a": stateReady, "b": stateReady, "bare": stateNoAgent}, states)
	assert.ElementsMatch(t, []string{"infra/meshcni-node-a", "infra/meshcni-node-b"}, l.asked)

	for _, args := range [][]string{
		{"explain", "-n", "shop", "cart"}, {"explain", "-n", "shop", "far"}, {"show", "-n", "shop", "cart"}, {"check"}, {"rules", "-n", "shop", "cart"},
		{"explain", "-n", "shop", "cart", "--enter"}, {"show", "-n", "shop", "far", "--enter"},
	} {
		k.Next(looked)
		_, out, errs := l.runs(t, args...)
		for _, asked := range l.asked {
			assert.Contains(t, []string{"infra/meshcni-node-a", "infra/meshcni-node-b"}, asked, args)
		}
		for _, pod := range k.Made {
			assert.Equal(t, "infra", pod.Namespace, args)
			assert.Equal(t, "i", pod.Spec.Containers[0].Image, args)
			assert.Empty(t, pod.Spec.Containers[0].Command, args)
			assert.Nil(t, pod.Spec.Containers[0].SecurityContext.SELinuxOptions, args)
			assert.NotEqual(t, "evil", pod.Spec.ServiceAccountName, args)
		}
		assert.Equal(t, slices.Equal(args, []string{"explain", "-n", "shop", "cart", "--enter"}), len(k.Made) == 1, "%v: %s%s", args, out, errs)
	}
	// What test runs is the template's, too.
	c := &cluster{Program: Program{Identity: own}, finder: agents.Finder{Client: w.Clientset(t), Identity: own}}
	byNode, err := c.agentsByNode(t.Context(), "")
	require.NoError(t, err)
	assert.Len(t, byNode, 2)
	assert.Equal(t, image{name: "i"}, programOf(byNode["a"]))
}

// TestWhichInstallation: the ClusterRoleBinding, which no tenant writes, or the administrator says which DaemonSet is the agents'. What
// nobody says is an error that says how to choose.
func TestWhichInstallation(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T, bound ...string) *world {
		w := newWorld(t)
		for _, name := range []string{"one", "two", "shop"} {
			w.Do(t, http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", name), nil)
		}
		if len(bound) > 0 {
			w.Bind(t, bound...)
		}
		return w
	}
	find := func(t *testing.T, w *world, c *cluster) (string, error) {
		t.Helper()
		if c.finder.Client == nil {
			c.finder.Client = w.Clientset(t)
		}
		if c.finder.Selector == "" {
			c.finder.Selector = own.AgentSelector
		}
		sets, err := c.daemonSets(t.Context())
		var names []string
		for _, set := range sets {
			names = append(names, set.Namespace+"/"+set.Name)
		}
		return strings.Join(names, " "), err
	}
	t.Run("nothing stands for it", func(t *testing.T) {
		w := start(t)
		name, err := find(t, w, &cluster{Program: Program{Identity: own}})
		require.NoError(t, err)
		assert.Empty(t, name, "not installed")
		w.imitate(t, "shop", "a", nil)
		_, err = find(t, w, &cluster{Program: Program{Identity: own}})
		require.ErrorAs(t, err, new(*agents.WhichError))
		assert.EqualError(t, err, "find the agents: it cannot be told which DaemonSet is the agents': there is no ClusterRoleBinding meshcni-plugin, which names the installation's namespace, "+
			"and the labels of DaemonSet shop/meshcni-node prove nothing; --agent-namespace chooses one")
		code, out, errs := w.run(t, "status")
		assert.Equal(t, exitWrong, code)
		assert.Empty(t, out)
		assert.Contains(t, errs, "--agent-namespace chooses")
		name, err = find(t, w, &cluster{Program: Program{Identity: own}, finder: agents.Finder{Namespace: "shop"}})
		require.NoError(t, err)
		assert.Equal(t, "shop/meshcni-node", name, "the administrator says so")
		name, err = find(t, w, &cluster{Program: Program{Identity: own}, finder: agents.Finder{Namespace: "one"}})
		require.NoError(t, err)
		assert.Empty(t, name)

		w.DaemonSet(t, kubectltest.AgentSet(own.Namespace, "mine"))
		name, err = find(t, w, &cluster{Program: Program{Identity: own}})
		require.NoError(t, err)
		assert.Equal(t, "meshcni-system/mine", name, "where it is installed by default")
	})
	t.Run("it has none", func(t *testing.T) {
		w := start(t, "one")
		w.imitate(t, "shop", "a", nil)
		w.DaemonSet(t, kubectltest.AgentSet(own.Namespace, "other")) // somebody's else, too
		name, err := find(t, w, &cluster{Program: Program{Identity: own}})
		require.NoError(t, err)
		assert.Empty(t, name)
	})
	t.Run("two installations", func(t *testing.T) {
		w := start(t, "one", "two")
		for _, namespace := range []string{"one", "two"} {
			w.DaemonSet(t, kubectltest.AgentSet(namespace, "meshcni-node"))
		}
		name, err := find(t, w, &cluster{Program: Program{Identity: own}})
		require.NoError(t, err)
		assert.Equal(t, "one/meshcni-node two/meshcni-node", name)
		name, err = find(t, w, &cluster{Program: Program{Identity: own}, finder: agents.Finder{Namespace: "two"}})
		require.NoError(t, err)
		assert.Equal(t, "two/meshcni-node", name)
	})
	t.Run("two in a namespace", func(t *testing.T) {
		w := start(t, "one")
		w.DaemonSet(t, kubectltest.AgentSet("one", "meshcni-node"))
		other := kubectltest.AgentSet("one", "meshcni-test")
		labels := map[string]string{"app.kubernetes.io/name": "meshcni", "app.kubernetes.io/component": "node", "ring": "test"}
		other.Spec.Template.Labels, other.Spec.Selector.MatchLabels = labels, labels
		w.DaemonSet(t, other)
		_, err := find(t, w, &cluster{Program: Program{Identity: own}})
		require.ErrorAs(t, err, new(*agents.WhichError))
		assert.ErrorContains(t, err, "--agent-selector chooses one")
		name, err := find(t, w, &cluster{Program: Program{Identity: own}, finder: agents.Finder{Selector: "ring=test"}})
		require.NoError(t, err)
		assert.Equal(t, "one/meshcni-test", name)
		_, err = find(t, w, &cluster{Program: Program{Identity: own}, finder: agents.Finder{Selector: "a=b=c"}})
		assert.ErrorContains(t, err, `the agents' labels "a=b=c"`)
	})
	t.Run("the caller's rights", func(t *testing.T) {
		w := start(t, "one")
		w.DaemonSet(t, kubectltest.AgentSet("one", "meshcni-node"))
		w.imitate(t, "shop", "a", nil)
		config, err := w.Server.Config(kubetest.AdminToken)
		require.NoError(t, err)
		config.Impersonate.UserName = "alice"
		alice, err := kubernetes.NewForConfig(config)
		require.NoError(t, err)
		w.Grant(t, "alice", "alice", map[string][]string{"daemonsets.apps": {"list"}})
		_, err = find(t, w, &cluster{Program: Program{Identity: own}, finder: agents.Finder{Client: alice}})
		require.ErrorAs(t, err, new(*agents.WhichError))
		assert.ErrorContains(t, err, "you may not read the ClusterRoleBinding meshcni-plugin")
		name, err := find(t, w, &cluster{Program: Program{Identity: own}, finder: agents.Finder{Client: alice, Namespace: "one"}})
		require.NoError(t, err)
		assert.Equal(t, "one/meshcni-node", name)
	})
}

// TestACanaryHasItsNodes: each node is asked by its own installation's agent, a further release's too, which its ClusterRoleBinding names.
// Only a node that two claim is not asked, until a namespace chooses. A binding of another role names nobody.
func TestACanaryHasItsNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, namespace := range []string{"canary", "shop"} {
		w.Do(t, http.MethodPost, "/api/v1/namespaces", kubectltest.Object("Namespace", namespace), nil)
	}
	w.Set = w.Install(t, "meshcni-system")
	for name, role := range map[string]string{"meshcni-plugin-canary": "meshcni-plugin-canary", "meshcni-plugin-shop": "view"} {
		_, more, _ := strings.Cut(name, "meshcni-plugin-")
		w.Do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: more, Name: name}},
		}, nil)
	}
	canary := w.DaemonSet(t, kubectltest.AgentSet("canary", "meshcni-node-canary"))
	w.DaemonSet(t, kubectltest.AgentSet("canary", "meshcni-node-other"))
	w.imitate(t, "shop", "bare", nil)
	for _, name := range []string{"a", "both"} {
		w.Node(t, name, kubectltest.Sound(name))
	}
	first := w.Set
	w.Set = canary
	w.Node(t, "c", kubectltest.Sound("c"))
	w.Set = first
	w.Create(t, kubectltest.PodOf(canary, "both"))
	w.Node(t, "bare", nil)

	code, out, errs := w.run(t, "status", "-o", "json")
	assert.Equal(t, exitWrong, code, errs)
	got := map[string]string{}
	for _, n := range kubectltest.Decode[clusterStatus](t, out).Nodes {
		got[n.Node] = n.State + " " + n.Installation
		if n.Node == "both" {
			assert.Contains(t, n.Why[0], "two installations claim the node, by DaemonSet canary/meshcni-node-canary and DaemonSet meshcni-system/meshcni-node")
			delete(got, n.Node)
		}
	}
	assert.Equal(t, map[string]string{"a": "ready meshcni-system/meshcni-node", "c": "ready canary/meshcni-node-canary", "bare": "no-agent "}, got)
	_, out, _ = w.run(t, "status")
	assert.Regexp(t, `(?m)^NODE .* INSTALLATION\s*$`, out)
	assert.Regexp(t, `(?m)^c +ready .* canary/meshcni-node-canary\s*$`, out)
	_, out, errs = w.run(t, "status", "-o", "json", "--agent-namespace", "meshcni-system")
	assert.NotContains(t, out, "two installations", errs)
	assert.NotContains(t, out, `"installation"`)
}
