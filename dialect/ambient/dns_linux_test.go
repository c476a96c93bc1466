package ambient_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestQueriesFromOnePort: the application and the node proxy may ask one resolver from one port, one right after the other, and
// each gets its own answer. Without conntrack zones they do not, which shows that the test can tell.
func TestQueriesFromOnePort(t *testing.T) {
	for _, backend := range dialecttest.Backends {
		for name, oneZone := range map[string]bool{"zones": false, "one zone": true} {
			t.Run(string(backend)+", "+name, func(t *testing.T) {
				_, r, err := dialecttest.Case{Pod: labelled("ambient", nil)}.Rules(ambient.New(ambient.Options{}))
				require.NoError(t, err)
				r.DNS.OneZone = oneZone
				w := netnstest.NewWorld(t, netnstest.Options{})
				set(t, w, backend, r.MustRuleset())
				for _, server := range []string{"10.96.0.10:53", "[fd00:96::10]:53"} {
					assert.Equal(t, "proxy:15053/udp", query(t, w.Pod, server, 0, netnstest.Patience), server)
					patience := netnstest.Patience
					if oneZone {
						patience = 5 * time.Second // there is no answer
					}
					answer := query(t, w.Pod, server, ambient.ProxyMark, patience)
					if oneZone {
						assert.NotEqual(t, "out:53/udp", answer, server)
					} else {
						assert.Equal(t, "out:53/udp", answer, server)
						assert.Equal(t, "proxy:15053/udp", query(t, w.Pod, server, 0, netnstest.Patience), server)
					}
				}
			})
		}
	}
}

// query asks a server over UDP, always from the same port, and returns the answer.
func query(t *testing.T, ns *netnsexec.NetNS, server string, mark uint32, patience time.Duration) string {
	t.Helper()
	var conn net.Conn
	require.NoError(t, ns.Do(func() (err error) {
		d := net.Dialer{LocalAddr: &net.UDPAddr{Port: 40053}, Control: marking(mark, false)}
		conn, err = d.DialContext(context.WithoutCancel(t.Context()), "udp", server)
		return err
	}))
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err := conn.Write([]byte("who are you"))
	require.NoError(t, err)
	answer := make([]byte, 512)
	n, err := conn.Read(answer)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(answer[:n]))
}
