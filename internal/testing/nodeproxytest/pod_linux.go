package nodeproxytest

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// pod is a pod in which the proxy listens, or tries to.
type pod struct {
	opts Options
	// known waits until the control plane has told about the pod, and reports whether it has in time.
	known func() bool
	uid   types.UID
	info  zds.Info
	ns    *netnsexec.NetNS
	ctx   context.Context //nolint:containedctx // of its connections
	stop  context.CancelFunc

	pending   error       // why it does not listen
	listeners []io.Closer // these two belong to the proxy's mutex, the rest to mu

	mu       sync.Mutex
	accepted map[uint16]int
	open     map[io.Closer]bool // nil: all were cut
	serving  sync.WaitGroup     // listeners and connections
}

func newPod(by *proxy, uid types.UID, info zds.Info, ns *netnsexec.NetNS) *pod {
	p := &pod{opts: by.opts, uid: uid, info: info, ns: ns, accepted: map[uint16]int{}, open: map[io.Closer]bool{}}
	p.known = func() bool { return by.mesh.await(p.ctx, uid, by.opts.KnowTimeout) }
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// seen is the pod as State shows it.
func (p *pod) seen() Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Pod{
		UID: p.uid, Name: p.info.Name, Namespace: p.info.Namespace, ServiceAccount: p.info.ServiceAccount, NetNS: p.ns.ID(),
		Accepted: maps.Clone(p.accepted), Open: len(p.open),
	}
	if p.pending != nil {
		s.Pending = p.pending.Error()
	}
	return s
}

// listen opens all sockets, or none.
func (p *pod) listen(deaf []uint16) error {
	p.pending = p.ns.Do(func() error { return p.listenHere(deaf) })
	if p.pending != nil {
		p.deafen()
	}
	return p.pending
}

// listenHere acts in the calling thread's namespace, which is the pod's.
func (p *pod) listenHere(deaf []uint16) error {
	wildcard, loopbacks := "::", []string{"127.0.0.1", "::1"}
	if _, err := os.Stat("/proc/thread-self/net/if_inet6"); err != nil {
		wildcard, loopbacks = "0.0.0.0", loopbacks[:1]
	}
	if off, err := os.ReadFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6"); err == nil && off[0] == '1' {
		loopbacks = loopbacks[:1]
	}
	config := net.ListenConfig{Control: p.mark(unix.SO_REUSEPORT)}
	config.SetMultipathTCP(false)
	tcp := func(host string, port uint16, serve func(*net.TCPConn)) error {
		if slices.Contains(deaf, port) {
			return nil
		}
		l, err := config.Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, l)
		p.serving.Go(func() { p.accept(l, port, serve) })
		return nil
	}
	err := errors.Join(
		tcp(wildcard, p.opts.Outbound, p.outbound), tcp(wildcard, p.opts.Inbound, p.inbound), tcp(wildcard, p.opts.Tunnel, p.tunnel))
	for _, host := range loopbacks {
		err = errors.Join(err, tcp(host, p.opts.DNS, p.dnsStream))
		if slices.Contains(deaf, p.opts.DNS) {
			continue
		}
		c, failed := config.ListenPacket(context.Background(), "udp", net.JoinHostPort(host, strconv.Itoa(int(p.opts.DNS))))
		err = errors.Join(err, failed)
		if failed == nil {
			p.listeners = append(p.listeners, c)
			p.serving.Go(func() { p.dnsDatagrams(c) })
		}
	}
	return err
}

// mark returns what is done with each socket before it is bound: mark it, let it be transparent if that is allowed, and set
// more options.
func (p *pod) mark(options ...int) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			s := int(fd)
			_ = unix.SetsockoptInt(s, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
			_ = unix.SetsockoptInt(s, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
			failed = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_MARK, int(p.opts.Mark))
			for _, option := range options {
				failed = errors.Join(failed, unix.SetsockoptInt(s, unix.SOL_SOCKET, option, 1))
			}
		})
		return errors.Join(err, failed)
	}
}

func (p *pod) accept(l net.Listener, port uint16, serve func(*net.TCPConn)) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		tcp := conn.(*net.TCPConn) //nolint:forcetypeassert // of a TCP listener
		p.count(port)
		if !p.hold(tcp) {
			_ = tcp.Close()
			continue
		}
		p.serving.Go(func() {
			defer p.release(tcp)
			serve(tcp)
		})
	}
}

func (p *pod) count(port uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted[port]++
}

// hold remembers what is open, and reports false if everything was cut.
func (p *pod) hold(c io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		return false
	}
	p.open[c] = true
	return true
}

func (p *pod) release(c io.Closer) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// deafen closes the listeners.
func (p *pod) deafen() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
	p.listeners = nil
}

// drain closes all that is open, as ztunnel does when it is told to let a pod go, and returns when nothing runs any more.
func (p *pod) drain() { p.end(func(*net.TCPConn) {}) }

// cut does the same by resets.
func (p *pod) cut() { p.end(func(c *net.TCPConn) { _ = c.SetLinger(0) }) }

func (p *pod) end(before func(*net.TCPConn)) {
	p.deafen()
	p.stop()
	p.mu.Lock()
	for c := range p.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			before(tcp)
		}
		_ = c.Close()
	}
	p.open = nil
	p.mu.Unlock()
	p.serving.Wait()
	_ = p.ns.Close()
}

// idle is closed when the last connection has ended.
func (p *pod) idle() <-chan struct{} {
	c := make(chan struct{})
	go func() {
		p.serving.Wait()
		close(c)
	}()
	return c
}

// connect connects from inside the pod, from an address that need not be the pod's; the zero Addr lets the kernel choose.
func (p *pod) connect(from netip.Addr, to netip.AddrPort) (*net.TCPConn, error) {
	dialer := net.Dialer{Timeout: dialTimeout, Control: p.mark()}
	if from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	var conn net.Conn
	err := p.ns.Do(func() (err error) { // one address: the connection is made on this thread
		conn, err = dialer.DialContext(p.ctx, "tcp", to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil //nolint:forcetypeassert // it is what was asked for
}
