package redirect

import "github.com/meshcni/meshcni/redirect/ruleset"

// Presence is what a network namespace has of an address family. Zero is
// [PresenceUnknown].
type Presence string

// The presences.
const (
	// PresenceUnknown says that nobody has looked, as with a pod that is a
	// manifest only.
	PresenceUnknown Presence = ""
	// PresenceAbsent says that the kernel has no such protocol: nothing can
	// bypass a mesh by it.
	PresenceAbsent Presence = "absent"
	// PresenceOff says that the kernel has the protocol and that it is switched
	// off on every interface but loopback, and for those that are yet to come. It
	// may be switched on later.
	PresenceOff Presence = "off"
	// PresenceUsable says that it works on some interface other than loopback, or
	// would on one that comes later.
	// Such an interface has an IPv6 address without being given one (RFC 4862,
	// section 5.3).
	PresenceUsable Presence = "usable"
)

// Kernel is what a network namespace has of each family. Zero is that of a
// namespace at which nobody has looked.
type Kernel struct {
	IPv4 Presence `json:"ipv4"`
	IPv6 Presence `json:"ipv6"`
}

// Family returns what there is of the family.
func (k Kernel) Family(f ruleset.Family) Presence {
	if f == ruleset.IPv4 {
		return k.IPv4
	}
	return k.IPv6
}
