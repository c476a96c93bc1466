package plugin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// What an ADD may take and say, whatever the pod's author has written.
const (
	maxResident = 128 << 10 // KiB
	maxWords    = 16 << 10
	// maxSaid is what the API server takes of annotations
	// (k8s.io/apimachinery/pkg/api/validation.TotalAnnotationSizeLimitB).
	maxSaid = 256 << 10
)

// measureEnv names the file into which this program, run with it, writes the peak of the memory, in KiB, of the program
// that its arguments name. A process begins with the peak of the one that it was forked from, so it must be a small one.
const measureEnv = "MESHCNI_TEST_MEASURE"

func init() {
	file := os.Getenv(measureEnv)
	if file == "" {
		return
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...) //nolint:gosec // a test's own
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	_ = cmd.Run()
	usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	_ = os.WriteFile(file, []byte(strconv.FormatInt(usage.Maxrss, 10)), 0o600)
	os.Exit(cmd.ProcessState.ExitCode())
}

// many joins as many elements as fit.
func many(size int, before, separator, after string, element func(i int) string) string {
	var b strings.Builder
	b.WriteString(before + element(0))
	for i := 1; ; i++ {
		next := separator + element(i)
		if b.Len()+len(next)+len(after) > size {
			return b.String() + after
		}
		b.WriteString(next)
	}
}

func veth(i int) string   { return "v" + strconv.Itoa(i) }
func number(i int) string { return strconv.Itoa(2000 + 2*i) }
func subnet(i int) string { return fmt.Sprintf("10.%d.%d.0/24", i>>8&255, i&255) }
func single(i int) string { return fmt.Sprintf("::%x:%x", i>>16, i&0xffff) }

func consulConfig(size int, field string, element func(int) string) string {
	return many(size, `{"ProxyUserID":"5995","ProxyInboundPort":20000,"`+field+`":["`, `","`, `"]}`, element)
}

// TestWorstAnnotations: an ADD of a pod with all the annotations that the API server takes ends within 128 MiB and 16 KiB
// of words, which name each annotation that is to blame. At the bound the rules are in the kernel.
func TestWorstAnnotations(t *testing.T) {
	const half = maxSaid/2 - 200
	kumaYAML := func(inner string) map[string]string {
		return map[string]string{kuma.SidecarInjected: "true", kuma.Config: inner}
	}
	injected := func(config string) map[string]string {
		return map[string]string{
			consul.InjectStatus: "injected", consul.TransparentProxyStatus: consul.StatusWaiting, consul.DualStack: "true", consul.RedirectTrafficConfig: config,
		}
	}
	garbage := func(keys ...string) map[string]string {
		said := map[string]string{}
		for i, key := range keys {
			said[key] = strings.Repeat([]string{"\x01", "<", `"`, "x"}[i%4], maxSaid/len(keys)-len(key)-10)
		}
		return said
	}
	cases := map[string]struct {
		dialect, container string
		labels             map[string]string
		annotations        map[string]string
		namespace          map[string]string
		blamed             []string // nil: the rules are applied
		iptables           bool     // alone refuses it: it has a rule for each, and nftables a set
	}{
		"istio, interfaces × prefixes": {
			dialect: "istio", container: "istio-proxy",
			annotations: map[string]string{
				"istio.io/reroute-virtual-interfaces": many(half, "", ",", "", veth), "traffic.sidecar.istio.io/includeOutboundIPRanges": many(half, "", ",", "", subnet),
			},
			blamed: []string{"istio.io/reroute-virtual-interfaces", "traffic.sidecar.istio.io/includeOutboundIPRanges", "10000"},
		},
		"istio, prefixes": {
			dialect: "istio", container: "istio-proxy", annotations: map[string]string{"traffic.sidecar.istio.io/excludeOutboundIPRanges": many(2*half, "", ",", "", subnet)},
			blamed: []string{"traffic.sidecar.istio.io/excludeOutboundIPRanges", "iptables, which knows no sets", "10000"}, iptables: true,
		},
		"istio, everything wrong": {
			dialect: "istio", container: "istio-proxy",
			annotations: garbage(istio.InterceptionMode, "status.sidecar.istio.io/port", "traffic.sidecar.istio.io/includeInboundPorts", istio.ExcludeInboundPorts, "traffic.sidecar.istio.io/includeOutboundPorts",
				istio.ExcludeOutboundPorts, "traffic.sidecar.istio.io/includeOutboundIPRanges", "traffic.sidecar.istio.io/excludeOutboundIPRanges", "traffic.sidecar.istio.io/excludeInterfaces", "istio.io/reroute-virtual-interfaces"),
			blamed: []string{
				istio.InterceptionMode, "status.sidecar.istio.io/port", "traffic.sidecar.istio.io/includeInboundPorts", istio.ExcludeInboundPorts, "traffic.sidecar.istio.io/includeOutboundPorts",
				istio.ExcludeOutboundPorts, "traffic.sidecar.istio.io/includeOutboundIPRanges", "traffic.sidecar.istio.io/excludeOutboundIPRanges", "traffic.sidecar.istio.io/excludeInterfaces", "istio.io/reroute-virtual-interfaces", "bytes)",
			},
		},
		"istio, at the bound": {
			dialect: "istio", container: "istio-proxy", annotations: map[string]string{"traffic.sidecar.istio.io/excludeOutboundIPRanges": many(14*9800, "", ",", "", subnet)},
		},
		"linkerd, subnets": {
			dialect: "linkerd", container: "linkerd-proxy", namespace: map[string]string{linkerd.SkipSubnets: many(2*half, "", ", ", "", subnet)},
			blamed: []string{linkerd.SkipSubnets, "iptables, which knows no sets", "10000"}, iptables: true,
		},
		"linkerd, everything wrong": {
			dialect: "linkerd", container: "linkerd-proxy",
			annotations: garbage(linkerd.SkipInboundPorts, linkerd.SkipOutboundPorts, linkerd.SkipSubnets, linkerd.ProxyUID, linkerd.ProxyGID, linkerd.InboundPort, linkerd.OutboundPort),
			blamed:      []string{linkerd.SkipInboundPorts, linkerd.SkipOutboundPorts, linkerd.SkipSubnets, linkerd.ProxyUID, linkerd.ProxyGID, linkerd.InboundPort, linkerd.OutboundPort},
		},
		"kuma, an alias of a long scalar": {
			dialect: "kuma", container: "kuma-sidecar",
			annotations: kumaYAML("a: &a " + strings.Repeat("x", 30_000) + "\nredirect: {inbound: {excludePortsForIPs: [" + strings.Repeat("*a,", 30_000) + "*a]}}"),
			blamed:      []string{kuma.Config, "aliases"},
		},
		"kuma, a long document": {
			dialect: "kuma", container: "kuma-sidecar", annotations: kumaYAML(many(2*half, "redirect: {outbound: {excludePortsForIPs: [\"", `","`, `"]}}`, single)),
			blamed: []string{kuma.Config, "bytes"},
		},
		"kuma, prefixes in the document": {
			dialect: "kuma", container: "kuma-sidecar", annotations: kumaYAML(many(half, "redirect: {outbound: {excludePortsForIPs: [\"", `","`, `"]}}`, single)),
			blamed: []string{kuma.Config, "iptables, which knows no sets", "10000"}, iptables: true,
		},
		"kuma, protocols × users": {
			dialect: "kuma", container: "kuma-sidecar",
			annotations: kumaYAML(many(half, "redirect: {outbound: {excludePortsForUIDs: [\"", `","`, `"]}}`, func(i int) string {
				return strings.Repeat("tcp,", 20) + "udp:53:" + number(i)
			})),
		},
		"kuma, users": {
			dialect: "kuma", container: "kuma-sidecar",
			annotations: kumaYAML(many(half, "redirect: {outbound: {excludePortsForUIDs: [\"", `","`, `"]}}`, number)),
			blamed:      []string{kuma.Config + ".redirect.outbound.excludePortsForUIDs", "10000"},
		},
		"consul, users": {
			dialect: "consul", container: "consul-dataplane", annotations: injected(consulConfig(2*half, "ExcludeUIDs", number)),
			blamed: []string{consul.RedirectTrafficConfig + ".ExcludeUIDs", "10000"},
		},
		"consul, all of a list wrong": {
			dialect: "consul", container: "consul-dataplane", annotations: injected(consulConfig(2*half, "ExcludeOutboundCIDRs", veth)),
			blamed: []string{consul.RedirectTrafficConfig + ".ExcludeOutboundCIDRs"},
		},
		"consul, keys of no meaning": {
			dialect: "consul", container: "consul-dataplane",
			annotations: injected(many(2*half, `{"ProxyUserID":"5995","ProxyInboundPort":20000,"x":1,`, ",", "}", func(i int) string { return fmt.Sprintf(`"%d":1`, i) })),
		},
		"ambient, interfaces": {
			dialect: "ambient", container: "app", labels: map[string]string{ambient.DataplaneMode: "ambient"},
			annotations: map[string]string{"istio.io/reroute-virtual-interfaces": many(2*half, "", ",", "", veth)},
			blamed:      []string{"istio.io/reroute-virtual-interfaces", "10000"},
		},
	}
	backends := []string{"nftables", "iptables-nft"}
	n := newNode(t, "")
	for name, tt := range cases {
		for i, backend := range backends {
			if i > 0 && tt.blamed != nil && !tt.iptables {
				continue // nothing is applied
			}
			t.Run(name+" "+backend, func(t *testing.T) {
				n := *n
				n.backend = backend
				pod := meshPod()
				pod.Name, pod.UID = "pod-"+strconv.Itoa(len(name)), ""
				pod.Labels, pod.Annotations = tt.labels, tt.annotations
				if tt.dialect == "istio" {
					pod.Annotations[istio.StatusAnnotation] = "{}"
				}
				pod.Spec.Containers = []corev1.Container{{Name: "app"}, {Name: tt.container}}
				n.server.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace, Annotations: tt.namespace}})
				ns := netnstest.New(t)
				a := n.attach(pod, ns)
				a.Config = set(a.Config.(object), "dialect", tt.dialect)
				a.Wrap = []string{os.Args[0]}
				peak := filepath.Join(t.TempDir(), "peak")
				a.Env = []string{measureEnv + "=" + peak}
				out := a.Run(t, "ADD")
				kib, err := os.ReadFile(peak)
				require.NoError(t, err)
				resident, err := strconv.Atoi(string(kib))
				require.NoError(t, err)
				t.Logf("%d MiB", resident>>10)
				assert.Less(t, resident, maxResident, "KiB of memory")
				for line := range strings.Lines(string(out.Stderr)) {
					assert.LessOrEqual(t, len(line), maxWords, "a line of the log")
				}
				if tt.blamed == nil || tt.iptables && backend == "nftables" {
					require.Zero(t, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
					return
				}
				assert.Equal(t, 1, out.Exit)
				assert.LessOrEqual(t, len(out.Stdout), maxWords)
				assert.True(t, json.Valid(out.Stdout))
				code, message := out.Failure()
				assert.EqualValues(t, 7, code, message)
				for _, part := range tt.blamed {
					assert.Contains(t, message, part)
				}
			})
		}
	}
}
