package trace_test

import (
	"encoding/json"
	"fmt"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/trace"
)

func ExampleTrace() {
	rs := redirect.Default().MustRuleset()
	packet, err := trace.ParsePacket("out tcp uid 1000 -> 10.0.0.1:443")
	if err != nil {
		panic(err)
	}
	result, err := trace.Trace(rs, packet)
	if err != nil {
		panic(err)
	}
	fmt.Print(result.Explain())
	// Output:
	// redirect 15001: outbound connection: redirected to port 15001
	//   nat/OUTPUT:1                 -j MESH_OUTPUT
	//   nat/MESH_OUTPUT:5            -j MESH_REDIRECT   # outbound connection
	//   nat/MESH_REDIRECT:1          -p tcp -j REDIRECT --to-ports 15001
}

// Packets and results have JSON forms, for tracing in bulk.
func ExamplePacket_UnmarshalJSON() {
	line := `{"direction":"in","proto":"tcp","src":"10.0.0.9","dst":"10.244.1.5","dport":8080}`
	var packet trace.Packet
	if err := json.Unmarshal([]byte(line), &packet); err != nil {
		panic(err)
	}
	result, err := trace.Trace(redirect.Default().MustRuleset(), packet)
	if err != nil {
		panic(err)
	}
	out, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(out))
	// Output:
	// {"verdict":"redirect","to_port":15006,"path":["nat/PREROUTING:1","nat/MESH_PREROUTING:1","nat/MESH_INBOUND:1","nat/MESH_IN_REDIRECT:1"],"reason":"inbound connection: redirected to port 15006"}
}
