package validate

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// accept waits for a connection from outside, to the probe port, at the proxy's inbound port.
func accept(ctx context.Context, in func(func() error) error, port, probe uint16) (Step, error) {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	var l net.Listener
	err := in(func() (err error) {
		l, err = config.Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return Step{}, err
	}
	defer func() { _ = l.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil && ctx.Err() != nil {
			return Step{}, ctx.Err()
		}
		if err != nil {
			return Step{}, err
		}
		from, dst := destination(conn.(*net.TCPConn))
		_ = conn.Close()
		if dst.Port() == probe && from != dst.Addr() && !from.IsLoopback() {
			return Step{
				Family: ruleset.FamilyOf(from), Aspect: inbound, Proto: tcp, Destination: dst, WantPort: port, Outcome: works,
				Detail: fmt.Sprintf("a connection of %s to %s arrived at port %d", from, dst, port),
			}, nil
		}
	}
}

// destination returns whose connection it is, and where it was to go. With TPROXY that is its local address.
func destination(conn *net.TCPConn) (from netip.Addr, dst netip.AddrPort) {
	from = conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	dst = conn.LocalAddr().(*net.TCPAddr).AddrPort()
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if original, err := ownsock.OriginalDst(int(fd), from.Is6()); err == nil {
				dst = original
			}
		})
	}
	return from, netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
}
