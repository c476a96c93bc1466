package kubectlcmd

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/netprobe"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/redirect"
)

// fakeSidecarOf is that of a mesh of this module's.
func fakeSidecarOf(name string) (fakeSidecar, error) {
	return (&cluster{Program: Program{Identity: own, Dialects: builtin.All(), Facts: facts.All()}}).fakeSidecar(name)
}

var testRun = trialRun{name: "run", namespace: "ns", lifetime: time.Minute}

// TestFakeSidecars: to each mesh its pod is one of its own, and of no other's; both families are captured, for the ports at which the
// stand-in listens as the user that it runs as.
func TestFakeSidecars(t *testing.T) {
	t.Parallel()
	var tried []string
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
	for _, name := range builtin.Names() {
		as, err := fakeSidecarOf(name)
		require.NoError(t, err)
		tried = append(tried, name)
		if as.proxy == "" {
			decision := dialect.SetOf(builtin.All()...).Lookup(name).Decide(testRun.meshed("p", "n", image{}, as), namespace)
			assert.True(t, decision.Selected, decision)
			continue
		}
		pod := testRun.meshed("p", "n", image{name: "i"}, as)
		plan, err := dialect.SetOf(builtin.All()...).WithOptions(dialect.Options{RefuseProxyUID: true, RefuseNetRaw: true}).Plan(dialect.Subject{Pod: pod, Namespace: namespace, Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}})
		require.NoError(t, err, name)
		require.True(t, plan.Decision.Selected, name)
		assert.Equal(t, name, plan.Dialect)
		r := plan.Redirect
		assert.Equal(t, []redirect.FamilyMode{redirect.FamilyCapture, redirect.FamilyCapture}, []redirect.FamilyMode{r.IPv4, r.IPv6}, name)
		assert.Equal(t, []uint16{as.in, as.out}, []uint16{r.Proxy.InboundPort, r.Proxy.OutboundPort}, name)
		assert.Equal(t, []uint32{uint32(as.user)}, r.Proxy.UIDs, name)
		out := r.Outbound.ExcludePorts
		for _, e := range r.Outbound.Exclude {
			out = out.Union(e.Ports)
		}
		assert.True(t, r.Inbound.ExcludePorts.Contains(excludedPort) && out.Contains(excludedPort), "%s: %+v", name, r)
		assert.False(t, r.Inbound.ExcludePorts.Contains(openPort) || out.Contains(openPort), name)
		assert.Empty(t, plan.Warnings, name)
		assert.Empty(t, plan.Bypasses, name)
	}
	assert.Len(t, tried, 5)
	outside, err := dialect.SetOf(builtin.All()...).Plan(dialect.Subject{Pod: testRun.pod("p", "n", image{}), Namespace: namespace})
	require.NoError(t, err)
	assert.False(t, outside.Decision.Selected)
}

// TestJudge: only the right answer is right.
func TestJudge(t *testing.T) {
	t.Parallel()
	as, err := fakeSidecarOf("linkerd")
	require.NoError(t, err)
	at := func(pod *corev1.Pod, ips ...string) *corev1.Pod {
		for _, ip := range ips {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return pod
	}
	peer := at(testRun.pod("peer", "n", image{}), "10.0.0.1", "fd00::1")
	pod := at(testRun.meshed("pod", "n", image{}, as), "10.0.0.2", "fd00::2")
	assert.False(t, address(at(&corev1.Pod{}, "fd00::9"), corev1.IPv4Protocol).IsValid())
	all := append(as.outbound(pod, peer, false, corev1.IPv6Protocol), as.inbound(pod, peer, corev1.IPv6Protocol)...)
	require.Len(t, all, 5)
	there, here := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	for i, want := range []struct {
		what, from, container string
		to                    netip.AddrPort
		name                  string
		port                  uint16
	}{
		{"outbound", "pod", "app", netip.AddrPortFrom(there, openPort), "pod/linkerd-proxy", 4140},
		{"outbound, excluded port", "pod", "app", netip.AddrPortFrom(there, excludedPort), "peer/app", excludedPort},
		{"the proxy's own", "pod", "linkerd-proxy", netip.AddrPortFrom(there, openPort), "peer/app", openPort},
		{"inbound", "peer", "app", netip.AddrPortFrom(here, openPort), "pod/linkerd-proxy", 4143},
		{"inbound, excluded port", "peer", "app", netip.AddrPortFrom(here, excludedPort), "pod/app", excludedPort},
	} {
		a := all[i]
		assert.Equal(t, want.what, a.what)
		assert.Equal(t, []string{want.from, want.container, want.name}, []string{a.from.Name, a.container, a.want.Name}, want.what)
		assert.Equal(t, want.to, a.to, want.what)
		assert.Equal(t, want.port, a.want.Port, want.what)
	}
	out, excluded := all[0], all[1]
	for _, tt := range []struct {
		try            connection
		said           netprobe.Dialed
		result, detail string
	}{
		{out, netprobe.Dialed{Answer: &netprobe.Answer{Name: "pod/linkerd-proxy", Port: 4140, Original: out.to}}, resultOK, ""},
		{out, netprobe.Dialed{Answer: &netprobe.Answer{Name: "pod/linkerd-proxy", Port: 4140}}, resultFailed, "as one to invalid AddrPort instead of [fd00::1]:28000"},
		{out, netprobe.Dialed{Answer: &netprobe.Answer{Name: "peer/app", Port: openPort, Original: out.to}}, resultFailed, "not captured: it went to [fd00::1]:28000 past the proxy"},
		{out, netprobe.Dialed{Answer: &netprobe.Answer{Name: "pod/linkerd-proxy", Port: 4143, Original: out.to}}, resultFailed, "it went to port 4143 of pod/linkerd-proxy, not to port 4140 of pod/linkerd-proxy"},
		{out, netprobe.Dialed{Error: "connection refused"}, resultFailed, "no connection to [fd00::1]:28000: connection refused"},
		{excluded, netprobe.Dialed{Answer: &netprobe.Answer{Name: "peer/app", Port: excludedPort}}, resultOK, ""},
		{excluded, netprobe.Dialed{Answer: &netprobe.Answer{Name: "pod/linkerd-proxy", Port: 4140, Original: excluded.to}}, resultFailed, "it went to port 4140 of pod/linkerd-proxy"},
		{excluded, netprobe.Dialed{Answer: &netprobe.Answer{Name: "other/app", Port: excludedPort}}, resultFailed, "of other/app"},
	} {
		result, detail := tt.try.judge(tt.said)
		assert.Equal(t, tt.result, result, tt.detail)
		assert.Contains(t, detail, tt.detail)
	}
}
