package trace_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// A connection whose answers would look like an earlier one's leaves by another port, and all its packets go on to the one it asked.
func TestNextFreePort(t *testing.T) {
	pod := &trace.Tracker{Rules: program(t, ruleset.IPv4, "nat OUTPUT -p udp -m owner --uid-owner 1000 -j DNAT --to-destination 9.9.9.9:53")}
	_, err := pod.Connect(trace.Connection{First: packet(t, "out udp uid 1000 from 10.244.1.5:5353 -> 10.96.0.10:53")})
	require.NoError(t, err)
	got, err := pod.Connect(trace.Connection{First: packet(t, "out udp uid 2 from 10.244.1.5:5353 -> 9.9.9.9:53")})
	require.NoError(t, err)
	assert.Equal(t, trace.Established, got.Verdict, got.Explain())
	assert.Equal(t, "10.244.1.5:5354", got.Server.Peer.String(), got.Explain())
	later := 0
	for _, p := range got.Packets {
		if p.From == "pod" {
			require.NotNil(t, p.Arrived, got.Explain())
			assert.Equal(t, "10.244.1.5:5354 9.9.9.9:53", p.Arrived.Src.String()+" "+p.Arrived.Dst.String(), got.Explain())
			later++
		}
	}
	assert.Equal(t, 2, later, got.Explain())
}
