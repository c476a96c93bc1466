package envoy

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/e2e/internal/envoy"
	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// programs is where the plugin is built, once for all tests.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "envoy-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

const (
	appID   = 1000
	proxyID = 1337
)

// The addresses of netnstest's world, IPv4 and IPv6.
var (
	podIP     = addrs("10.244.1.5", "fd00:10:244::5")
	clientIP  = addrs("10.244.1.1", "fd00:10:244::1") // also another pod's, as a headless service has it
	serviceIP = addrs("10.96.5.5", "fd00:96::5")
	ownIP     = addrs("10.96.7.7", "fd00:96::77") // the service of the pod itself, which only Envoy knows
	excluded  = addrs("198.51.100.10", "2001:db8::10")
	families  = []string{"IPv4", "IPv6"}
)

const ownPort = 80

func addrs(text ...string) (list []netip.Addr) {
	for _, a := range text {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

var backends = []ruleset.Backend{ruleset.BackendNftables, ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy}

// pod is a pod with Envoy beside its application, and what is outside.
type pod struct {
	world    *netnstest.World
	app, out *servers
	proxy    *envoy.Proxy
	add      binarytest.Attachment

	fromApp caller // the pod's application
	fromOut caller // a client outside
}

// newPod makes the world with its servers, has the built plugin redirect the pod, and starts Envoy.
func newPod(t testing.TB, backend ruleset.Backend, object *corev1.Pod, shape envoy.Shape) *pod {
	t.Helper()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, envoy.Binary)
	p := &pod{world: newWorld(t)}
	p.serve(t)
	p.redirect(t, backend, object)
	p.proxy = envoy.Start(t, p.world.Pod, shape)
	return p
}

// clientPorts are those of clients, the first and the last.
var clientPorts = [2]uint32{16384, 32767}

func freePorts() *ports {
	return &ports{first: clientPorts[0], count: clientPorts[1] - clientPorts[0] + 1}
}

// newWorld has no proxy of its own.
func newWorld(t testing.TB) *netnstest.World {
	t.Helper()
	w := netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}})
	// Clients' ports are others than those from which a proxy speaks with a client's address; TestSamePort says why.
	require.NoError(t, w.Out.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendln(nil, clientPorts[0], clientPorts[1]), 0)
	}))
	return w
}

func (p *pod) serve(t testing.TB) {
	t.Helper()
	p.app, p.out = serve(t, p.world.Pod, "app", appID), serve(t, p.world.Out, "out", 0)
	// The application's ports are others than Envoy's too: Envoy's connection from a port that the application had is, to the pod's
	// connection tracking table, the application's, and comes back to Envoy.
	p.fromApp = caller{netns: p.world.Pod, owner: appID, ports: freePorts()}
	p.fromOut = caller{netns: p.world.Out, ports: freePorts()}
}

// redirect runs the plugin's ADD, as a runtime does.
func (p *pod) redirect(t testing.TB, backend ruleset.Backend, object *corev1.Pod) {
	t.Helper()
	binary, err := binarytest.Build(programs, binarytest.Command)
	require.NoError(t, err)
	server := apiservertest.NewAPIServer(t)
	server.SetPod(object)
	kubeconfig, err := server.WriteKubeconfig(t.TempDir())
	require.NoError(t, err)
	dialect := "istio"
	if d, ok := object.Labels[dialectLabel]; ok {
		dialect = d
	}
	if dialect == "linkerd" {
		server.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: object.Namespace}})
	}
	path := p.world.Pod.Path()
	p.add = binarytest.Attachment{
		Binary: binary, NetNS: path, Namespace: object.Namespace, Pod: object.Name, UID: string(object.UID),
		Config: map[string]any{
			"cniVersion": "1.0.0", "name": "k8s", "type": "meshcni", "run_dir": filepath.Join(t.TempDir(), "run"),
			"backend": string(backend), "dialect": dialect, "agent": "off",
			"kubernetes": map[string]any{"kubeconfig": kubeconfig},
			"prevResult": map[string]any{
				"cniVersion": "1.0.0",
				"interfaces": []any{map[string]any{"name": "veth1"}, map[string]any{"name": "eth0", "sandbox": path}},
				"ips": []any{
					map[string]any{"address": podIP[0].String() + "/24", "interface": 1},
					map[string]any{"address": podIP[1].String() + "/64", "interface": 1},
				},
			},
		},
	}
	out := p.add.Run(t, "ADD")
	require.Zero(t, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
}

// dialectLabel says which dialect a test's pod is for, when it is not Istio's.
const dialectLabel = "test/dialect"

// istioPod is a pod as Istio's injector leaves it, of both families, with a port and a range excluded and DNS captured.
func istioPod(mode string) *corev1.Pod {
	user := int64(proxyID)
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", UID: "5f1c2a90-6f52-4b53-9a7e-0d9b6f6a8c11",
			Annotations: map[string]string{
				istio.StatusAnnotation:                             "{}",
				istio.InterceptionMode:                             mode,
				istio.ExcludeInboundPorts:                          fmt.Sprint(portExcluded),
				istio.ExcludeOutboundPorts:                         fmt.Sprint(portExcluded),
				"traffic.sidecar.istio.io/excludeOutboundIPRanges": "198.51.100.0/24,2001:db8::/64",
			},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}, {
			Name: "istio-proxy", Args: []string{"proxy", "sidecar"},
			SecurityContext: &corev1.SecurityContext{RunAsUser: &user, RunAsGroup: &user},
			Env:             []corev1.EnvVar{{Name: istio.DualStack, Value: "true"}, {Name: "ISTIO_META_DNS_CAPTURE", Value: "true"}},
		}}},
	}
	return object
}

// istioShape is the proxy of that pod.
func istioShape(mode string) envoy.Shape {
	shape := envoy.Istio()
	shape.Transparent = mode == "TPROXY"
	shape.Local = []uint16{portLocal}
	shape.Services, shape.Names = map[netip.AddrPort]netip.AddrPort{}, map[string][]netip.Addr{"cart.shop.svc": ownIP}
	for i, own := range ownIP {
		shape.Services[netip.AddrPortFrom(own, ownPort)] = netip.AddrPortFrom(podIP[i], portHTTP)
	}
	return shape
}
