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

	"github.com/meshcni/meshcni/cmd/internal/netprobe"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// The ports of the test's pods. No mesh has a meaning for them.
const (
	openPort     uint16 = 28000             // of applications
	excludedPort uint16 = mesh.ExcludedPort // the same, and settings exclude it both ways
	appControl          = 28002             // for questions to the application, on the loopback interface
	proxyControl        = 28003             // for questions to the proxy
)

// appUser is the applications' user. Any that is no proxy's would do.
const appUser = 1000

// fakeSidecar is a pod of a mesh without its injector, with a proxy of ours.
type fakeSidecar struct {
	mesh.TestPod
	// proxy is the name of the proxy's container; empty: the proxy is on the node.
	proxy   string
	user    int64
	in, out uint16
	// notIn and notOut: the settings exclude the port that is to be excluded.
	notIn, notOut bool
}

var errNoTestPod = errors.New("the test has no pod for this mesh")

// fakeSidecar returns that of a mesh. The container, its user and its ports are those that the mesh's rules have in mind.
func (c *cluster) fakeSidecar(name string) (s fakeSidecar, err error) {
	d := dialect.SetOf(c.Dialects...).Lookup(name)
	if d == nil {
		return s, errNoTestPod
	}
	s.TestPod = c.Facts.Of(name, d).TestPod
	switch {
	case len(s.Labels)+len(s.Annotations) == 0:
		return s, errNoTestPod
	case d.NodeProxy != nil:
		return s, nil
	case s.Container == "" && len(d.Policy.ProxyContainers) == 0:
		return s, fmt.Errorf("%w: its proxy has no container of a certain name", errNoTestPod)
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
		return s, fmt.Errorf("%w: %w", errNoTestPod, err)
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

// trialRun holds the names and labels that the pods of a run share.
type trialRun struct {
	label     string // on everything that the test makes, with the run's name
	name      string // also the namespace's, unless that was there
	namespace string
	lifetime  time.Duration
}

// pod is one of a node, with the application alone.
func (r trialRun) pod(name, node string, from image) *corev1.Pod {
	pod := shortLivedPod(r.namespace, name, node, r.lifetime, time.Second, container("app", name, from, appUser, openPort, excludedPort))
	pod.Labels[r.label] = r.name
	return pod
}

func container(name, pod string, from image, user int64, listen ...uint16) corev1.Container {
	var ports []string
	for _, port := range listen {
		ports = append(ports, strconv.Itoa(int(port)))
	}
	return shortLivedContainer(name, from, user, "stand-in", "--name="+pod+"/"+name, "--listen="+strings.Join(ports, ","), fmt.Sprintf("--control=%d", control(name)))
}

// meshed is a pod of a mesh.
func (r trialRun) meshed(name, node string, from image, as fakeSidecar) *corev1.Pod {
	pod := r.pod(name, node, from)
	maps.Copy(pod.Labels, as.Labels)
	maps.Copy(pod.Annotations, as.Annotations)
	if as.proxy != "" {
		proxy := container(as.proxy, name, from, as.user, as.in, as.out)
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

// connection is one that the test makes, and where it has to arrive.
type connection struct {
	what string
	// from is the pod that connects, and container the one in it.
	from      *corev1.Pod
	container string
	to        netip.AddrPort
	// want is the answer: who, at which port. Of a redirected connection the original destination counts too.
	want netprobe.Answer
}

// redirected reports whether the connection has to arrive at another port than the one that it is made to.
func (c connection) redirected() bool { return c.want.Port != c.to.Port() }

// outbound are connections from a pod of the mesh to one outside of it, or to another one of it: its application's are captured, but for
// an excluded port, and its proxy's are not.
func (s fakeSidecar) outbound(pod, to *corev1.Pod, inMesh bool, family corev1.IPFamily) []connection {
	what, own, there, at := "outbound", "the proxy's own", "/app", openPort
	if inMesh {
		what, own = "outbound to the mesh", "proxy to proxy"
	}
	open, excluded := netip.AddrPortFrom(address(to, family), openPort), netip.AddrPortFrom(address(to, family), excludedPort)
	if s.proxy == "" { // what the node's proxy does is its own affair
		return []connection{{what, pod, "app", open, netprobe.Answer{Name: to.Name + "/app", Port: openPort}}}
	}
	if inMesh {
		there, at = "/"+s.proxy, s.in
	}
	all := []connection{{what, pod, "app", open, netprobe.Answer{Name: pod.Name + "/" + s.proxy, Port: s.out}}}
	if s.notOut {
		all = append(all, connection{what + ", excluded port", pod, "app", excluded, netprobe.Answer{Name: to.Name + "/app", Port: excludedPort}})
	}
	return append(all, connection{own, pod, s.proxy, open, netprobe.Answer{Name: to.Name + there, Port: at}})
}

// inbound are connections from a pod outside the mesh to one of it.
func (s fakeSidecar) inbound(pod, from *corev1.Pod, family corev1.IPFamily) []connection {
	open, excluded := netip.AddrPortFrom(address(pod, family), openPort), netip.AddrPortFrom(address(pod, family), excludedPort)
	if s.proxy == "" {
		return []connection{{"inbound", from, "app", open, netprobe.Answer{Name: pod.Name + "/app", Port: openPort}}}
	}
	all := []connection{{"inbound", from, "app", open, netprobe.Answer{Name: pod.Name + "/" + s.proxy, Port: s.in}}}
	if s.notIn {
		all = append(all, connection{"inbound, excluded port", from, "app", excluded, netprobe.Answer{Name: pod.Name + "/app", Port: excludedPort}})
	}
	return all
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

// judge reports a connection that did not go where it had to.
func (c connection) judge(d netprobe.Dialed) (result, detail string) {
	got := d.Answer
	arrived := got != nil && got.Name == c.want.Name && got.Port == c.want.Port
	switch {
	case got == nil:
		return resultFailed, fmt.Sprintf("no connection to %s: %s", c.to, d.Error)
	case arrived && c.redirected() && got.Original != c.to:
		return resultFailed, fmt.Sprintf("the proxy has it at port %d, but as one to %s instead of %s", got.Port, got.Original, c.to)
	case arrived:
		return resultOK, ""
	case c.redirected() && got.Port == c.to.Port():
		return resultFailed, fmt.Sprintf("not captured: it went to %s past the proxy", c.to)
	}
	return resultFailed, fmt.Sprintf("it went to port %d of %s, not to port %d of %s", got.Port, got.Name, c.want.Port, c.want.Name)
}
