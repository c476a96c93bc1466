package envoy

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/e2e/internal/envoy"
)

// mesh is another mesh's proxy as far as Envoy can play it, and a pod of that mesh.
type mesh struct {
	shape   envoy.Shape
	pod     *corev1.Pod
	source  []netip.Addr // whom the application sees for a client from outside
	hairpin bool         // a call of the pod's own service goes through the inbound listener too
}

func meshes(t *testing.T) map[string]mesh {
	own := map[netip.AddrPort]netip.AddrPort{}
	for i, ip := range ownIP {
		own[netip.AddrPortFrom(ip, ownPort)] = netip.AddrPortFrom(podIP[i], portHTTP)
	}
	consul, err := json.Marshal(map[string]any{"ProxyUserID": "5995", "ProxyInboundPort": 20000, "ProxyOutboundPort": 15001})
	require.NoError(t, err)
	return map[string]mesh{
		"linkerd": {
			shape: envoy.Shape{Name: "linkerd", UID: 2102, GID: 2102, Outbound: 4140, Inbound: 4143, Services: own},
			pod: meshPod("linkerd", "linkerd-proxy", 2102, map[string]string{
				"linkerd.io/proxy-version": "stable", "linkerd.io/inject": "enabled",
			}),
			source: podIP,
		},
		"kuma": {
			shape: envoy.Shape{
				Name: "kuma", UID: 5678, GID: 5678, Outbound: 15001, Inbound: 15006, Services: own,
				Source: envoy.Istio().Source,
			},
			pod: meshPod("kuma", "kuma-sidecar", 5678, map[string]string{
				"kuma.io/sidecar-injected":                 "true",
				"traffic.kuma.io/transparent-proxy-config": `{kumaDPUser: "5678", ipFamilyMode: dualstack, redirect: {inbound: {enabled: true, port: 15006}, outbound: {enabled: true, port: 15001}}}`,
			}),
			source: envoy.Istio().Source, hairpin: true,
		},
		"consul": {
			shape: envoy.Shape{
				Name: "consul", UID: 5995, GID: 5995, Outbound: 15001, Inbound: 20000, Services: own,
				LocalApp: netip.AddrPortFrom(addrs("127.0.0.1")[0], portHTTP),
			},
			pod: meshPod("consul", "consul-dataplane", 5995, map[string]string{
				"consul.hashicorp.com/connect-inject-status":    "injected",
				"consul.hashicorp.com/transparent-proxy-status": "enabled",
				"consul.hashicorp.com/dual-stack":               "true",
				"consul.hashicorp.com/redirect-traffic-config":  string(consul),
			}),
			source: addrs("127.0.0.1", "127.0.0.1"),
		},
	}
}

func meshPod(dialect, container string, user int64, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", UID: "5f1c2a90-6f52-4b53-9a7e-0d9b6f6a8c12",
			Labels: map[string]string{dialectLabel: dialect}, Annotations: annotations,
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "cart"}, {Name: container, SecurityContext: &corev1.SecurityContext{RunAsUser: &user, RunAsGroup: &user}},
		}},
	}
}

// TestMeshes: the ports, users and addresses of other meshes' proxies, through their dialects and every backend.
func TestMeshes(t *testing.T) {
	for name, m := range meshes(t) {
		for _, backend := range backends {
			t.Run(name+"/"+string(backend), func(t *testing.T) {
				p := newPod(t, backend, m.pod, m.shape)
				for i, family := range families {
					t.Run(family, func(t *testing.T) {
						http, tls := kinds()[0], kinds()[4]
						t.Run("out", func(t *testing.T) { p.outbound(t, http, serviceIP[i]) })
						t.Run("out/TLS", func(t *testing.T) { p.outbound(t, tls, serviceIP[i]) })
						t.Run("in", func(t *testing.T) { p.into(t, http, i, m) })
						t.Run("own service", func(t *testing.T) { p.ownService(t, i, m) })
						t.Run("short connections", func(t *testing.T) { p.short(t, i) })
					})
				}
			})
		}
	}
}

// into talks from the outside to the application.
func (p *pod) into(t *testing.T, k kind, family int, m mesh) {
	dst := netip.AddrPortFrom(podIP[family], k.port)
	upstream := dst
	if m.shape.LocalApp.IsValid() {
		upstream = m.shape.LocalApp
	}
	x := k.talk(t, p.fromOut, dst, p.app)
	assert.Equal(t, "app", x.seen.Server)
	e := p.only(t, x, dst, k.log)
	assert.Equal(t, "inbound", e.Listener)
	assert.Equal(t, dst.String(), e.Original)
	assert.Equal(t, upstream.String(), e.Upstream)
	assert.Equal(t, m.source[family], netip.MustParseAddrPort(x.seen.Remote).Addr())
}

// ownService calls the pod's own service.
func (p *pod) ownService(t *testing.T, family int, m mesh) {
	if m.hairpin {
		p.hairpin(t, family)
		return
	}
	vip := netip.AddrPortFrom(ownIP[family], ownPort)
	x := http1(t, p.fromApp, vip, nil)
	assert.Equal(t, "app", x.seen.Server)
	e := p.only(t, x, vip, "http")
	assert.Equal(t, "service", e.Listener)
	assert.Equal(t, vip.String(), e.Original)
}
