package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// proxyMark is the mark by which the rules of ambient mode know the proxy's packets.
const proxyMark = 0x539

// readyFile is there once the proxy was told its first snapshot, for a probe of its container.
const readyFile = "/ready"

// tunnelPort is where peers of ambient mode connect.
const tunnelPort = 15008

// ztunnel is a proxy of the whole node: it asks the agent at a socket for pods, and listens in the network namespace of each. It
// answers as a sidecar of these tests does, with where the connection was to go, or with forward passes it on there. It ends with SIGTERM.
func ztunnel(path string, forward bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	pods := inpods{forward: forward, byUID: map[string]*inpod{}}
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		client, err := zds.Dial(ctx, path)
		if err == nil {
			pause = firstPause
			fmt.Println("connected")
			end := context.AfterFunc(ctx, func() { _ = client.Close() })
			err = pods.serve(client)
			end()
			_ = client.Close()
		}
		fmt.Println("disconnected:", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	for _, p := range pods.byUID {
		p.deafen()
	}
	deadline := time.Now().Add(drain)
	for _, p := range pods.byUID {
		for p.carries() && time.Now().Before(deadline) {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// As ztunnel: the pauses before it connects to the agent again, and how long connections may go on after SIGTERM.
const (
	firstPause, lastPause = 20 * time.Millisecond, 15 * time.Second
	drain                 = 25 * time.Second
)

// inpods are the pods that the proxy has.
type inpods struct {
	forward bool
	byUID   map[string]*inpod
}

type inpod struct {
	ns        *os.File // nil: connections are answered, and not passed on
	inode     uint64
	listeners []interface{ Close() error }

	mu   sync.Mutex
	open map[net.Conn]bool // nil: all were closed
}

// serve answers a connection, until the proxy lets go of the pod.
func (p *inpod) serve(conn net.Conn, answer func(net.Conn)) {
	p.mu.Lock()
	held := p.open != nil
	if held {
		p.open[conn] = true
	}
	p.mu.Unlock()
	if held {
		answer(conn)
	}
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
}

func (p *inpod) carries() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open) > 0
}

func (p *inpod) deafen() {
	for _, l := range p.listeners {
		_ = l.Close()
	}
}

func (all inpods) drop(uid string) {
	if p := all.byUID[uid]; p != nil {
		p.close()
		delete(all.byUID, uid)
		fmt.Println("dropped", uid)
	}
}

// serve does what the agent asks for until the connection ends.
func (all inpods) serve(client *zds.Client) error {
	named, ready := map[string]bool{}, false
	for {
		request, ns, err := client.Receive()
		if err != nil {
			return err
		}
		var refusal error
		switch request.Kind {
		case zds.Add:
			named[request.UID] = true
			refusal = all.add(request, ns)
		case zds.Keep:
			named[request.UID] = true
		case zds.Del:
			all.drop(request.UID)
		case zds.SnapshotSent:
			ready = true
			for uid := range all.byUID {
				if !named[uid] {
					all.drop(uid)
				}
			}
		}
		if ns != nil {
			_ = ns.Close()
		}
		if err := client.Ack(refusal); err != nil {
			return err
		}
		if ready {
			if err := os.WriteFile(readyFile, []byte("ready\n"), 0o600); err != nil {
				return err
			}
		}
	}
}

func (all inpods) add(request zds.Request, ns *os.File) error {
	if ns == nil {
		return errors.New("no network namespace came along")
	}
	var is unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &is); err != nil {
		return err
	}
	if had := all.byUID[request.UID]; had != nil && had.inode == is.Ino {
		return nil
	}
	all.drop(request.UID)
	p := &inpod{inode: is.Ino, open: map[net.Conn]bool{}}
	if all.forward {
		fd, err := unix.FcntlInt(ns.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		p.ns = os.NewFile(uintptr(fd), ns.Name())
	}
	if err := inside(ns, p.listen); err != nil {
		p.close()
		return err
	}
	all.byUID[request.UID] = p
	fmt.Printf("added %s %s/%s %s\n", request.UID, request.Info.Namespace, request.Info.Name, request.Info.ServiceAccount)
	return nil
}

// close closes all listeners and connections at once.
func (p *inpod) close() {
	p.deafen()
	p.mu.Lock()
	for conn := range p.open {
		_ = conn.Close()
	}
	p.open = nil
	p.mu.Unlock()
	if p.ns != nil {
		_ = p.ns.Close()
	}
}

// inside calls do on a thread in the namespace, which ends with it.
func inside(ns *os.File, do func() error) (err error) {
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err == nil {
			err = do()
		}
	})
	wg.Wait()
	return err
}

// markOwn makes a socket one of the proxy's.
func markOwn(_, _ string, raw syscall.RawConn) (err error) {
	if errRaw := raw.Control(func(fd uintptr) {
		err = errors.Join(
			os.NewSyscallError("setsockopt SO_REUSEPORT", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)),
			os.NewSyscallError("setsockopt SO_MARK", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, proxyMark)))
	}); errRaw != nil {
		return errRaw
	}
	return err
}

// relay passes a connection on to where it was to go, from within the pod.
func (p *inpod) relay(conn *net.TCPConn) error {
	to := ownsock.DstBeforeNAT(conn)
	var onward net.Conn
	if err := inside(p.ns, func() (err error) {
		d := net.Dialer{Control: markOwn, Timeout: 5 * time.Second}
		onward, err = d.Dial("tcp", to.String())
		return err
	}); err != nil {
		return err
	}
	defer func() { _ = onward.Close() }()
	go func() {
		_, _ = io.Copy(onward, conn)
		_ = onward.(*net.TCPConn).CloseWrite()
	}()
	_, err := io.Copy(conn, onward)
	return err
}

// listen opens the ports that the rules redirect to.
func (p *inpod) listen() error {
	config := net.ListenConfig{Control: markOwn}
	ctx := context.Background()
	for _, address := range []string{
		fmt.Sprint(":", outboundPort), fmt.Sprint(":", inboundPort), fmt.Sprint(":", tunnelPort),
		fmt.Sprint("127.0.0.1:", dnsPort), fmt.Sprint("[::1]:", dnsPort),
	} {
		l, err := config.Listen(ctx, "tcp", address)
		if err != nil && errors.Is(err, unix.EADDRNOTAVAIL) {
			continue // there is no IPv6
		}
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, l)
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		if port == dnsPort {
			go accept(l, func(conn net.Conn) { p.serve(conn, answerTCP) })
			continue
		}
		answer := func(conn net.Conn) {
			if p.ns != nil {
				if err := p.relay(conn.(*net.TCPConn)); err != nil {
					fmt.Println("relay:", err)
				}
				return
			}
			peer, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
			_, _ = fmt.Fprintf(conn, "app:%d orig=%s peer=%s\n", port, ownsock.DstBeforeNAT(conn.(*net.TCPConn)), peer.Addr().Unmap())
		}
		go accept(l, func(conn net.Conn) { p.serve(conn, answer) })
	}
	for _, loopback := range []string{"127.0.0.1", "[::1]"} {
		conn, err := config.ListenPacket(ctx, "udp", fmt.Sprint(loopback, ":", dnsPort))
		if err != nil && errors.Is(err, unix.EADDRNOTAVAIL) {
			continue
		}
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, conn)
		go answerUDP(conn)
	}
	return nil
}
