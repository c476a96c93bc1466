package ambient_test

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestPortUsedAgain: an application that gets the port of a connection which the proxy has just closed, to the same server, is
// captured, although conntrack still has the proxy's connection, which was not.
func TestPortUsedAgain(t *testing.T) {
	ends := map[string]func(*net.TCPConn) error{
		"proxy first":  (*net.TCPConn).CloseWrite,
		"server first": func(*net.TCPConn) error { return nil },
		"reset":        func(c *net.TCPConn) error { return c.SetLinger(0) },
	}
	for _, backend := range dialecttest.Backends {
		t.Run(string(backend), func(t *testing.T) {
			w := netnstest.NewWorld(t, netnstest.Options{})
			built, err := ambient.New(ambient.Options{}).Redirect(labelled("ambient", nil), nil, nil)
			require.NoError(t, err)
			set(t, w, backend, built.Redirect.MustRuleset())
			// Nothing keeps the port but conntrack, whose TIME_WAIT lasts twice as long as the socket's.
			require.NoError(t, w.Pod.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_max_tw_buckets", []byte("0"), 0o600) }))
			for how, end := range ends {
				assert.Equal(t, "out:80 orig=10.96.5.5:80", fromOnePort(t, w.Pod, ambient.ProxyMark, end), how)
				assert.Equal(t, []string{"10.96.5.5"}, tracked(t, w.Pod), how)
				assert.Equal(t, "proxy:15001 orig=10.96.5.5:80", fromOnePort(t, w.Pod, 0, ends["server first"]), how)
				require.NoError(t, w.Pod.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
			}
		})
	}
}

// tracked returns who answers on the connections from the port, as conntrack has it.
func tracked(t *testing.T, ns *netnsexec.NetNS) (peers []string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		for _, f := range flows {
			if f.Forward.SrcPort == 40000 {
				peers = append(peers, f.Reverse.SrcIP.String())
			}
		}
		return err
	}))
	return peers
}

// fromOnePort is ask with a port of its own, always the same.
func fromOnePort(t *testing.T, ns *netnsexec.NetNS, mark uint32, end func(*net.TCPConn) error) (answer string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		dialer := net.Dialer{Timeout: netnstest.Patience, LocalAddr: &net.TCPAddr{Port: 40000}, Control: func(network, address string, c syscall.RawConn) error {
			var err error
			if cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }); errors.Join(cerr, err) != nil {
				return errors.Join(cerr, err)
			}
			return marking(mark, false)(network, address, c)
		}}
		conn, err := dialer.DialContext(t.Context(), "tcp", "10.96.5.5:80")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(netnstest.Patience))
		if err := end(conn.(*net.TCPConn)); err != nil {
			return err
		}
		text, err := io.ReadAll(conn)
		answer = strings.TrimSpace(string(text))
		return err
	}))
	return answer
}
