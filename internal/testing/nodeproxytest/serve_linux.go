package nodeproxytest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
)

// dialTimeout is how long a connection may take to be made.
const dialTimeout = 10 * time.Second

// outbound takes a connection of the application where it was to go.
func (p *pod) outbound(conn *net.TCPConn) { p.forward(conn, conn, netip.Addr{}, originalDst(conn)) }

// inbound takes a client's connection to the application, which sees the client's address.
func (p *pod) inbound(conn *net.TCPConn) { p.forward(conn, conn, peerOf(conn), originalDst(conn)) }

// tunnel does the same for the address that the client names.
func (p *pod) tunnel(conn *net.TCPConn) {
	reader := bufio.NewReader(conn)
	if first, err := reader.Peek(3); err == nil && string(first) == "PRI" { // the preface of HTTP/2: RFC 9113, 3.4
		p.streams(conn, reader)
		return
	}
	request, err := http.ReadRequest(reader)
	if err != nil || request.Method != http.MethodConnect {
		_, _ = io.WriteString(conn, "HTTP/1.1 405 Method Not Allowed\r\n\r\n")
		return
	}
	to, err := netip.ParseAddrPort(request.Host)
	if err != nil {
		_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
		return
	}
	p.forwardAfter(conn, reader, peerOf(conn), to, "HTTP/1.1 200 OK\r\n\r\n")
}

// streams takes a connection that its peer keeps for many, each a stream, as ztunnel does, until it ends.
func (p *pod) streams(conn *net.TCPConn, reader io.Reader) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	ended := make(chan struct{})
	server := http.Server{Protocols: &protocols, ReadHeaderTimeout: dialTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := netip.ParseAddrPort(r.Host)
		if err != nil || r.Method != http.MethodConnect {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		out, err := p.connect(peerOf(conn), to)
		if err == nil && !p.hold(out) {
			_, err = out.Close(), net.ErrClosed
		}
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer p.release(out)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		go func() {
			_, _ = io.Copy(out, r.Body)
			_ = out.CloseWrite()
		}()
		_, _ = io.Copy(flushing{w}, out)
	}), ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(ended)
		}
	}}
	accept := one(buffered{conn, reader})
	_ = server.Serve(&accept)
	<-ended
}

// one is a listener of one connection.
type one buffered

func (o *one) Accept() (net.Conn, error) {
	if o.Conn == nil {
		return nil, net.ErrClosed
	}
	c := buffered(*o)
	*o = one{}
	return c, nil
}
func (o *one) Close() error   { return nil }
func (o *one) Addr() net.Addr { return nil }

// buffered is a connection of which something was read ahead.
type buffered struct {
	net.Conn

	reader io.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.reader.Read(p) }

// flushing sends each write at once.
type flushing struct{ http.ResponseWriter }

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.ResponseWriter.Write(b)
	return n, errors.Join(err, http.NewResponseController(f.ResponseWriter).Flush())
}

func peerOf(conn *net.TCPConn) netip.Addr {
	return conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap() //nolint:forcetypeassert // of a TCP connection
}

// originalDst is invalid if the connection was not redirected.
func originalDst(conn *net.TCPConn) netip.AddrPort {
	local := conn.LocalAddr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // of a TCP connection
	to := ownsock.DstBeforeNAT(conn)
	if to == netip.AddrPortFrom(local.Addr().Unmap(), local.Port()) {
		return netip.AddrPort{}
	}
	return to
}

func (p *pod) forward(conn *net.TCPConn, from io.Reader, source netip.Addr, to netip.AddrPort) {
	p.forwardAfter(conn, from, source, to, "")
}

// forwardAfter connects, says a greeting to the client, and copies both ways. If it cannot connect, the client's connection
// is reset; one that was not redirected is closed.
func (p *pod) forwardAfter(conn *net.TCPConn, from io.Reader, source netip.Addr, to netip.AddrPort, greeting string) {
	if !to.IsValid() {
		return
	}
	if !p.known() {
		p.opts.Log.Info("unknown workload", "pod", p.uid, "to", to)
		return
	}
	out, err := p.connect(source, to)
	if err == nil && !p.hold(out) {
		err = net.ErrClosed
		_ = out.Close()
	}
	if err != nil {
		p.opts.Log.Info("cannot forward", "pod", p.uid, "to", to, "err", err)
		_ = conn.SetLinger(0)
		return
	}
	defer p.release(out)
	_, _ = io.WriteString(conn, greeting)
	var both sync.WaitGroup
	both.Go(func() { pipe(out, from) })
	both.Go(func() { pipe(conn, out) })
	both.Wait()
}

// pipe copies until the end of what comes, and passes that end on.
func pipe(to *net.TCPConn, from io.Reader) {
	if _, err := io.Copy(to, from); err != nil {
		_ = to.SetLinger(0)
		_ = to.Close()
		return
	}
	_ = to.CloseWrite()
}

// maxDNS is the largest answer to a datagram: RFC 1035, 4.2.1.
const maxDNS = 512

func (p *pod) dnsDatagrams(c net.PacketConn) {
	for query := make([]byte, 65535); ; {
		n, from, err := c.ReadFrom(query)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.count(p.opts.DNS)
		if answer, err := p.resolve(query[:n]); err == nil && len(answer) <= maxDNS {
			_, _ = c.WriteTo(answer, from)
		}
	}
}

func (p *pod) dnsStream(conn *net.TCPConn) {
	for {
		query, err := readDNS(conn)
		if err != nil {
			return
		}
		answer, err := p.resolve(query)
		if err != nil {
			return
		}
		if _, err := conn.Write(frameDNS(answer)); err != nil {
			return
		}
	}
}

// readDNS and frameDNS: over TCP, a message comes after its length (RFC 1035, 4.2.2).
func readDNS(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, message)
	return message, err
}

func frameDNS(message []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...) //nolint:gosec // at most 64 KiB
}

// resolve answers a query, or has the upstream answer it.
func (p *pod) resolve(query []byte) ([]byte, error) {
	if p.opts.Upstream.IsValid() {
		conn, err := p.connect(netip.Addr{}, p.opts.Upstream)
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
			return nil, err
		}
		if _, err := conn.Write(frameDNS(query)); err != nil {
			return nil, err
		}
		return readDNS(conn)
	}
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	m.Response, m.RecursionAvailable = true, true
	m.Answers, m.Authorities, m.Additionals = nil, nil, nil
	for _, q := range m.Questions {
		for _, a := range p.opts.Addrs {
			header := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}
			switch {
			case a.Is4() && q.Type == dnsmessage.TypeA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: a.As4()}})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
	}
	return m.Pack()
}
