package redirect_test

import (
	"fmt"

	"github.com/meshcni/meshcni/redirect"
)

// What a mesh's pods say is data: which annotation sets which field, and how a
// value is read. Everything wrong is reported at once.
func ExampleSchema_Build() {
	mesh := redirect.Schema{
		Defaults: redirect.Default(),
		Settings: []redirect.Setting{{
			Field:   "inbound.excludePorts",
			Keys:    []string{"mesh.example/exclude-inbound-ports"},
			Grammar: redirect.Grammar{Ranges: true},
			Allowed: `ports and ranges, such as "22,8000-8100"`,
		}},
	}

	r, origins, _, err := mesh.Build(redirect.Values{Annotations: map[string]string{"mesh.example/exclude-inbound-ports": "22, 8000-8100"}})
	fmt.Println(r, err)
	fmt.Println(origins[0].Field, "from", origins[0].Source, origins[0].Key)

	_, _, _, err = mesh.Build(redirect.Values{Annotations: map[string]string{"mesh.example/exclude-inbound-ports": "ssh"}})
	fmt.Println(err)
	// Output:
	// REDIRECT in * -> :15006 except 22,8000-8100; out * -> :15001; proxy uid [1337] gid []; ipv4 capture ipv6 capture <nil>
	// inbound.excludePorts from annotation mesh.example/exclude-inbound-ports
	// annotation mesh.example/exclude-inbound-ports="ssh": "ssh" is not a port from 0 to 65535 (allowed: ports and ranges, such as "22,8000-8100")
}

// All, these and none are three different choices.
func ExamplePortSet() {
	for _, s := range []redirect.PortSet{redirect.AllPorts(), redirect.Ports(443, 80, 80), redirect.NoPorts(), {}} {
		fmt.Printf("%-8s all=%t empty=%t has 80: %t\n", s, s.All(), s.Empty(), s.Contains(80))
	}
	// Output:
	// *        all=true empty=false has 80: true
	// 80,443   all=false empty=false has 80: true
	// none     all=false empty=true has 80: false
	// unset    all=false empty=true has 80: false
}

// Validate says everything that is wrong, each with its field.
func ExampleRedirect_Validate() {
	r := redirect.Default()
	r.Mode = "TUNNEL"
	r.Proxy.InboundPort = 0
	fmt.Println(r.Validate())
	// Output:
	// redirect: mode: "TUNNEL" is not REDIRECT or TPROXY
	// redirect: proxy.inboundPort: 0 is no port
}
