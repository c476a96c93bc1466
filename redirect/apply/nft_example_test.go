package apply_test

import (
	"fmt"
	"net/netip"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
)

// The program of a pod whose proxy takes what it sends to one network, as text
// for nft -f.
func ExampleNFT() {
	r := redirect.Default()
	r.IPv6 = redirect.FamilyPass
	r.Inbound.Ports = redirect.NoPorts()
	r.Outbound.CIDRs = redirect.Prefixes(netip.MustParsePrefix("10.0.0.0/8"))
	fmt.Print(apply.NFT(r.MustRuleset()))
	// Output:
	// table inet mesh {}
	// delete table inet mesh
	// table inet mesh {
	// 	chain nat/OUTPUT {
	// 		type nat hook output priority -100; policy accept;
	// 		meta nfproto ipv4 jump nat/MESH_OUTPUT
	// 	}
	//
	// 	chain nat/MESH_OUTPUT {
	// 		ip daddr != 127.0.0.1 oifname "lo" meta l4proto tcp meta skuid 1337 jump nat/MESH_IN_REDIRECT comment "proxy to this very pod, by a service's address"
	// 		meta nfproto ipv4 oifname "lo" meta skuid != 1337 return comment "application to its own pod"
	// 		meta nfproto ipv4 meta skuid 1337 return comment "proxy to the outside"
	// 		ip daddr 127.0.0.1 return comment "application to localhost"
	// 		ip daddr 10.0.0.0/8 jump nat/MESH_REDIRECT comment "outbound connection"
	// 	}
	//
	// 	chain nat/MESH_IN_REDIRECT {
	// 		meta nfproto ipv4 meta l4proto tcp redirect to :15006
	// 	}
	//
	// 	chain nat/MESH_REDIRECT {
	// 		meta nfproto ipv4 meta l4proto tcp redirect to :15001
	// 	}
	// }
}
