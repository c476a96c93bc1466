package nodecontrol_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/internal/nodecontrol"
)

// TestMeter: what keeps connections open is no use of the tunnel, however many they are; the least that is carried is, however the looks
// cut it.
func TestMeter(t *testing.T) {
	t.Parallel()
	const look, ping = 500 * time.Millisecond, 39
	var m nodecontrol.Meter
	now, received := time.Now(), map[netip.AddrPort]uint64{}
	peer := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 40000)
	}
	for i := range 100 {
		received[peer(i)] = 5000
	}
	ask := func() bool {
		now = now.Add(look)
		return m.Used(received, now)
	}
	assert.True(t, ask(), "nobody knows since when")
	for round := range 60 { // each pings every 10 s, and answers pings
		for i := range 100 {
			if n := (round + i) % 20; n == 0 || n == 7 {
				received[peer(i)] += ping
			}
		}
		assert.False(t, ask(), round)
	}
	received[peer(3)] += 46 // a request by HTTP/2 with TLS, its byte, its end
	first := ask()
	received[peer(3)] += 32
	second := ask()
	received[peer(3)] += 31
	assert.True(t, first || second || ask())
	delete(received, peer(5))
	assert.False(t, ask(), "one has ended")
	received[peer(200)] = 1500
	assert.True(t, ask(), "a new one")
	received[peer(200)] = 600
	assert.True(t, ask(), "another one from the same port")
	assert.False(t, ask())
}
