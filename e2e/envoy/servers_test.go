package envoy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
	"github.com/meshcni/meshcni/netnsexec"
)

// Where servers listen, beside those of netnstest's world.
const (
	portHTTP     = 8000 // HTTP/1.1, HTTP/2 without TLS, WebSocket
	portGRPC     = 8001
	portTLS      = 8002
	portTCP      = 8003 // reads to the end, then answers
	portHalf     = 8004 // answers and ends its half, then reads to the end
	portLocal    = 8005 // HTTP on the loopback address only
	portExcluded = 8006 // HTTP, which the tests' pods exclude in both directions
)

// seen is what a server says of a connection.
type seen struct {
	Server string // app or out
	Remote string // the client, as the server sees it
	Bytes  int64  // of the request's body
	Sum    string // its SHA-256
}

// servers are those of one namespace.
type servers struct {
	who   string
	owner uint32
	tls   *httptest.Server

	mu    sync.Mutex
	ended map[string]seen // by the client, of portHalf
}

// serve starts servers for both families, which end with the test.
func serve(t testing.TB, ns *netnsexec.NetNS, who string, owner uint32) *servers {
	t.Helper()
	s := &servers{who: who, owner: owner, ended: map[string]seen{}}
	for _, ip := range []string{"0.0.0.0", "::"} {
		for _, port := range []uint16{portHTTP, portExcluded} {
			s.serveHTTP(t, s.listen(t, ns, ip, port))
		}
		s.serveGRPC(t, s.listen(t, ns, ip, portGRPC))
		s.accept(t, s.listen(t, ns, ip, portTCP), s.readThenAnswer)
		s.accept(t, s.listen(t, ns, ip, portHalf), s.answerThenRead)
		server := httptest.NewUnstartedServer(http.HandlerFunc(s.answer))
		_ = server.Listener.Close()
		server.Listener = s.listen(t, ns, ip, portTLS)
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		s.tls = server
	}
	for _, ip := range []string{"127.0.0.1", "::1"} {
		s.serveHTTP(t, s.listen(t, ns, ip, portLocal))
	}
	return s
}

func (s *servers) listen(t testing.TB, ns *netnsexec.NetNS, ip string, port uint16) (l net.Listener) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		restore, err := ownsock.Become(s.owner, s.owner)
		if err != nil {
			return err
		}
		defer restore()
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		network := "tcp4"
		if netip.MustParseAddr(ip).Is6() {
			network = "tcp6"
		}
		l, err = config.Listen(t.Context(), network, net.JoinHostPort(ip, strconv.Itoa(int(port))))
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func (s *servers) serveHTTP(t testing.TB, l net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.answer)
	mux.HandleFunc("/ws", s.webSocket)
	server := &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)} //nolint:gosec // its clients are tests
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// answer says what it saw, in a header, and sends as many bytes as the query asks for.
func (s *servers) answer(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	n, err := io.Copy(hash, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Seen", s.saw(r.RemoteAddr, n, hash.Sum(nil)))
	size, _ := strconv.ParseInt(r.URL.Query().Get("size"), 10, 64)
	_, _ = io.CopyN(w, zeros{}, size)
}

func (s *servers) saw(remote string, n int64, sum []byte) string {
	text, _ := json.Marshal(seen{Server: s.who, Remote: remote, Bytes: n, Sum: hex.EncodeToString(sum)})
	return string(text)
}

// zeros is an endless stream.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func (s *servers) webSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.CloseNow() }()
	for {
		kind, message, err := c.Read(r.Context())
		if err != nil {
			return
		}
		sum := sha256.Sum256(message)
		if c.Write(r.Context(), kind, []byte(s.saw(r.RemoteAddr, int64(len(message)), sum[:]))) != nil {
			return
		}
	}
}

func (s *servers) serveGRPC(t testing.TB, l net.Listener) {
	server := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(server, &grpcServer{servers: s})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

type grpcServer struct {
	grpc_testing.UnimplementedTestServiceServer
	servers *servers
}

// FullDuplexCall answers each message of the stream.
func (g *grpcServer) FullDuplexCall(stream grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	from, _ := peer.FromContext(stream.Context())
	for {
		request, err := stream.Recv()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		body := request.GetPayload().GetBody()
		sum := sha256.Sum256(body)
		answer := g.servers.saw(from.Addr.String(), int64(len(body)), sum[:])
		if err := stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: []byte(answer)}}); err != nil {
			return err
		}
	}
}

func (s *servers) accept(t testing.TB, l net.Listener, handle func(*net.TCPConn)) {
	var handlers sync.WaitGroup
	handlers.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handlers.Go(func() {
				defer func() { _ = conn.Close() }()
				handle(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		handlers.Wait()
	})
}

func (s *servers) readThenAnswer(conn *net.TCPConn) {
	hash := sha256.New()
	n, err := io.Copy(hash, conn)
	if err == nil {
		_, _ = io.WriteString(conn, s.saw(conn.RemoteAddr().String(), n, hash.Sum(nil)))
	}
}

// answerThenRead ends its own half first.
func (s *servers) answerThenRead(conn *net.TCPConn) {
	first := make([]byte, greeting)
	if _, err := io.ReadFull(conn, first); err != nil {
		return
	}
	remote := conn.RemoteAddr().String()
	_, _ = io.WriteString(conn, s.saw(remote, greeting, nil))
	_ = conn.CloseWrite()
	hash := sha256.New()
	n, err := io.Copy(hash, conn)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[remote] = seen{Server: s.who, Remote: remote, Bytes: n, Sum: hex.EncodeToString(hash.Sum(nil))}
}

// after is what the server of portHalf read of a client after it had answered.
func (s *servers) after(client string) (seen, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	got, ok := s.ended[client]
	if !ok {
		return seen{}, fmt.Errorf("%s has not ended its half", client)
	}
	return got, nil
}

// trust is a client's TLS configuration for the servers' own certificate: nobody between them has its key.
func (s *servers) trust() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(s.tls.Certificate())
	return &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12}
}

// caller opens connections in a namespace, as a user and perhaps from an address.
type caller struct {
	netns *netnsexec.NetNS
	owner uint32
	from  netip.Addr
	// ports are from where; nil: the kernel chooses.
	ports *ports
}

// ports gives each client a port that none had before. The kernel gives a port again, towards another destination, and changes it under
// REDIRECT as long as it remembers the first connection: both have become connections to the same port of the proxy. Envoy then sees
// a port that the client does not know; see [TestPortUsedAgain].
type ports struct {
	first, count uint32
	given        atomic.Uint32
}

func (p *ports) next() uint16 {
	if p == nil {
		return 0
	}
	return uint16(p.first + (p.given.Add(1)-1)%p.count) //nolint:gosec // a port
}

// reusable lets a socket have a port whose last connection has just ended, as the kernel does when it chooses one.
func reusable(_, _ string, raw syscall.RawConn) (err error) {
	failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(failed, err)
}

func (c caller) dial(ctx context.Context, dst netip.AddrPort) (conn *net.TCPConn, err error) {
	errNS := c.netns.Do(func() error {
		restore, err := ownsock.Become(c.owner, c.owner)
		if err != nil {
			return err
		}
		defer restore()
		for range 100 {
			local := &net.TCPAddr{Port: int(c.ports.next())}
			if c.from.IsValid() {
				local.IP = c.from.AsSlice()
			}
			d := net.Dialer{LocalAddr: local, Control: reusable}
			var got net.Conn
			got, err = d.DialContext(ctx, "tcp", dst.String()) // one address: the socket is this thread's
			if err == nil {
				conn = got.(*net.TCPConn)
			}
			if c.ports == nil || !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
				break // else a connection of the proxy has the port
			}
		}
		return err
	})
	return conn, errNS
}
