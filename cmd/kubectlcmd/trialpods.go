package kubectlcmd

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/standin"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/kuma"
	"github.com/meshcni/meshcni/dialect/linkerd"
)

// The ports of the test's pods. No mesh has a meaning for them.
const (
	openPort     = 28000 // of applications
	excludedPort = 28001 // the same, and settings exclude it both ways
	appControl   = 28002 // for questions to the application, on the loopback interface
	proxyControl = 28003 // for questions to the proxy
)

// appUser is the applications' user. Any that is no proxy's would do.
const appUser = 1000

// impostor imitates an injected pod, with a proxy of ours.
type impostor struct {
	dialect     string
	container   string
	user        int64
	in, out     uint16
	annotations map[string]string
	env         []corev1.EnvVar
}

// impostors are those of the meshes whose proxy is in the pod. Both families are captured, and the excluded port is not.
func impostors() []impostor {
	excluded := strconv.Itoa(excludedPort)
	return []impostor{
		{
			dialect: "istio", container: "istio-proxy", user: istio.ProxyID, in: istio.InboundPort, out: istio.OutboundPort,
			annotations: map[string]string{
				istio.StatusAnnotation:    `{"containers":["istio-proxy"]}`,
				istio.ExcludeInboundPorts: excluded, istio.ExcludeOutboundPorts: excluded,
			},
			env: []corev1.EnvVar{{Name: istio.DualStack, Value: "true"}},
		},
		{
			dialect: "linkerd", container: "linkerd-proxy", user: linkerd.DefaultUID, in: linkerd.DefaultInboundPort, out: linkerd.DefaultOutboundPort,
			annotations: map[string]string{linkerd.ProxyVersion: "test", linkerd.SkipInboundPorts: excluded, linkerd.SkipOutboundPorts: excluded},
		},
		{
			dialect: "kuma", container: "kuma-sidecar", user: kuma.ProxyUID, in: kuma.InboundPort, out: kuma.OutboundPort,
			annotations: map[string]string{kuma.SidecarInjected: "true", kuma.Config: "redirect:\n  inbound: {excludePorts: [" + excluded + "]}\n  outbound: {excludePorts: [" + excluded + "]}\n"},
		},
		{
			dialect: "consul", container: "consul-dataplane", user: consul.ProxyUID, in: consul.InboundPort, out: consul.OutboundPort,
			annotations: map[string]string{
				consul.InjectStatus: "injected", consul.TransparentProxyStatus: "enabled", consul.DualStack: "true",
				consul.RedirectTrafficConfig: fmt.Sprintf(`{"ProxyUserID":"%d","ProxyInboundPort":%d,"ProxyOutboundPort":%d,"ExcludeInboundPorts":["%s"],"ExcludeOutboundPorts":["%s"]}`,
					consul.ProxyUID, consul.InboundPort, consul.OutboundPort, excluded, excluded),
			},
		},
	}
}

// trialLabel is on everything that the test makes, with the run's name.
const trialLabel = "meshcni.io/test"

// trialRun holds the names and labels that the pods of a run share.
type trialRun struct {
	name      string // also the namespace's, unless that was there
	namespace string
	lifetime  time.Duration // after which pods end by themselves, whatever becomes of whoever made them
}

// image is a program that can stand in, as a node has it.
type image struct {
	name    string
	command []string // nil: the image's entry point
}

// pod is one of a node, with the application alone.
func (r trialRun) pod(name, node string, from image) *corev1.Pod {
	no, yes := false, true
	seconds, grace := int64(r.lifetime.Seconds()), int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: name, Labels: map[string]string{trialLabel: r.name}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			// No scheduler: the node may be the one that does not take pods, and why is to be found out.
			NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &seconds, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers:      []corev1.Container{container("app", name, from, appUser, appControl, openPort, excludedPort)},
		},
	}
}

func container(name, pod string, from image, user int64, control uint16, listen ...uint16) corev1.Container {
	no, yes := false, true
	var ports []string
	for _, port := range listen {
		ports = append(ports, strconv.Itoa(int(port)))
	}
	return corev1.Container{
		Name: name, Image: from.name, ImagePullPolicy: corev1.PullIfNotPresent, Command: from.command,
		Args: []string{"stand-in", "--name=" + pod + "/" + name, "--listen=" + strings.Join(ports, ","), fmt.Sprintf("--control=%d", control)},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

// meshed is a pod of a mesh whose proxy is in the pod.
func (r trialRun) meshed(name, node string, from image, as impostor) *corev1.Pod {
	pod := r.pod(name, node, from)
	for k, v := range as.annotations {
		pod.Annotations[k] = v
	}
	proxy := container(as.container, name, from, as.user, proxyControl, as.in, as.out)
	proxy.Env = as.env
	pod.Spec.Containers = append(pod.Spec.Containers, proxy)
	return pod
}

// ambient is a pod of a mesh whose proxy is on the node.
func (r trialRun) ambient(name, node string, from image) *corev1.Pod {
	pod := r.pod(name, node, from)
	pod.Labels[ambient.DataplaneMode] = ambient.Name
	return pod
}

// control is the port for questions to a container of the test.
func control(container string) int32 {
	if container == "app" {
		return appControl
	}
	return proxyControl
}

// attempt is a connection to be made, and where it has to arrive.
type attempt struct {
	what string
	// from is the pod that connects, and container the one in it.
	from      *corev1.Pod
	container string
	to        netip.AddrPort
	// want is the answer: who, at which port. With redirected, the original destination counts too.
	want       standin.Answer
	redirected bool
}

// aimed is an attempt from a container of a pod at a port of another, which has to arrive at a port of whoever is named.
func aimed(what string, from *corev1.Pod, container string, to netip.AddrPort, who string, at uint16) attempt {
	return attempt{what: what, from: from, container: container, to: to, want: standin.Answer{Name: who, Port: at, Original: to}, redirected: at != to.Port()}
}

// attempts are connections that show that a pod of a mesh is captured as it should be: in both directions, and only what should be.
func attempts(peer, pod *corev1.Pod, as impostor, family corev1.IPFamily) []attempt {
	theirs, ours := address(peer, family), address(pod, family)
	app, proxy, other := pod.Name+"/app", pod.Name+"/"+as.container, peer.Name+"/app"
	return []attempt{
		aimed("outbound", pod, "app", netip.AddrPortFrom(theirs, openPort), proxy, as.out),
		aimed("inbound", peer, "app", netip.AddrPortFrom(ours, openPort), proxy, as.in),
		aimed("outbound, excluded port", pod, "app", netip.AddrPortFrom(theirs, excludedPort), other, excludedPort),
		aimed("inbound, excluded port", peer, "app", netip.AddrPortFrom(ours, excludedPort), app, excludedPort),
		aimed("the proxy's own", pod, as.container, netip.AddrPortFrom(theirs, openPort), other, openPort),
	}
}

// passages are connections that show that a pod whose proxy is on the node reaches others, and they it: what the proxy does is its own affair.
func passages(peer, pod *corev1.Pod, family corev1.IPFamily) []attempt {
	return []attempt{passage("outbound", pod, peer, family), passage("inbound", peer, pod, family)}
}

func passage(what string, from, to *corev1.Pod, family corev1.IPFamily) attempt {
	return aimed(what, from, "app", netip.AddrPortFrom(address(to, family), openPort), to.Name+"/app", openPort)
}

// address is a pod's of a family; the zero Addr if it has none.
func address(pod *corev1.Pod, family corev1.IPFamily) netip.Addr {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() == (family == corev1.IPv4Protocol) {
			return a
		}
	}
	return netip.Addr{}
}

// families are those in which both pods have an address.
func families(a, b *corev1.Pod) (both []corev1.IPFamily) {
	for _, f := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		if address(a, f).IsValid() && address(b, f).IsValid() {
			both = append(both, f)
		}
	}
	return both
}

// judge reports a connection that did not go where it had to.
func (a attempt) judge(d standin.Dialed) (result, detail string) {
	switch got := d.Answer; {
	case got == nil:
		return resultFailed, fmt.Sprintf("no connection to %s: %s", a.to, d.Error)
	case got.Name == a.want.Name && got.Port == a.want.Port && a.redirected && got.Original != a.want.Original:
		return resultFailed, fmt.Sprintf("the proxy has it at port %d, but as one to %s instead of %s", got.Port, got.Original, a.to)
	case got.Name == a.want.Name && got.Port == a.want.Port:
		return resultOK, ""
	case a.redirected && got.Port == a.to.Port():
		return resultFailed, fmt.Sprintf("not captured: it went to %s past the proxy", a.to)
	default:
		return resultFailed, fmt.Sprintf("it went to port %d of %s, not to port %d of %s", got.Port, got.Name, a.want.Port, a.want.Name)
	}
}

// impostorOf returns that of a dialect.
func impostorOf(dialect string) (impostor, bool) {
	all := impostors()
	at := slices.IndexFunc(all, func(i impostor) bool { return i.dialect == dialect })
	if at < 0 {
		return impostor{}, false
	}
	return all[at], true
}
