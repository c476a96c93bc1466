package dialect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// BypassCode is the kind of a [Bypass]. Codes are stable: never renamed, never reused.
type BypassCode string

// The codes.
const (
	// BypassIPv4 and BypassIPv6: the family is not captured.
	BypassIPv4 BypassCode = "ipv4"
	BypassIPv6 BypassCode = "ipv6"
	// BypassInbound and BypassOutbound: no connection of that direction is captured.
	BypassInbound  BypassCode = "inbound"
	BypassOutbound BypassCode = "outbound"
	// BypassInitID: an init container that ends runs as the proxy's user or group, before the proxy is there. Nothing refuses it.
	BypassInitID BypassCode = "init-proxy-id"
	// BypassProxyID: a container runs as the proxy's user or group.
	BypassProxyID BypassCode = "proxy-id"
	// BypassNetRaw: the rules know the proxy by a mark, and a container may have a capability that sets marks:
	// NET_ADMIN, or since Linux 5.17 NET_RAW (sk_setsockopt, net/core/sock.c).
	BypassNetRaw BypassCode = "net-raw"
	// BypassSandboxed: by the name of its RuntimeClass, or by where a running pod's packets go, it has a kernel or a network stack of its own.
	BypassSandboxed BypassCode = "sandboxed"
)

// BypassCodes lists every code.
var BypassCodes = []BypassCode{BypassIPv4, BypassIPv6, BypassInbound, BypassOutbound, BypassProxyID, BypassInitID, BypassNetRaw, BypassSandboxed}

// Bypass is a way for a pod's traffic to go past the mesh unnoticed.
type Bypass struct {
	Code BypassCode `json:"code"`

	// Addr is the pod's address of the uncaptured family. Invalid: no address is
	// known, but the kernel has the family, or may have it (Unsure).
	Addr netip.Addr `json:"addr,omitzero"`
	// Unsure: it is not known whether the kernel has the family, or the rules are too many to tell whether they capture the direction.
	Unsure bool `json:"unsure,omitempty"`
	// Family is the only one whose connections of a direction are not captured; zero: it is so of all that are to be captured.
	Family ruleset.Family `json:"family,omitempty"`

	// RuntimeClass is the pod's, if that is the way; else empty.
	RuntimeClass string `json:"runtimeClass,omitempty"`
	// HandedTo takes what arrives at the Interface of a running pod before any rule sees it, or may if Unsure. Without an Interface it has the pod's
	// addresses. Empty: that is not the way.
	Interface string `json:"interface,omitempty"`
	HandedTo  string `json:"handedTo,omitempty"`

	// Container is the container that may pass for the proxy; empty for a family and for a RuntimeClass.
	Container string `json:"container,omitempty"`
	// Field is the part of its securityContext that lets it: "runAsUser" or
	// "runAsGroup", with the value in ID, "capabilities" or "privileged".
	Field string `json:"field,omitempty"`
	ID    uint32 `json:"id,omitempty"`
	// Inherited: the container itself does not say so. An id is the pod's, a capability the runtime's default.
	Inherited bool `json:"inherited,omitempty"`
}

// ByDefault reports whether nobody asked for what opens the way: a container has what runtimes give to each that does not drop it.
// Nearly every pod has such a container, so it is no news.
func (b Bypass) ByDefault() bool { return b.Code == BypassNetRaw && b.Inherited }

// direction reports whether it is about all connections of a direction.
func (b Bypass) direction() bool { return b.Code == BypassInbound || b.Code == BypassOutbound }

// String returns the bypass as a sentence.
func (b Bypass) String() string {
	switch b.Code {
	case BypassInbound, BypassOutbound:
		family := ""
		if b.Family != 0 {
			family = " " + b.Family.String()
		}
		if b.Unsure {
			return fmt.Sprintf("it cannot be told whether any%s connection is captured %s: the rules are too many", family, b.Code)
		}
		return fmt.Sprintf("no%s connection is captured %s: all of them bypass the mesh, as what selects or excludes them says", family, b.Code)
	case BypassProxyID, BypassInitID:
		return b.idWords()
	case BypassNetRaw:
		return fmt.Sprintf("container %q can bypass the mesh: %s, and so can mark its traffic as the proxy's", b.Container, b.capabilityWords())
	case BypassSandboxed:
		if b.HandedTo != "" {
			return b.handedWords()
		}
		return fmt.Sprintf("the pod bypasses the mesh: its runtime class, %s, is by its name one with a kernel or a network stack of its own, "+
			"whose packets no rule of the pod's network namespace sees", truncate.Quote(b.RuntimeClass))
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

func (b Bypass) handedWords() string {
	to := truncate.Quote(b.HandedTo)
	switch {
	case b.Interface == "":
		return "the pod bypasses the mesh: its addresses are on no interface of its network namespace, so " + to + " has its packets, which no rule sees"
	case b.Unsure:
		return fmt.Sprintf("it cannot be told whether the pod bypasses the mesh: what arrives at its interface %s is seen first by %s", truncate.Quote(b.Interface), to)
	}
	return fmt.Sprintf("the pod bypasses the mesh: what arrives at its interface %s is handed on to %s, so no rule of its network namespace sees it", truncate.Quote(b.Interface), to)
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
	if b.Code == BypassInitID {
		return fmt.Sprintf("init container %q bypasses the mesh until it ends: it runs as the proxy's %s, %d%s, whose outbound traffic is not redirected",
			b.Container, kind, b.ID, where)
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

// BypassError refuses a pod for a container that may pass for the proxy, or for its RuntimeClass. Get it with
// errors.As(err, &bypassError); several are joined by [errors.Join].
type BypassError struct{ Bypass }

// Error returns the sentence, and how to close the bypass.
func (e *BypassError) Error() string {
	switch {
	case e.Code == BypassSandboxed:
		return e.String() + "; give the pod a runtime class that shares the node's kernel, or take it out of the mesh"
	case e.Code != BypassNetRaw:
		return e.String() + "; give the application another, or the proxy a user of its own"
	case e.Field == "privileged":
		return e.String() + "; take the privilege away"
	case e.Inherited:
		return e.String() + "; drop it (securityContext.capabilities.drop)"
	}
	return e.String() + "; do not add them"
}

// containerBypasses finds the containers that the rules may take for the proxy, by
// their securityContexts. The user of an image cannot be seen from the pod, nor can
// ephemeral containers, which come later. Own are the mesh's own containers, and check is that of its proof, which runs as the proxy before
// there is one.
func containerBypasses(pod *corev1.Pod, own []string, check string, proxy redirect.Proxy) []Bypass {
	// The pod's author controls both lists, so the cost must not be their product.
	isOwn := make(map[string]bool, len(own))
	for _, name := range own {
		isOwn[name] = true
	}
	var found []Bypass
	proxyUp := false
	look := func(c *corev1.Container, staysOn bool) {
		if isOwn[c.Name] {
			proxyUp = proxyUp || staysOn
			return
		}
		// An init container that ends may run as the proxy's user before the proxy is up: that is how it reaches the network.
		code := BypassInitID
		if staysOn || proxyUp {
			code = BypassProxyID
		}
		if code != BypassInitID || c.Name != check {
			found = append(found, byID(pod, c, proxy, code)...)
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

// contexts returns the container's securityContext and the pod's, empty when absent.
func contexts(pod *corev1.Pod, c *corev1.Container) (its corev1.SecurityContext, pods corev1.PodSecurityContext) {
	if c.SecurityContext != nil {
		its = *c.SecurityContext
	}
	if pod.Spec.SecurityContext != nil {
		pods = *pod.Spec.SecurityContext
	}
	return its, pods
}

func byID(pod *corev1.Pod, c *corev1.Container, proxy redirect.Proxy, code BypassCode) (found []Bypass) {
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
				Code: code, Container: c.Name, Field: f.field, ID: uint32(*id), Inherited: inherited, //nolint:gosec // it equals a uint32
			})
		}
	}
	return found
}

// byCapability reports a container that may set marks. Runtimes differ in what they
// grant; what any of them grants counts.
func byCapability(pod *corev1.Pod, c *corev1.Container) []Bypass {
	its, pods := contexts(pod, c)
	b := Bypass{Code: BypassNetRaw, Container: c.Name, Field: "capabilities"}
	var caps corev1.Capabilities
	if its.Capabilities != nil {
		caps = *its.Capabilities
	}
	// Some runtimes ignore names with the prefix CAP_. So such a name counts when added, and not when dropped. They also
	// differ about a name that is both added and dropped.
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

// cannotGain reports whether the container's processes can have no capability in effect: they are not root, and may not
// become more than they are. (No runtime sets ambient capabilities.)
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
