package kubectlcmd

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// TestCheck: a sound installation has no findings, and each thing that is wrong has its own.
func TestCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	code, out, _ := w.run(t, "check")
	assert.Equal(t, exitUnknown, code)
	assert.Contains(t, out, "unknown: no-agents: there is no node")

	w.Node(t, "a", kubectltest.Sound("a"))
	w.MeshPod(t, "shop", "cart", "a")
	code, out, _ = w.run(t, "check")
	assert.Equal(t, exitWrong, code)
	for _, verb := range []string{"list", "watch"} {
		assert.Contains(t, out, "error: agent-rights: may not "+verb+" pods: without it the agent does not know its node's pods\n  system:serviceaccount:meshcni-system:default\n")
	}
	w.Grant(t, "agent", "system:serviceaccount:meshcni-system:default", map[string][]string{"pods": {"list", "watch"}})
	code, out, errOut := w.run(t, "check")
	assert.Equal(t, exitOK, code, errOut)
	assert.Equal(t, []string{"checking the nodes", "checking the accounts' rights", "checking the meshes' injectors", "checking the pods"}, kubectltest.Lines(errOut))
	assert.Equal(t, "1 node and 1 pod were looked at: 0 findings\n", out)

	w.Node(t, "b", kubectltest.Silent)
	code, out, _ = w.run(t, "check", "-o", "json")
	assert.Equal(t, exitUnknown, code)
	r := kubectltest.Decode[report](t, out)
	require.Len(t, r.Findings, 1)
	assert.Equal(t, codeAgentSilent, r.Findings[0].Code)
	assert.Equal(t, []string{"node/b"}, r.Findings[0].Where)
	assert.Equal(t, urlOf(codeAgentSilent), r.Findings[0].Page)

	w.Node(t, "c", nil)
	w.Node(t, "d", kubectltest.Sound("d", func(n *agentapi.Node) {
		n.Version, n.Ready = "v1.2.4", false
		n.News = []status.News{
			news.New(status.KindReadiness, "fight", "another program rewrites the file"), news.New(status.KindReadiness, codeNoBackend, "no iptables"), // which has a finding of its own
			news.New(status.KindNotice, news.OtherMesh, "linkerd-cni is in the list"), news.New(status.KindPod, news.Uncaptured, "1 of the node's pods"),
			news.New(status.KindFinding, news.Detection, "may not list"), news.New(status.KindFinding, news.NotEvicting, "no policy"), news.Refused("add_deadline"),
			{Kind: status.KindNotice, Code: news.OwnFileTaken, Text: "it stays so"}, // nobody has to look at it
		}
		n.BackendError = "no iptables"
		n.Installed.Loaded, n.Installed.CNIVersion, n.Installed.Plugins, n.Installed.Unknown = "/host/etc/cni/net.d/00-y.conflist", "0.3.1", []string{"bridge", "meshcni", "linkerd-cni"}, []string{"dialekt"}
		n.Installed.Config = json.RawMessage(strings.Replace(kubectltest.Entry, `"quiet"`, `"silent"`, 1))
		n.Pods = []status.Pod{
			{ID: status.ID{Namespace: "shop", Name: "late"}, State: "failed", Reason: "not-called"}, {ID: status.ID{Namespace: "shop", Name: "later"}, State: "failed", Reason: "not-called"},
			{ID: status.ID{Namespace: "shop", Name: "odd"}, State: "drifted", Reason: "rules"},
			{ID: status.ID{Namespace: "shop", Name: "slow"}, State: "waiting", Reason: "no-proxy"}, {ID: status.ID{Namespace: "shop", Name: "bad"}, State: "waiting", Reason: "pod-refused"}, {ID: status.ID{Namespace: "shop", Name: "who"}, State: "unknown", Reason: "no-trace"},
		}
	}))
	w.Node(t, "e", kubectltest.Sound("e", func(n *agentapi.Node) {
		n.Installed = agentapi.Installed{Error: "no entry of type meshcni"}
	}))
	w.Node(t, "f", kubectltest.Sound("f", func(n *agentapi.Node) {
		n.Installed.Config = json.RawMessage(strings.Replace(kubectltest.Entry, `"istio"`, `"unheard-of"`, 1))
	}))
	w.Node(t, "g", kubectltest.Sound("g", func(n *agentapi.Node) {
		n.Installed = agentapi.Installed{Unread: true, Error: "permission denied"}
	}))
	w.Node(t, "h", kubectltest.Sound("h", func(n *agentapi.Node) {
		n.Installed.Config, n.Installed.Error = nil, "backend: no such backend"
	}))
	w.MeshPod(t, "quiet", "left-out", "a")
	w.MeshPod(t, "shop", "by-init", "a", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "istio-init", Image: "i", Args: []string{"istio-iptables"}}}
	})
	w.MeshPod(t, "shop", "linked", "a", func(p *corev1.Pod) {
		p.Annotations, p.Spec.Containers[1].Name = map[string]string{"linkerd.io/proxy-version": "v1"}, "linkerd-proxy"
	})
	w.MeshPod(t, "shop", "wrong", "a", func(p *corev1.Pod) {
		p.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "80a"
	})
	w.MeshPod(t, "shop", "plain", "a", func(p *corev1.Pod) { p.Annotations, p.Spec.Containers = nil, p.Spec.Containers[:1] })
	w.MeshPod(t, "shop", "hosts", "a", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	code, out, _ = w.run(t, "check", "-o", "json")
	assert.Equal(t, exitWrong, code)
	found := map[status.Code][]string{}
	for _, f := range kubectltest.Decode[report](t, out).Findings {
		found[f.Code] = append(found[f.Code], f.Where...)
		if f.Where == nil {
			found[f.Code] = append(found[f.Code], "")
		}
		assert.NotEmpty(t, f.Text, f.Code)
		assert.Equal(t, remedy(f.Code), f.Remedy)
		if f.Code == codeConfigurationOdd {
			assert.Equal(t, f.Where[0] == "node/h", f.Level == levelError, f.Text)
		}
	}
	assert.Equal(t, map[status.Code][]string{
		codeNodeWithoutAgent: {"node/c"}, codeAgentSilent: {"node/b"}, codeNodeNotReady: {"node/d"}, codeNodeWarning: {"node/d"}, codeConfigRefused: {"node/d"}, codeNotEvicting: {"node/d"}, codeOtherMesh: {"node/d"}, codeNotInstalled: {"node/e"},
		codeNotLoaded: {"node/d"}, codeNotLast: {"node/d"}, codeCNIVersionOld: {"node/d"}, codeUnknownKeys: {"node/d"}, codeNoBackend: {"node/d"}, codeVersionsDiffer: {""}, codeSettingsDiffer: {""},
		codePodBypasses: {"pod/shop/late", "pod/shop/later"}, codePodDrifted: {"pod/shop/odd"}, codePodWaiting: {"pod/shop/slow"}, codeExcludedInjected: {"pod/quiet/left-out"},
		codeOwnInit: {"pod/shop/by-init"}, codeOtherDialect: {"pod/shop/linked"}, codePodRefused: {"pod/shop/wrong"}, codeConfigurationOdd: {"node/h", "node/g", "node/f"},
	}, found)

	// Whoever may not ask is told so, and hears the rest.
	token := w.ServiceAccount(t, "shop", "viewer")
	w.Grant(t, "viewer", "system:serviceaccount:shop:viewer", map[string][]string{"nodes": {"list"}, "pods": {"list", "get"}, "daemonsets.apps": {"list"}})
	code, out, _ = w.run(t, "--kubeconfig", w.Server.Kubeconfig(t, token), "check")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, out, "unknown: agent-rights: whether the agents' account has its rights cannot be asked: ")
	assert.Contains(t, out, "unknown: pods-not-known: list namespaces: ")
	assert.Contains(t, out, "error: pod-bypasses: not-called\n  pod/shop/late, pod/shop/later\n  what to do: "+remedy(codePodBypasses)+"\n  "+urlOf(codePodBypasses)+"\n")
}

// TestNodeUnwanted: a node without agent that the DaemonSets leave out is told from one whose agent is missing, by check and status.
func TestNodeUnwanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Bind(t, "meshcni-system")
	set := kubectltest.AgentSet("meshcni-system", "meshcni-node")
	set.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: "NotIn", Values: []string{"bare"}}}}},
	}}}
	w.Set = w.DaemonSet(t, set)
	left := func(name string) {
		w.Do(t, http.MethodPost, "/api/v1/nodes", &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "bare"}},
		}, nil)
	}
	why := errUnwanted.Error() + " (DaemonSet meshcni-system/meshcni-node does not want the node: its nodeSelector or affinity leaves the node out)"
	left("left")
	code, out, _ := w.run(t, "check")
	assert.Equal(t, exitWrong, code)
	assert.Contains(t, out, "error: node-unwanted: "+why+"\n  node/left\n  what to do: "+remedy(codeNodeUnwanted)+"\n")
	assert.NotContains(t, out, "no-agents", "the chart is installed")

	left("left-too")
	w.Node(t, "a", kubectltest.Sound("a"))
	w.Node(t, "late", nil)
	_, out, _ = w.run(t, "check", "-o", "json")
	found := map[status.Code][]string{}
	for _, f := range kubectltest.Decode[report](t, out).Findings {
		found[f.Code] = append(found[f.Code], f.Where...)
	}
	assert.Equal(t, []string{"node/left", "node/left-too"}, found[codeNodeUnwanted])
	assert.Equal(t, []string{"node/late"}, found[codeNodeWithoutAgent])
	_, out, _ = w.run(t, "status")
	assert.Contains(t, out, "left is no-agent: "+why+"\n")
	assert.NotContains(t, out, "late is no-agent")

	// One of two that wants the node, or may, has it.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "left", Labels: map[string]string{"pool": "bare"}}}
	odd := set.DeepCopy()
	odd.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Operator = "Near"
	assert.NoError(t, unwanted(node, nil))
	assert.NoError(t, unwanted(node, []*appsv1.DaemonSet{set, kubectltest.AgentSet("canary", "meshcni-node")}))
	assert.NoError(t, unwanted(node, []*appsv1.DaemonSet{set, odd}))
	assert.ErrorIs(t, unwanted(node, []*appsv1.DaemonSet{set, set}), agents.ErrNoAgent)
}

// TestCheckWithoutNamespace: a pod whose Namespace is not known is neither refused nor sound.
func TestCheckWithoutNamespace(t *testing.T) {
	for _, meshes := range []string{`"istio"`, `["istio","ambient"]`} {
		d := &deciding{text: []byte(strings.Replace(kubectltest.Entry, `"dialect":"istio"`, `"dialect":`+meshes, 1))}
		require.NoError(t, d.parse(own, builtin.All()))
		f := &findings{product: own, known: map[[2]string]*finding{}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "new", Name: "cart"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		f.pod(t.Context(), &judged{pod: pod, d: d})
		require.Len(t, f.all, 1, meshes)
		assert.Equal(t, finding{
			Code: codePodsNotKnown, Level: levelUnknown, Where: []string{"pod/new/cart"}, Count: 1, Text: f.all[0].Text, Remedy: remedy(codePodsNotKnown), Page: urlOf(codePodsNotKnown),
		}, *f.all[0])
		f = &findings{product: own, known: map[[2]string]*finding{}}
		known := &judged{pod: pod, namespace: &corev1.Namespace{}, d: d}
		require.NoError(t, known.decide())
		f.pod(t.Context(), known)
		assert.Empty(t, f.all, meshes)
	}
}

// TestCodes: package status has each code of a finding, and no other; internal/doctest writes the page of it.
func TestCodes(t *testing.T) {
	source, err := os.ReadFile("checkfindings.go")
	require.NoError(t, err)
	var codes []status.Code
	for _, m := range regexp.MustCompile(`(?m)^\tcode\w+ +status\.Code += "([\w-]+)"`).FindAllStringSubmatch(string(source), -1) {
		codes = append(codes, status.Code(m[1]))
	}
	assert.ElementsMatch(t, status.Codes(status.KindFinding), codes)
}

func urlOf(c status.Code) string {
	row, _ := status.Lookup(status.KindFinding, c)
	return row.URL(own)
}

func remedy(c status.Code) string {
	row, _ := status.Lookup(status.KindFinding, c)
	return row.Remedy()
}
