package kubectlcmd

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/meshcni/meshcni/internal/api/rights"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// The fleet's shape: pods of each node, and the namespaces that they are in.
const (
	fleetPods       = 110 // as many as a kubelet takes by default
	fleetNamespaces = 200
)

// fleetNodes, in the environment, makes the test's program the API server of so many nodes.
const fleetNodes = "MESHCNI_TEST_FLEET_NODES"

// fleet is a stand-in for an API server and for the agents behind it. It makes up its answers when it is asked, so that its own size
// does not depend on the cluster's. It refuses WebSockets, as older API servers do: each agent is then asked with one request more.
type fleet struct {
	nodes               int
	pod                 []byte // in protobuf, with placeholders for names that are as long as these
	agent, node, answer string // with NODE for its name
	set                 *appsv1.DaemonSet
}

// serveFleet serves until standard input ends. It prints a kubeconfig.
func serveFleet() error {
	nodes, err := strconv.Atoi(os.Getenv(fleetNodes))
	if err != nil {
		return err
	}
	f := fleet{nodes: nodes}
	f.render()
	server := httptest.NewUnstartedServer(f.handler())
	server.EnableHTTP2 = true
	server.StartTLS()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
	config.AuthInfos["u"], config.Contexts["x"] = &clientcmdapi.AuthInfo{Token: "t"}, &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	text, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if _, err = os.Stdout.Write(append(text, "---\n"...)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// render makes the texts. A pod's has the size of one that Istio's injector has made and a kubelet runs.
func (f *fleet) render() {
	meta := func(namespace, name string, l map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(name + "-0000-0000-0000-000000000000"), ResourceVersion: "1234567", Labels: l, CreationTimestamp: metav1.Unix(1e9, 0),
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(
				`{"f:spec":{` + strings.TrimSuffix(strings.Repeat(`"k:{\"name\":\"istio-proxy\"}":{".":{},"f:env":{}},`, 30), ",") + `}}`,
			)}},
		}
	}
	var env []corev1.EnvVar
	for i := range 40 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("ISTIO_META_SETTING_%d", i), Value: "a-value-of-middling-length"})
	}
	uid := int64(1337)
	pod := corev1.Pod{ObjectMeta: meta("ns-NNN", "node-9999-PPP", map[string]string{"app": "node-9999-PPP"}), Spec: corev1.PodSpec{NodeName: "node-9999", Containers: []corev1.Container{
		{Name: "app", Image: "registry.example/app:v1", Env: env[:10]},
		{Name: "istio-proxy", Image: "registry.example/proxyv2:1.30", Args: []string{"proxy", "sidecar"}, Env: env, SecurityContext: &corev1.SecurityContext{RunAsUser: &uid, RunAsGroup: &uid}},
	}}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}}
	pod.Annotations = map[string]string{"sidecar.istio.io/status": strings.Repeat("x", 500)}
	for i := range 8 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("volume-", i), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprint("Condition", i)), Status: corev1.ConditionTrue})
	}
	f.set = kubectltest.AgentSet("meshcni-system", "meshcni-node")
	f.set.UID = "meshcni-node"
	owned := meta("meshcni-system", "meshcni-node-NODE", kubectltest.AgentLabels)
	owned.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(f.set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	agent := corev1.Pod{ObjectMeta: owned, Spec: corev1.PodSpec{
		NodeName: "NODE", HostNetwork: true, ServiceAccountName: "meshcni-node", Containers: []corev1.Container{{
			Name: "agent", Image: "i", Env: env, ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8000)}}},
			VolumeMounts: []corev1.VolumeMount{{Name: "run", MountPath: "/var/run/meshcni"}},
		}}, Volumes: []corev1.Volume{{Name: "run", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/run/meshcni"}}}},
	}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	said, _ := kubectltest.Sound("NODE")(agentapi.NodePath)
	answer := said.(agentapi.Node)
	answer.Pods = nil
	for p := range fleetPods {
		answer.Pods = append(answer.Pods, status.Pod{ID: status.ID{Namespace: "ns-1", Name: fmt.Sprint("NODE-", p), UID: fmt.Sprint("NODE-", p)}, Dialect: "istio", State: status.StateCaptured, Reason: "recorded", Backend: "nftables"})
	}
	answer.Rights = rights.Agent(rights.Needs{Namespace: "meshcni-system", Node: "NODE", PluginAccount: "meshcni-plugin", Serves: true})
	answer.Places = []agentapi.Place{{Flag: "run-dir", Path: "/var/run/meshcni", Host: "/var/run/meshcni", Writes: true}}
	answer.BinDirs = []agentapi.BinDir{{Path: "/host/opt/cni/bin", Plugin: agentapi.Current}}
	node := corev1.Node{ObjectMeta: meta("", "NODE", nil)}
	f.pod, _ = pod.Marshal() // which it always can
	for text, object := range map[*string]any{&f.agent: agent, &f.node: node, &f.answer: answer} {
		data, err := json.Marshal(object)
		if err != nil {
			panic(err) // they are the API's own
		}
		*text = string(data)
	}
}

func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

func (f *fleet) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		f.list(w, r, "NodeList", f.nodes, func(i int) string { return strings.ReplaceAll(f.node, "NODE", nodeName(i)) })
	})
	mux.HandleFunc("GET /api/v1/namespaces", func(w http.ResponseWriter, r *http.Request) {
		f.list(w, r, "NamespaceList", fleetNamespaces, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"name":"ns-%03d","labels":{"istio-injection":"enabled"}}}`, i)
		})
	})
	mux.HandleFunc("GET /api/v1/pods", f.listPods)
	mux.HandleFunc("GET /api/v1/namespaces/meshcni-system/pods", func(w http.ResponseWriter, r *http.Request) {
		n := 0
		if strings.Contains(r.URL.Query().Get("labelSelector"), "component=node") { // not the taint's controller
			n = f.nodes
		}
		f.list(w, r, "PodList", n, func(i int) string { return strings.ReplaceAll(f.agent, "NODE", nodeName(i)) })
	})
	mux.HandleFunc("GET /apis/apps/v1/namespaces/meshcni-system/daemonsets", func(w http.ResponseWriter, r *http.Request) {
		f.list(w, r, "DaemonSetList", 1, func(int) string {
			text, _ := json.Marshal(f.set) // which it always can
			return string(text)
		})
	})
	mux.HandleFunc("GET /apis/rbac.authorization.k8s.io/v1/clusterrolebindings", func(w http.ResponseWriter, r *http.Request) {
		f.list(w, r, "ClusterRoleBindingList", 1, func(int) string {
			return `{"metadata":{"name":"meshcni-plugin"},"subjects":[{"kind":"ServiceAccount","namespace":"meshcni-system","name":"meshcni-plugin"}]}`
		})
	})
	mux.HandleFunc("GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", func(w http.ResponseWriter, r *http.Request) {
		f.list(w, r, "MutatingWebhookConfigurationList", 0, nil)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
	})
	mux.HandleFunc("POST /api/v1/namespaces/meshcni-system/pods/{name}/portforward", f.forward)
	return mux
}

// pageOf returns which of n objects are asked for, and where the next page begins.
func pageOf(r *http.Request, n int) (from, to int, next string) {
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	from, _ = strconv.Atoi(r.URL.Query().Get("continue"))
	if limit == 0 {
		limit = n
	}
	if to = min(n, from+limit); to < n {
		next = strconv.Itoa(to)
	}
	return from, to, next
}

// listPods writes one page of the fleet's pods as API servers do for those who read protobuf.
func (f *fleet) listPods(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
		http.Error(w, "only protobuf", http.StatusNotAcceptable)
		return
	}
	from, to, next := pageOf(r, f.nodes*fleetPods)
	head := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1", Continue: next}}
	raw, _ := head.Marshal()
	for i := from; i < to; i++ {
		node := nodeName(i / fleetPods)
		pod := bytes.ReplaceAll(f.pod, []byte("node-9999"), []byte(node))
		pod = bytes.ReplaceAll(pod, []byte("PPP"), fmt.Appendf(nil, "%03d", i%fleetPods))
		pod = bytes.ReplaceAll(pod, []byte("ns-NNN"), fmt.Appendf(nil, "ns-%03d", i%fleetNamespaces))
		const items = 2<<3 | 2 // the field of PodList, which has a length
		raw = append(binary.AppendUvarint(append(raw, items), uint64(len(pod))), pod...)
	}
	answer := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Raw: raw}
	data, _ := answer.Marshal()
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(append([]byte("k8s\x00"), data...))
}

// list writes one page of a list.
func (f *fleet) list(w http.ResponseWriter, r *http.Request, kind string, n int, item func(i int) string) {
	from, to, next := pageOf(r, n)
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, 64<<10)
	fmt.Fprintf(out, `{"kind":%q,"metadata":{"resourceVersion":"1","continue":%q},"items":[`, kind, next)
	for i := from; i < to; i++ {
		if i > from {
			_ = out.WriteByte(',')
		}
		_, _ = out.WriteString(item(i))
	}
	_, _ = out.WriteString("]}")
	_ = out.Flush()
}

// forward is an agent behind a forwarded port.
func (f *fleet) forward(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
		return
	}
	streams := make(chan httpstream.Stream, 2)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		streams <- s
		return nil
	})
	if conn == nil {
		return
	}
	defer func() { _ = conn.Close() }()
	failed, data := <-streams, <-streams
	if failed.Headers().Get(corev1.StreamType) != corev1.StreamTypeError {
		failed, data = data, failed
	}
	if asked, err := http.ReadRequest(bufio.NewReader(data)); err == nil && asked.URL.Path == agentapi.NodePath {
		text := strings.ReplaceAll(f.answer, "NODE", strings.TrimPrefix(r.PathValue("name"), "meshcni-node-"))
		_, _ = fmt.Fprintf(data, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
	}
	_, _ = data.Close(), failed.Close()
	<-conn.CloseChan()
}
