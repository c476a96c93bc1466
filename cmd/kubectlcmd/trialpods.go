package kubectlcmd

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/standin"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// The ports of the test's pods. No mesh has a meaning for them.
const (
	openPort     = 28000             // of applications
	excludedPort = mesh.ExcludedPort // the same, and settings exclude it both ways
	appControl   = 28002             // for questions to the application, on the loopback interface
	proxyControl = 28003             // for questions to the proxy
)

// appUser is the applications' user. Any that is no proxy's would do.
const appUser = 1000

// standIn is a pod of a mesh without its injector, with a proxy of ours.
type standIn struct {
	mesh.StandIn
	// proxy is the name of the proxy's container; empty: the proxy is on the node.
	proxy   string
	user    int64
	in, out uint16
	// notIn and notOut: the settings exclude the port that is to be excluded.
	notIn, notOut bool
}

var errNoStandIn = errors.New("the test has no pod for this mesh")

// standIn returns that of a mesh. The container, its user and its ports are those that the mesh's rules have in mind.
func (c *cluster) standIn(name string) (s standIn, err error) {
	d := dialect.SetOf(c.Dialects...).Lookup(name)
	if d == nil {
		return s, errNoStandIn
	}
	s.StandIn = c.Facts.Of(name, d).StandIn
	switch {
	case len(s.Labels)+len(s.Annotations) == 0:
		return s, errNoStandIn
	case d.NodeProxy != nil:
		return s, nil
	case s.Container == "" && len(d.Policy.ProxyContainers) == 0:
		return s, fmt.Errorf("%w: its proxy has no container of a certain name", errNoStandIn)
	}
	if s.proxy = s.Container; s.proxy == "" {
		s.proxy = d.Policy.ProxyContainers[0]
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Labels: s.Labels, Annotations: s.Annotations},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: s.proxy, Env: s.Env}}},
	}
	r, err := d.Redirect(pod, &corev1.Namespace{}, []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()})
	if err != nil {
		return s, fmt.Errorf("%w: %w", errNoStandIn, err)
	}
	if len(r.Redirect.Proxy.UIDs) > 0 {
		s.user = int64(r.Redirect.Proxy.UIDs[0])
	}
	s.in, s.out = r.Redirect.Proxy.InboundPort, r.Redirect.Proxy.OutboundPort
	out := r.Redirect.Outbound
	s.notIn = r.Redirect.Inbound.ExcludePorts.Contains(excludedPort)
	s.notOut = out.ExcludePorts.Contains(excludedPort) || slices.ContainsFunc(out.Exclude, func(e redirect.Exclusion) bool { return e.Ports.Contains(excludedPort) })
	return s, nil
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

// meshed is a pod of a mesh.
func (r trialRun) meshed(name, node string, from image, as standIn) *corev1.Pod {
	pod := r.pod(name, node, from)
	maps.Copy(pod.Labels, as.Labels)
	maps.Copy(pod.Annotations, as.Annotations)
	if as.proxy != "" {
		proxy := container(as.proxy, name, from, as.user, proxyControl, as.in, as.out)
		proxy.Env = as.Env
		pod.Spec.Containers = append(pod.Spec.Containers, proxy)
	}
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
func attempts(peer, pod *corev1.Pod, as standIn, family corev1.IPFamily) []attempt {
	theirs, ours := address(peer, family), address(pod, family)
	app, proxy, other := pod.Name+"/app", pod.Name+"/"+as.proxy, peer.Name+"/app"
	all := []attempt{
		aimed("outbound", pod, "app", netip.AddrPortFrom(theirs, openPort), proxy, as.out),
		aimed("inbound", peer, "app", netip.AddrPortFrom(ours, openPort), proxy, as.in),
	}
	if as.notOut {
		all = append(all, aimed("outbound, excluded port", pod, "app", netip.AddrPortFrom(theirs, excludedPort), other, excludedPort))
	}
	if as.notIn {
		all = append(all, aimed("inbound, excluded port", peer, "app", netip.AddrPortFrom(ours, excludedPort), app, excludedPort))
	}
	return append(all, aimed("the proxy's own", pod, as.proxy, netip.AddrPortFrom(theirs, openPort), other, openPort))
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
