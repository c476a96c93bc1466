package redirect

import "github.com/meshcni/meshcni/redirect/ruleset"

// Presence tells an address family that a network namespace has from one that it lacks. The zero value is [PresenceUnknown].
type Presence string

// The presences.
const (
	// PresenceUnknown: nobody has looked, as for a pod that is only a manifest.
	PresenceUnknown Presence = ""
	// PresenceAbsent: the kernel lacks the protocol, so nothing can bypass a mesh by it.
	PresenceAbsent Presence = "absent"
	// PresenceOff: the protocol is disabled on every interface except lo, and for new
	// interfaces. It may be enabled later.
	PresenceOff Presence = "off"
	// PresenceUsable: it works on an interface other than lo, or will on a new one. Such
	// an interface assigns itself an IPv6 address (RFC 4862, section 5.3).
	PresenceUsable Presence = "usable"
)

// Kernel lists the address families of a network namespace. The zero value is a namespace at which nobody has looked.
type Kernel struct {
	IPv4 Presence `json:"ipv4"`
	IPv6 Presence `json:"ipv6"`
}

// Family returns the presence of a family.
func (k Kernel) Family(f ruleset.Family) Presence {
	if f == ruleset.IPv4 {
		return k.IPv4
	}
	return k.IPv6
}
