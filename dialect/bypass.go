package dialect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/redirect"
)

// BypassCode is a way past the mesh, as a stable code: codes are never renamed
// or reused.
type BypassCode string

// The codes.
const (
	// BypassIPv4 and BypassIPv6: the mesh does not capture the family.
	BypassIPv4 BypassCode = "ipv4"
	BypassIPv6 BypassCode = "ipv6"
	// BypassProxyID: a container runs under an id by which the rules know the
	// proxy.
	BypassProxyID BypassCode = "proxy-id"
	// BypassNetRaw: the rules know the proxy by a mark, and a container may have
	// a capability that sets marks: NET_RAW since Linux 5.17, NET_ADMIN always
	// (sk_setsockopt, net/core/sock.c).
	BypassNetRaw BypassCode = "net-raw"
)

// BypassCodes are all of them.
var BypassCodes = []BypassCode{BypassIPv4, BypassIPv6, BypassProxyID, BypassNetRaw}

// Bypass is a way by which a pod's traffic leaves or reaches it past the mesh
// without anybody noticing.
type Bypass struct {
	Code BypassCode `json:"code"`

	// Addr is the pod's address of an uncaptured family; invalid: it is not
	// known to have one, but its kernel gives it one.
	Addr netip.Addr `json:"addr,omitzero"`
	// Unsure says that nobody has looked whether the kernel has the family.
	Unsure bool `json:"unsure,omitempty"`

	// Container is the name of the container that may pass for the proxy; empty
	// for a family.
	Container string `json:"container,omitempty"`
	// Field is what of its securityContext says so: "runAsUser" or "runAsGroup",
	// with the value in ID, "capabilities" or "privileged".
	Field string `json:"field,omitempty"`
	ID    uint32 `json:"id,omitempty"`
	// Inherited says that nothing in the container says so: an id is its pod's,
	// a capability the runtime's default.
	Inherited bool `json:"inherited,omitempty"`
}

// String returns a sentence for people.
func (b Bypass) String() string {
	switch b.Code {
	case BypassProxyID:
		return b.idWords()
	case BypassNetRaw:
		return fmt.Sprintf("container %q can bypass the mesh: %s, and so can mark its traffic as the proxy's", b.Container, b.capabilityWords())
	case BypassIPv4, BypassIPv6:
	}
	why := "the pod's kernel has it"
	switch {
	case b.Addr.IsValid():
		why = "the pod has " + b.Addr.String()
	case b.Unsure:
		return fmt.Sprintf("%s bypasses the mesh if the pod's kernel has it, which is not known here: the family is not captured; %s", b.Code, closes)
	case b.Code == BypassIPv6:
		why = "the pod's kernel gives each interface such an address (fe80::/10)"
	}
	return fmt.Sprintf("%s bypasses the mesh: %s, and the family is not captured; %s", b.Code, why, closes)
}

const closes = `uncaptured_family "drop" closes it`

func (b Bypass) idWords() string {
	kind, where := "user", ""
	if b.Field == "runAsGroup" {
		kind = "group"
	}
	if b.Inherited {
		where = " (by the pod's securityContext)"
	}
	return fmt.Sprintf("container %q bypasses the mesh: it runs as the proxy's %s, %d%s, whose outbound traffic is not redirected",
		b.Container, kind, b.ID, where)
}

func (b Bypass) capabilityWords() string {
	switch {
	case b.Field == "privileged":
		return "it is privileged"
	case b.Inherited:
		return "it does not drop NET_RAW, which container runtimes grant by default"
	}
	return "its capabilities have NET_RAW or NET_ADMIN added"
}

// BypassError refuses a pod for a container that may pass for the proxy. Get at
// it with errors.As(err, &bypassError); several are joined, see errors.Join.
type BypassError struct{ Bypass }

// Error returns the sentence, and what would help.
func (e *BypassError) Error() string {
	switch {
	case e.Code != BypassNetRaw:
		return e.String() + "; give the application another, or the proxy a user of its own"
	case e.Field == "privileged":
		return e.String() + "; take the privilege away"
	case e.Inherited:
		return e.String() + "; drop it (securityContext.capabilities.drop)"
	}
	return e.String() + "; do not add them"
}

// containerBypasses finds the pod's containers that the rules may take for the
// proxy, by the word of their securityContexts. What an image says of its user
// cannot be seen from the pod, nor a container that is added to it later
// (ephemeral ones). Own are the exact names of the mesh's own containers.
func containerBypasses(pod *corev1.Pod, own []string, proxy redirect.Proxy) []Bypass {
	// The pod's author has a say in both lists, so they must not multiply.
	isOwn := make(map[string]bool, len(own))
	for _, name := range own {
		isOwn[name] = true
	}
	var found []Bypass
	look := func(c *corev1.Container, staysOn bool) {
		if isOwn[c.Name] {
			return
		}
		// An init container that ends does not count by its id: running one as the proxy is how meshes let it
		// reach the network before the proxy is up.
		if staysOn {
			found = append(found, byID(pod, c, proxy)...)
		}
		if !proxy.Mark.IsZero() {
			found = append(found, byCapability(pod, c)...)
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		look(c, c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways)
	}
	for i := range pod.Spec.Containers {
		look(&pod.Spec.Containers[i], true)
	}
	return found
}

// contexts are the container's securityContext and its pod's, empty when absent.
func contexts(pod *corev1.Pod, c *corev1.Container) (its corev1.SecurityContext, pods corev1.PodSecurityContext) {
	if c.SecurityContext != nil {
		its = *c.SecurityContext
	}
	if pod.Spec.SecurityContext != nil {
		pods = *pod.Spec.SecurityContext
	}
	return its, pods
}

func byID(pod *corev1.Pod, c *corev1.Container, proxy redirect.Proxy) (found []Bypass) {
	its, pods := contexts(pod, c)
	for _, f := range []struct {
		field     string
		own, pods *int64
		ids       []uint32
	}{
		{"runAsUser", its.RunAsUser, pods.RunAsUser, proxy.UIDs},
		{"runAsGroup", its.RunAsGroup, pods.RunAsGroup, proxy.GIDs},
	} {
		id, inherited := f.own, false
		if id == nil {
			id, inherited = f.pods, true
		}
		if id != nil && slices.ContainsFunc(f.ids, func(p uint32) bool { return int64(p) == *id }) {
			found = append(found, Bypass{
				Code: BypassProxyID, Container: c.Name, Field: f.field, ID: uint32(*id), Inherited: inherited, //nolint:gosec // it equals a uint32
			})
		}
	}
	return found
}

// byCapability finds a container that may set marks. Runtimes differ in what
// they grant, so what one of them grants counts.
func byCapability(pod *corev1.Pod, c *corev1.Container) []Bypass {
	its, pods := contexts(pod, c)
	b := Bypass{Code: BypassNetRaw, Container: c.Name, Field: "capabilities"}
	var caps corev1.Capabilities
	if its.Capabilities != nil {
		caps = *its.Capabilities
	}
	// All runtimes give what is added by a name without the prefix, some also with it. Only some take away what is
	// dropped by a name with it, so such a name drops nothing here. Of a name that is both added and dropped they differ, too.
	added := func(name string) bool {
		return slices.ContainsFunc(caps.Add, func(c corev1.Capability) bool {
			return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_") == name
		})
	}
	dropped := func(name string) bool {
		return slices.ContainsFunc(caps.Drop, func(c corev1.Capability) bool { return strings.EqualFold(string(c), name) })
	}
	all := added("ALL")
	switch {
	case its.Privileged != nil && *its.Privileged:
		b.Field = "privileged"
	case added("NET_RAW"), added("NET_ADMIN"), all && !(dropped("NET_RAW") && dropped("NET_ADMIN")):
	case all, dropped("ALL"), dropped("NET_RAW"), cannotGain(its, pods):
		return nil
	default:
		b.Inherited = true
	}
	return []Bypass{b}
}

// cannotGain reports whether the container's processes have no capability in
// effect: they are not root, and no program that they start makes them more.
// (No runtime sets ambient capabilities.)
func cannotGain(its corev1.SecurityContext, pods corev1.PodSecurityContext) bool {
	user, nonRoot := its.RunAsUser, its.RunAsNonRoot
	if user == nil {
		user = pods.RunAsUser
	}
	if nonRoot == nil {
		nonRoot = pods.RunAsNonRoot
	}
	notRoot := user != nil && *user != 0 || user == nil && nonRoot != nil && *nonRoot
	return notRoot && its.AllowPrivilegeEscalation != nil && !*its.AllowPrivilegeEscalation
}
