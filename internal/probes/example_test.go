//go:build linux

package probes_test

import (
	"fmt"
	"net/netip"

	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/netnsexec"
)

// An agent that is not on the host's network keeps the exemption in the host's namespace. It needs CAP_NET_ADMIN, and
// CAP_SYS_ADMIN and the host's processes to enter.
func Example() {
	host, err := netnsexec.OpenHost("/proc/1/ns/net")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = host.Close() }()
	exempt, err := probes.New(probes.Options{
		NetNS: host,
		IPv4:  netip.MustParseAddr("169.254.7.127"),
		IPv6:  netip.MustParseAddr("fd16:9254:7127:1337:ffff:ffff:ffff:ffff"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = exempt.Put("0b5e1ab4-7d5c-4b53-9d54-8a2f3f1c9a01", []netip.Addr{netip.MustParseAddr("10.244.1.5")})
	if err != nil {
		fmt.Println(err)
	}
}
