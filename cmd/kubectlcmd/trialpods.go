package kubectlcmd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshcni/meshcni/cmd/internal/proof"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/validate"
	"github.com/meshcni/meshcni/mesh"
)

// appUser is the applications' user. Any that is no proxy's would do.
const appUser = 1000

// outsideWait bounds the wait of a proxy's stand-in for the kubelet, which tries its port each second.
const outsideWait = 30 * time.Second

// fakeSidecar is a pod of a mesh without its injector.
type fakeSidecar struct {
	mesh.TestPod
	dialect   string
	probePort uint16
	// proxy is the name of the proxy's container, and user its user; empty: the proxy is on the node.
	proxy string
	user  int64
}

var errNoTestPod = errors.New("the test has no pod for this mesh")

// fakeSidecar returns that of a mesh. The proxy's container and its user are those that the mesh's rules have in mind.
func (c *cluster) fakeSidecar(name string) (s fakeSidecar, err error) {
	d := dialect.SetOf(c.Dialects...).Lookup(name)
	if d == nil {
		return s, errNoTestPod
	}
	s = fakeSidecar{TestPod: c.Facts.Of(name, d).TestPod, dialect: name, probePort: d.Check.ProbePort}
	switch {
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
	return s, nil
}

// trialRun holds what the pods of a run share.
type trialRun struct {
	label     string // on everything that the test makes, with the run's name
	name      string // also the namespace's, unless that was there
	namespace string
	settings  *corev1.Namespace // of which the pods inherit; nil: not known
	lifetime  time.Duration
}

// meshed is a pod of a mesh on a node, whose containers prove that its rules are in force: first as an application, then, unless the proxy
// is on the node, as the proxy, which the kubelet connects to.
func (r trialRun) meshed(name, node string, from image, as fakeSidecar) *corev1.Pod {
	app := shortLivedContainer("app", from, appUser, "prove")
	pod := shortLivedPod(r.namespace, name, node, r.lifetime, time.Second, app)
	pod.Labels[r.label] = r.name
	maps.Copy(pod.Labels, as.Labels)
	maps.Copy(pod.Annotations, as.Annotations)
	if as.proxy != "" {
		proxy := shortLivedContainer(as.proxy, from, as.user, "prove", "--outside="+outsideWait.String())
		port := intstr.FromInt32(int32(cmp.Or(as.probePort, validate.DefaultProbePort)))
		proxy.Env, proxy.ReadinessProbe = as.Env, &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}}
		pod.Spec.InitContainers, pod.Spec.Containers = pod.Spec.Containers, []corev1.Container{proxy}
	}
	question, _ := json.Marshal(proof.Question{Dialect: as.dialect, Pod: pod, Namespace: r.settings, ProbePort: as.probePort}) // no value of these types fails
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].Args = append(containers[i].Args, "--question="+strings.ReplaceAll(string(question), "$", "$$")) // $(NAME) would be a reference
		}
	}
	return pod
}
