package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

const (
	taintKey, peersTaint, othersTaint = "meshcni.io/agent-not-ready", "cni.istio.io/not-ready", "example.com/dedicated"
	nodeCount, windowsCount           = 500, 5
	taintMost                         = nodeCount / 5
)

// taintWorld is a cluster of nodes that nobody runs, whose agents are pods that the test declares ready or not.
type taintWorld struct {
	*admin
	t       *testing.T
	server  *kubetest.Server
	user    string
	token   string
	program string
}

func newTaintWorld(t *testing.T, nodes int) *taintWorld {
	t.Helper()
	s := kubetest.Own(t, servers)
	w := &taintWorld{admin: newAdmin(t, s), t: t, server: s, program: buildProgram(t, "meshcni-taint")}
	w.Do(t, http.MethodPost, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentNamespace}}, nil)
	text, err := os.ReadFile("../../deploy/rbac/taint.yaml")
	require.NoError(t, err)
	for _, doc := range strings.Split(string(text), "\n---\n") {
		o := map[string]any{}
		require.NoError(t, yaml.UnmarshalStrict([]byte(doc), &o))
		var meta metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal([]byte(doc), &meta))
		path := "/apis/" + meta.APIVersion + "/"
		if meta.Kind == "ServiceAccount" {
			path = "/api/v1/"
		}
		if meta.Namespace != "" {
			path += "namespaces/" + meta.Namespace + "/"
		}
		w.Do(t, http.MethodPost, path+strings.ToLower(meta.Kind)+"s?fieldValidation=Strict", o, nil)
	}
	w.user, w.token = "system:serviceaccount:"+agentNamespace+":meshcni-taint", w.ServiceAccount(t, agentNamespace, "meshcni-taint")
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "meshcni-node"}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: agentLabels("")}
	set.Spec.Template.Labels = agentLabels("")
	set.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "linux"}
	set.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "agent", Image: "agent"}}
	w.Do(t, http.MethodPost, "/apis/apps/v1/namespaces/"+agentNamespace+"/daemonsets", set, nil)
	kubetest.Parallel(nodes, func(i int) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{"kubernetes.io/os": "linux"}}}
		if i < windowsCount {
			node.Labels["kubernetes.io/os"] = "windows"
		}
		node.Status.Images = nodeImages
		for _, key := range []string{taintKey, peersTaint, othersTaint} {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		w.Do(t, http.MethodPost, "/api/v1/nodes", node, nil)
	})
	return w
}

// nodeImages are what most of a Node consists of: as many as a kubelet reports (nodeStatusMaxImages), by digest and by tag.
var nodeImages = func() []corev1.ContainerImage {
	images := make([]corev1.ContainerImage, 50)
	for i := range images {
		name := fmt.Sprintf("registry.example.com/some-project/some-component-%d", i)
		images[i] = corev1.ContainerImage{Names: []string{name + "@sha256:" + strings.Repeat("a", 64), name + ":v1.2.3"}, SizeBytes: 1 << 27}
	}
	return images
}()

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

func agentLabels(version string) map[string]string {
	l := map[string]string{"app.kubernetes.io/name": "meshcni", "app.kubernetes.io/component": "node"}
	if version != "" {
		l["app.kubernetes.io/version"] = version
	}
	return l
}

// agent makes a node's agent, of a version, ready or not.
func (w *taintWorld) agent(i int, version string, ready bool) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: agentName(i, version), Labels: agentLabels(version)}}
	pod.Spec = corev1.PodSpec{NodeName: nodeName(i), Containers: []corev1.Container{{Name: "agent", Image: "agent"}}}
	pod.Status = agentStatus(ready)
	w.Create(w.t, pod)
}

func agentName(i int, version string) string { return fmt.Sprintf("meshcni-node-%s-%03d", version, i) }

func agentStatus(ready bool) corev1.PodStatus {
	c := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	if ready {
		c.Status = corev1.ConditionTrue
	}
	return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{c}}
}

func (w *taintWorld) declare(i int, version string, ready bool) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: agentName(i, version)}, Status: agentStatus(ready)}
	w.Do(w.t, http.MethodPatch, kubetest.PodPath(agentNamespace, pod.Name)+"/status", map[string]any{"status": pod.Status}, nil)
}

// controller starts one. The test ends it.
func (w *taintWorld) controller(identity string, more ...string) *process {
	w.t.Helper()
	port, err := proctest.FreePort()
	require.NoError(w.t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	p := &process{url: "http://" + address, log: &proctest.Buffer{}}
	p.cmd = exec.Command(w.program, append([]string{
		"run", "--kubeconfig=" + w.server.Kubeconfig(w.t, w.token), "--identity=" + identity, "--pod-namespace=" + agentNamespace,
		"--also-remove=" + peersTaint, "--metrics-address=" + address, "--health-address=" + address,
	}, more...)...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	require.NoError(w.t, p.cmd.Start())
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("%s: %s", identity, p.log)
		}
	})
	return p
}

// taints are the nodes of each taint, with its value.
func (w *taintWorld) taints() map[string][]string {
	var list corev1.NodeList
	w.Do(w.t, http.MethodGet, "/api/v1/nodes", nil, &list)
	got := map[string][]string{}
	for i := range list.Items {
		for _, taint := range list.Items[i].Spec.Taints {
			key := taint.Key
			if taint.Value != "" {
				key += "=" + taint.Value
			}
			got[key] = append(got[key], list.Items[i].Name)
		}
	}
	return got
}

const putBack = taintKey + "=put-back"

func (w *taintWorld) patches() int { return w.server.Calls(w.t, w.user)["patch nodes"] }

// each calls f for the nodes from one to before another.
func each(from, to int, f func(i int)) { kubetest.Parallel(to-from, func(i int) { f(from + i) }) }

// TestTaint: 500 nodes register with the taint. It goes where an agent is ready, whichever version's, and stays where there is none;
// flapping agents cost nothing; the second controller takes over from one that is killed, and writes nothing twice; what others do to
// the same nodes' taints is not lost; and of all nodes no more than the share is tainted again, also when most agents go at once.
func TestTaint(t *testing.T) {
	t.Parallel()
	w := newTaintWorld(t, nodeCount)
	one := w.controller("one", "--grace=15s")
	eventually(t, "one leads", func() bool { return one.metric(t, "meshcni_taint_leader") == 1 })
	two := w.controller("two", "--grace=15s")
	state := func(p *process, s string) float64 { return p.metric(t, `meshcni_taint_nodes{state="`+s+`"}`) }
	eventually(t, "all wait", func() bool { return state(one, "waiting") == nodeCount-windowsCount })

	// 20 nodes have no agent yet, and 20 one that is not ready.
	each(windowsCount, 480, func(i int) { w.agent(i, []string{"v1", "v2"}[i%2], i < 460) })
	eventually(t, "the taint goes where an agent is ready, and where none can be", func() bool { return len(w.taints()[taintKey]) == 40 })
	got := w.taints()
	assert.Equal(t, nodeName(460), got[taintKey][0])
	assert.Len(t, got[peersTaint], 40, "a peer's goes along")
	assert.Len(t, got[othersTaint], nodeCount, "others' taints stay")
	assert.Empty(t, got[putBack])
	assert.Equal(t, nodeCount-40, w.patches(), "one write for each node")
	eventually(t, "events", func() bool { return slices.Contains(w.Events(t, "default")[nodeName(100)], "AgentTaintRemoved") })

	// Agents that flap, and an upgrade in which the new one is ready before the old one goes.
	each(100, 200, func(i int) {
		w.declare(i, []string{"v1", "v2"}[i%2], false)
		w.declare(i, []string{"v1", "v2"}[i%2], true)
	})
	each(200, 300, func(i int) {
		w.agent(i, "v3", true)
		w.Remove(t, agentNamespace, agentName(i, []string{"v1", "v2"}[i%2]))
	})
	// Agents that go for good, while the one that leads is killed and another program changes taints of the same nodes.
	each(400, 430, func(i int) { w.declare(i, []string{"v1", "v2"}[i%2], false) })
	eventually(t, "seen", func() bool { return state(one, "gone") == 30 })
	before := w.patches()
	require.NoError(t, one.cmd.Process.Kill())
	var others sync.WaitGroup
	stop := make(chan struct{})
	for i := range 3 {
		others.Go(func() { w.meddle(400+i*10, stop) })
	}
	eventually(t, "two takes over", func() bool { return two.metric(t, "meshcni_taint_leader") == 1 })
	eventually(t, "the taint is put back", func() bool { return len(w.taints()[putBack]) == 30 })
	close(stop)
	others.Wait()
	got = w.taints()
	for i, name := range got[putBack] {
		assert.Equal(t, nodeName(400+i), name)
	}
	assert.Len(t, got["example.com/meddler"], 30, "what another program set meanwhile is there")
	assert.Len(t, got[othersTaint], nodeCount)
	conflicts := 0
	for _, c := range w.server.Audit(t) {
		if c.User.Username == w.user && c.Verb == "patch" && c.ObjectRef.Resource == "nodes" && c.ResponseStatus.Code == http.StatusConflict {
			conflicts++
		}
	}
	assert.Equal(t, 30, w.patches()-before-conflicts, "nothing is written twice")
	assert.Zero(t, two.metric(t, "meshcni_taint_breaker_open"))

	// Most agents go at once: by a label that is gone, by being deleted, by not being ready.
	each(5, 400, func(i int) {
		name := agentName(i, []string{"v1", "v2"}[i%2])
		if i >= 200 && i < 300 {
			name = agentName(i, "v3")
		}
		w.Remove(t, agentNamespace, name)
	})
	eventually(t, "the breaker is open", func() bool { return two.metric(t, "meshcni_taint_breaker_open") == 1 })
	eventually(t, "the share is used up", func() bool { return len(w.taints()[putBack]) == taintMost })
	eventually(t, "the rest is held", func() bool { return state(two, "held") == 395+30-taintMost })
	assert.Len(t, w.taints()[putBack], taintMost, "and no more")
	eventually(t, "the event", func() bool { return slices.Contains(w.Events(t, agentNamespace)["meshcni-node"], "AgentTaintHeld") })
	assert.Len(t, w.taints()[taintKey], 40, "those of the registration do not count")

	// They are back.
	each(5, 430, func(i int) {
		if i < 400 {
			w.agent(i, "v4", true)
		} else {
			w.declare(i, []string{"v1", "v2"}[i%2], true)
		}
	})
	eventually(t, "all is well", func() bool { return len(w.taints()[putBack]) == 0 && two.metric(t, "meshcni_taint_breaker_open") == 0 })
	assert.NotContains(t, fmt.Sprint(w.server.Calls(t, w.user)), "FORBIDDEN")

	now, peak := rss(t, two.cmd.Process.Pid)
	t.Logf("the controller of %d nodes has %.0f MB, and had %.0f at most", nodeCount, now, peak)
	assert.Less(t, peak, chartMemory(t).limit, "MB that the chart allows it")
	assert.Less(t, now, chartMemory(t).request, "MB that the chart asks for")

	// The agents' DaemonSet is deleted: that they go is meant.
	w.Do(t, http.MethodDelete, "/apis/apps/v1/namespaces/"+agentNamespace+"/daemonsets/meshcni-node", nil, nil)
	eventually(t, "seen", func() bool { return state(two, "ready") == 0 })
	require.NoError(t, two.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, two.cmd.Wait(), "%s", two.log)

	out, err := exec.Command(w.program, "remove", "--kubeconfig="+w.server.Kubeconfig(t, w.token), "--also-remove="+peersTaint).Output()
	require.NoError(t, err)
	assert.Equal(t, "The taint "+taintKey+" is removed from 40 nodes.\n", string(out))
	got = w.taints()
	assert.Empty(t, slices.Concat(got[taintKey], got[putBack], got[peersTaint]))
	assert.Len(t, got[othersTaint], nodeCount)
}

// memory is in MB.
type memory struct{ request, limit float64 }

// chartMemory is what the chart gives the controller.
func chartMemory(t *testing.T) memory {
	t.Helper()
	text, err := os.ReadFile("../../deploy/helm/meshcni/values.yaml")
	require.NoError(t, err)
	var values struct {
		Taint struct{ Resources corev1.ResourceRequirements }
	}
	require.NoError(t, yaml.Unmarshal(text, &values))
	mb := func(l corev1.ResourceList) float64 { return float64(l.Memory().Value()) / (1 << 20) }
	return memory{mb(values.Taint.Resources.Requests), mb(values.Taint.Resources.Limits)}
}

// meddle sets a taint of its own on ten nodes and takes it away again, each time as others do: what it has read, less or more its
// own, unless the node has changed. In the end the taint is there.
func (w *taintWorld) meddle(from int, stop <-chan struct{}) {
	const key = "example.com/meddler"
	for last := false; !last; {
		select {
		case <-stop:
			last = true
		default:
		}
		for i := from; i < from+10; i++ {
			for {
				var node corev1.Node
				w.Do(w.t, http.MethodGet, "/api/v1/nodes/"+nodeName(i), nil, &node)
				had := len(node.Spec.Taints)
				taints := slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
				if len(taints) == had || last {
					taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
				}
				err := w.Try(http.MethodPatch, "/api/v1/nodes/"+node.Name, map[string]any{
					"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "spec": map[string]any{"taints": taints},
				}, nil)
				if err == nil {
					break
				}
				if !strings.Contains(err.Error(), "409") {
					w.t.Error(err)
					return
				}
			}
		}
	}
}

// TestTaintOutage: while the API server is away, an agent that had just begun to be missed comes back. When the API server answers
// again, what the controller knew from before is not acted upon.
func TestTaintOutage(t *testing.T) {
	t.Parallel()
	w := newTaintWorld(t, windowsCount+3)
	p := w.controller("one", "--grace=5s")
	eventually(t, "one leads", func() bool { return p.metric(t, "meshcni_taint_leader") == 1 })
	other := w.controller("two", "--grace=5s")
	for i := windowsCount; i < windowsCount+3; i++ {
		w.agent(i, "v1", true)
	}
	eventually(t, "ready", func() bool { return p.metric(t, `meshcni_taint_nodes{state="ready"}`) == 3 })
	w.declare(windowsCount, "v1", false)
	eventually(t, "seen", func() bool { return p.metric(t, `meshcni_taint_nodes{state="gone"}`) == 1 })
	w.server.StopAPI()
	// It ends when it could not renew its Lease for long.
	eventually(t, "it wants to act", func() bool { return p.metric(t, "meshcni_taint_failures_total") > 0 || p.get(t, "/healthz") == "" })
	// Held, they cannot look before the agent is back, when it is still rightly missed. One that has ended is none to hold.
	for _, held := range []*process{p, other} {
		_ = held.cmd.Process.Signal(syscall.SIGSTOP)
	}
	require.NoError(t, w.server.StartAPI())
	w.declare(windowsCount, "v1", true)
	for _, held := range []*process{p, other} {
		_ = held.cmd.Process.Signal(syscall.SIGCONT)
	}
	const ready, added = `meshcni_taint_nodes{state="ready"}`, `meshcni_taint_changes_total{change="add",reason="agent-gone"}`
	eventually(t, "seen", func() bool { return p.metric(t, ready) == 3 || other.metric(t, ready) == 3 })
	assert.Zero(t, p.metric(t, added)+other.metric(t, added))
	assert.Empty(t, w.taints()[putBack])
}

// TestTaintRole: the role of deploy/rbac grants what the controller does, and nothing that would be tempting besides.
func TestTaintRole(t *testing.T) {
	t.Parallel()
	w := newTaintWorld(t, windowsCount+1)
	p := w.controller("one", "--grace=1s")
	w.agent(windowsCount, "v1", true)
	eventually(t, "removed", func() bool { return len(w.taints()[taintKey]) == 0 })
	w.Remove(t, agentNamespace, agentName(windowsCount, "v1"))
	eventually(t, "put back", func() bool { return len(w.taints()[putBack]) == 1 })
	eventually(t, "events", func() bool { return w.server.Calls(t, w.user)["create events"] > 0 })
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, p.cmd.Wait(), "%s", p.log)
	var did []string
	for call := range w.server.Calls(t, w.user) {
		did = append(did, call)
	}
	slices.Sort(did)
	assert.Subset(t, []string{
		"create events", "create leases.coordination.k8s.io", "get leases.coordination.k8s.io", "get nodes", "list daemonsets.apps", "list nodes",
		"list pods", "patch events", "patch nodes", "update leases.coordination.k8s.io", "watch daemonsets.apps", "watch nodes", "watch pods",
	}, did)

	// What it may do in the namespaces that it has to do with, and in others.
	granted := map[string]string{
		"get nodes": "*", "list nodes": "*", "watch nodes": "*", "patch nodes": "*",
		"list pods": agentNamespace, "watch pods": agentNamespace, "create leases.coordination.k8s.io": agentNamespace,
		"create events": agentNamespace + " default", "patch events": agentNamespace + " default",
	}
	for resource := range strings.FieldsSeq("pods pods/status pods/eviction pods/exec events nodes nodes/status nodes/proxy namespaces secrets configmaps " +
		"serviceaccounts/token leases.coordination.k8s.io daemonsets.apps deployments.apps clusterroles.rbac.authorization.k8s.io") {
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
			for _, namespace := range []string{agentNamespace, "default", "kube-system"} {
				permission := permission(verb, resource)
				permission.Namespace = namespace
				want := granted[verb+" "+resource]
				assert.Equal(t, want == "*" || slices.Contains(strings.Fields(want), namespace), allowed(t, w.admin, w.user, permission), "%s %s in %s", verb, resource, namespace)
			}
		}
	}
	for verb, want := range map[string]bool{"get": true, "update": true, "patch": false, "delete": false} {
		lease := api.Right{Verb: verb, Group: "coordination.k8s.io", Resource: "leases", Namespace: agentNamespace, Name: "meshcni-taint"}
		assert.Equal(t, want, allowed(t, w.admin, w.user, lease), "%s its Lease", verb)
		lease.Name = "another"
		assert.False(t, allowed(t, w.admin, w.user, lease), "%s another Lease", verb)
	}
}
