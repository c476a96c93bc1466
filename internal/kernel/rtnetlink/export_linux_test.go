package rtnetlink

import "github.com/meshcni/meshcni/internal/kernel/nfnetlink"

var Actions = actions

// Filter reads the attributes of a filter's message, where tap0 has the index 7 and ifb0 the index 8.
func Filter(attrs []byte) (to string, unsure bool) {
	return filter(nfnetlink.Attr{Data: attrs}, []link{{index: 7, name: "tap0", kind: "tun"}, {index: 8, name: "ifb0", kind: "ifb"}})
}
