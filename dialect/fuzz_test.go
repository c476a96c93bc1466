package dialect_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/warning"
)

// said is where a pod can say something to a dialect.
type said struct {
	mesh             dialect.Dialect
	annotations, env []string
	container        string
	always           map[string]string // what the injector writes
	namespaceSaysToo bool
}

var everyDialect = []said{
	{
		mesh: istio.New(), container: "istio-proxy", always: map[string]string{istio.StatusAnnotation: "{}"},
		annotations: []string{
			"istio.io/reroute-virtual-interfaces", "traffic.sidecar.istio.io/includeOutboundIPRanges", "traffic.sidecar.istio.io/excludeOutboundIPRanges", "traffic.sidecar.istio.io/includeOutboundPorts", istio.ExcludeOutboundPorts,
			"traffic.sidecar.istio.io/includeInboundPorts", istio.ExcludeInboundPorts, "traffic.sidecar.istio.io/excludeInterfaces", "traffic.sidecar.istio.io/kubevirtInterfaces", istio.InterceptionMode, "status.sidecar.istio.io/port",
		},
		env: []string{"ISTIO_META_DNS_CAPTURE", istio.DualStack, "INVALID_DROP", "DISABLE_ENVOY"},
	},
	{
		mesh: linkerd.New(), container: "linkerd-proxy", namespaceSaysToo: true,
		annotations: []string{
			linkerd.SkipSubnets, linkerd.SkipInboundPorts, linkerd.SkipOutboundPorts, linkerd.ProxyUID, linkerd.ProxyGID, linkerd.InboundPort, linkerd.OutboundPort,
		},
		env: []string{"LINKERD2_PROXY_INBOUND_LISTEN_ADDR", "LINKERD2_PROXY_OUTBOUND_LISTEN_ADDR"},
	},
	{
		mesh: kuma.New(), container: "kuma-sidecar", always: map[string]string{kuma.SidecarInjected: "true"},
		annotations: []string{
			"traffic.kuma.io/exclude-outbound-ports-for-uids", kuma.Config, "traffic.kuma.io/exclude-outbound-ips", "traffic.kuma.io/exclude-inbound-ips", "traffic.kuma.io/exclude-inbound-ports", "traffic.kuma.io/exclude-outbound-ports",
			"kuma.io/sidecar-uid", "kuma.io/application-probe-proxy-port", "traffic.kuma.io/drop-invalid-packets", "traffic.kuma.io/iptables-logs", "kuma.io/transparent-proxying-ip-family-mode", "kuma.io/gateway",
		},
	},
	{
		mesh: consul.New(), container: "consul-dataplane",
		always:      map[string]string{consul.InjectStatus: "injected", consul.TransparentProxyStatus: consul.StatusWaiting, consul.DualStack: "true"},
		annotations: []string{consul.RedirectTrafficConfig, consul.DualStack},
	},
	{
		mesh: ambient.New(ambient.Options{}), container: "app",
		annotations: []string{"istio.io/reroute-virtual-interfaces", "ambient.istio.io/bypass-inbound-capture", ambient.DNSCapture},
	},
}

// maxAnnotations is what the API server allows for all annotations of an object
// (k8s.io/apimachinery/pkg/api/validation.TotalAnnotationSizeLimitB).
const maxAnnotations = 256 << 10

// FuzzEveryDialect: whatever a pod and its namespace say, the pod is refused or
// its rules render, in memory that does not grow with what its lists multiply
// to. Of each value it is drawn how often it is repeated, and with what between:
// a few bytes are as much as a pod can say.
func FuzzEveryDialect(f *testing.F) {
	f.Add(byte(0), "\x00\x01", "v%,", "10.0.0.0/8,", uint16(60000), "true", int64(1337), "istio-proxy")
	f.Add(byte(0), "\x07\x01", "a,", "fd00::%/128,", uint16(9000), "1", int64(-1), "")
	f.Add(byte(1), "\x00\x02", "10.%.%.0/24, ", "1-2,", uint16(20000), "0.0.0.0:4143", int64(0), "linkerd-proxy")
	f.Add(byte(2), "\x00\x02", "tcp,udp,tcp:%:%;", "10.0.0.%,", uint16(20000), "", int64(5678), "x")
	f.Add(byte(2), "\x01\x01", "[*a,*a,", "a: &a x\n", uint16(60000), "", int64(5678), "x")
	f.Add(byte(2), "\x01\x00", "{a: ", "%;", uint16(60000), "", int64(5678), "x")
	f.Add(byte(2), "\x01\x01", "redirect: {outbound: {excludePortsForUIDs: \"%\"}}\n", "# ,\n", uint16(9000), "", int64(5678), "x")
	f.Add(byte(3), "\x00", `{"ProxyUserID":"5","ProxyInboundPort":2,"ExcludeUIDs":["%"]}`, "", uint16(1), "", int64(1), "consul-dataplane-a")
	f.Add(byte(3), "\x00", "[", "", uint16(60000), "", int64(1), "consul-dataplane-a")
	f.Add(byte(4), "\x00\x01", "v%,", "true", uint16(60000), "", int64(1), "app")
	f.Fuzz(func(t *testing.T, which byte, keys, a, b string, times uint16, env string, user int64, name string) {
		s := everyDialect[int(which)%len(everyDialect)]
		pod, namespace, size := s.pod(keys, [2]string{a, b}, int(times), env, user, name)
		var err error
		bytes := allocated(func() { err = s.make(t, pod, namespace) })
		// All the rules that there may be, captured and dropped, in all forms, and what a value is taken apart into: strings,
		// prefixes, nodes.
		if most := uint64(192<<20 + 300*size); bytes > most { //nolint:gosec // a length
			t.Errorf("%d bytes were taken for a pod that says %d (%v)", bytes, size, err)
		}
	})
}

// pod is one that says the values, each as often as fits.
func (s said) pod(keys string, values [2]string, times int, env string, user int64, name string) (*corev1.Pod, *corev1.Namespace, int) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Annotations: map[string]string{}}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{}}}
	for key, value := range s.always {
		pod.Annotations[key] = value
	}
	size := 0
	for i := range min(len(keys), len(values)) {
		value := repeated(values[i], times, maxAnnotations/2)
		size += len(value)
		key := s.annotations[int(keys[i])%len(s.annotations)]
		if s.namespaceSaysToo && keys[i] >= 128 {
			namespace.Annotations[key] = value
		} else {
			pod.Annotations[key] = value
		}
	}
	proxy := corev1.Container{Name: s.container, SecurityContext: &corev1.SecurityContext{RunAsUser: &user, RunAsGroup: &user}}
	for _, key := range s.env {
		proxy.Env = append(proxy.Env, corev1.EnvVar{Name: key, Value: env})
	}
	pod.Spec.Containers = []corev1.Container{proxy, {Name: name, SecurityContext: proxy.SecurityContext}}
	return pod, namespace, size + len(env) + len(name)
}

// repeated is a value over and over, with each '%' a number that counts up.
func repeated(value string, times, limit int) string {
	parts := strings.Split(value, "%")
	var b strings.Builder
	for i := range times {
		if b.Len()+len(value)+8*len(parts) > limit {
			break
		}
		for j, part := range parts {
			if j > 0 {
				b.WriteString(strconv.Itoa(i))
			}
			b.WriteString(part)
		}
	}
	return strings.TrimRight(b.String(), ",; ") // what stands between
}

// make goes all the way to what backends write.
func (s said) make(t require.TestingT, pod *corev1.Pod, namespace *corev1.Namespace) error {
	s.mesh.Decide(pod, namespace)
	built, err := s.mesh.Redirect(pod, namespace, []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")})
	if err != nil {
		assert.LessOrEqual(t, len(truncate.Error(err, 6<<10)), 6<<10)
		assert.LessOrEqual(t, len(truncate.Error(err, 1024)), 1024)
		var named truncate.Named
		if errors.As(err, &named) {
			assert.Contains(t, truncate.Error(err, 1024), named.Setting())
		}
		return err
	}
	for _, w := range built.Warnings {
		assert.Less(t, len(w.Text), 2000, "a warning")
		assert.Contains(t, warning.Codes(), w.Code, w.Text)
	}
	for _, drop := range []bool{false, true} {
		r := built.Redirect
		if drop {
			r.IPv4, r.IPv6 = redirect.FamilyDrop, redirect.FamilyDrop
		}
		rs, err := r.Ruleset()
		if err != nil {
			var limit *redirect.LimitError
			require.ErrorAs(t, err, &limit, "what is accepted does not render")
			continue
		}
		rules := 0
		for _, f := range ruleset.Families {
			if p := rs.Family(f); p != nil {
				rules += p.NumRules()
				_ = p.Transition(nil)
			}
		}
		require.LessOrEqual(t, rules, redirect.MaxRules)
		_ = apply.NFT(rs)
		_, err = json.Marshal(rs)
		require.NoError(t, err)
	}
	return nil
}

// allocated is how many bytes a function takes from the heap, freed ones included.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestRepeated: what the seeds stand for is taken, as long as it is not too much.
func TestRepeated(t *testing.T) {
	value := repeated("10.%.0.0/16, ", 3, 1000)
	assert.Equal(t, "10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16", value)
	for times, taken := range map[int]bool{100: true, 60_000: false} {
		pod, namespace, size := everyDialect[4].pod("\x00\x01", [2]string{"v%,", "true"}, times, "", 1337, "x")
		assert.Greater(t, size, 2*times)
		pod.Annotations["ambient.istio.io/bypass-inbound-capture"] = "true"
		err := everyDialect[4].make(t, pod, namespace)
		assert.Equal(t, taken, err == nil, "%v", err)
	}
}
