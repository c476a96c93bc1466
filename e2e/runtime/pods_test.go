package runtime

import (
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// What is excluded in the tests' pods that exclude something.
const (
	excludedOut = 3306
	excludedIn  = 9090
	hostPort    = 18080
)

// plain is a pod without a mesh: one container that answers at 8080 and 9090 as
// user 1000.
func plain(namespace, name string) *corev1.Pod {
	no := false
	return &corev1.Pod{
		ObjectMeta: podMeta(namespace, name),
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no, NodeName: "node-1",
			Containers: []corev1.Container{{
				Name: "app", Image: image.Tool, Args: []string{"serve", "8080", strconv.Itoa(excludedIn)}, SecurityContext: runAs(1000),
			}},
		},
	}
}

// meshed is one that an injector has been at, with a proxy.
func meshed(namespace, name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := plain(namespace, name)
	pod.Annotations[istio.StatusAnnotation] = `{"initContainers":["istio-validation"],"containers":["istio-proxy"]}`
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
		Name: "istio-proxy", Image: image.Tool, Args: []string{"proxy", "sidecar"}, SecurityContext: runAs(1337),
	})
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func runAs(id int64) *corev1.SecurityContext {
	return &corev1.SecurityContext{RunAsUser: &id, RunAsGroup: &id}
}

func annotate(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations[key] = value }
}

// proxyEnv sets a variable of the proxy's container.
func proxyEnv(name, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[len(pod.Spec.Containers)-1]
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

// transparent has inbound connections keep their addresses, which takes a proxy
// with the right to answer for others.
func transparent(pod *corev1.Pod) {
	annotate(istio.InterceptionMode, "TPROXY")(pod)
	c := &pod.Spec.Containers[len(pod.Spec.Containers)-1]
	c.Args = append(c.Args, "transparent")
	*c.SecurityContext.RunAsUser = 0
	group := int64(1337)
	c.SecurityContext.RunAsGroup = &group
	c.SecurityContext.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}
}

func excluding(pod *corev1.Pod) {
	annotate(istio.ExcludeOutboundPorts, strconv.Itoa(excludedOut))(pod)
	annotate(istio.ExcludeInboundPorts, strconv.Itoa(excludedIn))(pod)
}

func withHostPort(pod *corev1.Pod) {
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: hostPort, Protocol: corev1.ProtocolTCP}}
}

// from makes connections from a container of the pod and returns what each came
// to.
func from(t testing.TB, s *sandbox, container string, probes ...string) map[string]string {
	t.Helper()
	out, err := s.Exec(t.Context(), container, append([]string{image.ToolPath, "probe"}, probes...)...)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	require.Len(t, lines, len(probes), "%s", out)
	got := map[string]string{}
	for i, p := range probes {
		got[p], _, _ = strings.Cut(lines[i], " peer=")
	}
	return got
}

// requireFates makes the connections from a container, all at once, and compares.
func requireFates(t testing.TB, s *sandbox, container string, want map[string]string) {
	t.Helper()
	require.Equal(t, want, from(t, s, container, slices.Sorted(maps.Keys(want))...))
}

// fromHost makes a connection from the host and returns the answer, without who
// the peer was.
func fromHost(address string) string {
	answer, _, _ := strings.Cut(fromHostAs("", address), " peer=")
	return answer
}

// fromHostAs is fromHost from one of the machine's addresses, "" for any, with whom
// the pod took for its peer.
func fromHostAs(source, address string) string {
	d := net.Dialer{Timeout: netnstest.Patience}
	if source != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
	}
	conn, err := d.Dial("tcp", address)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(netnstest.Patience))
	buf := make([]byte, 200)
	n, err := conn.Read(buf)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(buf[:n]))
}

func at(addr netip.Addr, port int) string {
	return net.JoinHostPort(addr.String(), strconv.Itoa(port))
}

func hostAt(addr string, port int) string { return net.JoinHostPort(addr, strconv.Itoa(port)) }

// serving waits until the pod's containers answer, asked from within: the proxy
// among them if it has one.
func serving(t testing.TB, s *sandbox) {
	t.Helper()
	probes := []string{"tcp:127.0.0.1:8080"}
	if len(s.Pod.Spec.Containers) > 1 {
		probes = append(probes, "tcp:127.0.0.1:15001", "tcp:127.0.0.1:15006", "dnstcp:127.0.0.1:15053")
	}
	eventually(t, "the pod's containers answer", func() error {
		for p, answer := range from(t, s, "app", probes...) {
			if answer == "refused" {
				return &net.AddrError{Err: answer, Addr: p}
			}
		}
		return nil
	})
}

// addrs are the pod's, the first of IPv4 and then that of IPv6 if it has one.
func addrs(t testing.TB, s *sandbox) []netip.Addr {
	t.Helper()
	ips, err := s.IPs(t.Context())
	require.NoError(t, err)
	return ips
}

// requireCaptured shows by packets that the pod's connections go through its
// proxy, one out and one in.
func requireCaptured(t testing.TB, s *sandbox) {
	t.Helper()
	serving(t, s)
	ip := addrs(t, s)[0]
	out := "tcp:" + hostAt(nowhere4, 80)
	requireFates(t, s, "app", map[string]string{out: "proxy:15001 orig=" + hostAt(nowhere4, 80)})
	require.Equal(t, "proxy:15006 orig="+at(ip, 8080), fromHost(at(ip, 8080)))
}

// requireFree shows that they don't.
func requireFree(t testing.TB, s *sandbox) {
	t.Helper()
	serving(t, s)
	ip := addrs(t, s)[0]
	out := "tcp:" + hostAt(elsewhere4, 80)
	requireFates(t, s, "app", map[string]string{out: "elsewhere:80"})
	require.Equal(t, "app:8080 orig="+at(ip, 8080), fromHost(at(ip, 8080)))
}
