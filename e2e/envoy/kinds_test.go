package envoy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"

	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// exchange is one conversation, as its two ends saw it.
type exchange struct {
	client string // the client's own address
	seen   seen   // what the server saw
}

// kind is a way to talk.
type kind struct {
	name string
	port uint16
	log  string // http or tcp: what Envoy takes it for
	talk func(t *testing.T, c caller, dst netip.AddrPort, s *servers) exchange
}

func kinds() []kind {
	return []kind{
		{"HTTP1", portHTTP, "http", http1},
		{"HTTP2", portHTTP, "http", http2},
		{"gRPC", portGRPC, "http", grpcStream},
		{"WebSocket", portHTTP, "http", webSocket},
		{"TLS", portTLS, "tcp", overTLS},
		{"body", portHTTP, "http", body},
		{"half-closed by the client", portTCP, "tcp", clientEnds},
		{"half-closed by the server", portHalf, "tcp", serverEnds},
	}
}

// client returns an HTTP client, and the address of its one connection.
func (c caller) client(t testing.TB, change func(*http.Transport)) (*http.Client, *string) {
	t.Helper()
	var local string
	transport := &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		conn, err := c.dial(ctx, netip.MustParseAddrPort(address))
		if err != nil {
			return nil, err
		}
		local = conn.LocalAddr().String()
		return conn, nil
	}}
	if change != nil {
		change(transport)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: talkTime}, &local
}

// request makes one request and returns what the server saw, and how long its answer is.
func request(t testing.TB, client *http.Client, method, url string, body io.Reader) (saw seen, proto string, size int64) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, json.Unmarshal([]byte(resp.Header.Get("Seen")), &saw), "%v", resp.Header)
	size, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return saw, resp.Proto, size
}

func http1(t *testing.T, c caller, dst netip.AddrPort, _ *servers) exchange {
	client, local := c.client(t, nil)
	saw, proto, _ := request(t, client, http.MethodGet, "http://"+dst.String()+"/", nil)
	assert.Equal(t, "HTTP/1.1", proto)
	return exchange{*local, saw}
}

func http2(t *testing.T, c caller, dst netip.AddrPort, _ *servers) exchange {
	client, local := c.client(t, func(tr *http.Transport) {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	})
	saw, proto, _ := request(t, client, http.MethodGet, "http://"+dst.String()+"/", nil)
	assert.Equal(t, "HTTP/2.0", proto)
	return exchange{*local, saw}
}

// grpcStream has three messages answered on one stream.
func grpcStream(t *testing.T, c caller, dst netip.AddrPort, _ *servers) (x exchange) {
	conn, err := grpc.NewClient("passthrough:///"+dst.String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := c.dial(ctx, netip.MustParseAddrPort(address))
			if err == nil {
				x.client = conn.LocalAddr().String()
			}
			return conn, err
		}))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), talkTime)
	defer cancel()
	stream, err := grpc_testing.NewTestServiceClient(conn).FullDuplexCall(ctx)
	require.NoError(t, err)
	for i := range 3 {
		message := bytes.Repeat([]byte{'m'}, 1000*(i+1))
		require.NoError(t, stream.Send(&grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: message}}))
		answer, err := stream.Recv()
		require.NoError(t, err)
		x.seen = sawOf(t, answer.GetPayload().GetBody(), message)
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	return x
}

// sawOf reads a server's answer to a message.
func sawOf(t testing.TB, answer, message []byte) (saw seen) {
	t.Helper()
	require.NoError(t, json.Unmarshal(answer, &saw), "%s", answer)
	sum := sha256.Sum256(message)
	require.Equal(t, hex.EncodeToString(sum[:]), saw.Sum)
	return saw
}

func webSocket(t *testing.T, c caller, dst netip.AddrPort, _ *servers) (x exchange) {
	client, local := c.client(t, nil)
	client.Timeout = 0 // the library's: with one, it refuses to upgrade
	ctx, cancel := context.WithTimeout(t.Context(), talkTime)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws://"+dst.String()+"/ws", &websocket.DialOptions{HTTPClient: client}) //nolint:bodyclose // the connection's
	require.NoError(t, err)
	for i := range 3 {
		message := bytes.Repeat([]byte{'w'}, 1000*(i+1))
		require.NoError(t, conn.Write(ctx, websocket.MessageBinary, message))
		_, answer, err := conn.Read(ctx)
		require.NoError(t, err)
		x.seen = sawOf(t, answer, message)
	}
	require.NoError(t, conn.Close(websocket.StatusNormalClosure, ""))
	x.client = *local
	return x
}

func overTLS(t *testing.T, c caller, dst netip.AddrPort, s *servers) exchange {
	client, local := c.client(t, func(tr *http.Transport) { tr.TLSClientConfig = s.trust() })
	saw, _, _ := request(t, client, http.MethodGet, "https://"+dst.String()+"/", nil)
	client.CloseIdleConnections() // Envoy logs bytes when they end
	return exchange{*local, saw}
}

// body sends a large body and gets one.
func body(t *testing.T, c caller, dst netip.AddrPort, _ *servers) exchange {
	client, local := c.client(t, nil)
	hash := sha256.New()
	upload := io.TeeReader(io.LimitReader(zeros{}, bodySize), hash)
	saw, _, size := request(t, client, http.MethodPost, fmt.Sprintf("http://%s/body?size=%d", dst, bodySize), upload)
	assert.EqualValues(t, bodySize, saw.Bytes)
	assert.Equal(t, hex.EncodeToString(hash.Sum(nil)), saw.Sum)
	assert.EqualValues(t, bodySize, size)
	return exchange{*local, saw}
}

const (
	message  = 1 << 20 // what the half-closed connections carry
	greeting = 64      // before it; Envoy reads this far to see what is spoken
)

// clientEnds ends its half before the server says anything.
func clientEnds(t *testing.T, c caller, dst netip.AddrPort, _ *servers) (x exchange) {
	conn := c.connect(t, dst)
	hash := sha256.New()
	_, err := io.Copy(io.MultiWriter(conn, hash), io.LimitReader(zeros{}, message))
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(answer, &x.seen), "%s", answer)
	assert.EqualValues(t, message, x.seen.Bytes)
	assert.Equal(t, hex.EncodeToString(hash.Sum(nil)), x.seen.Sum)
	x.client = conn.LocalAddr().String()
	return x
}

// serverEnds goes on when the server has ended its half.
func serverEnds(t *testing.T, c caller, dst netip.AddrPort, s *servers) (x exchange) {
	conn := c.connect(t, dst)
	_, err := conn.Write(make([]byte, greeting))
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(answer, &x.seen), "%s", answer)
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(conn, hash), io.LimitReader(zeros{}, message))
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	require.NoError(t, proctest.Poll(talkTime, func() error {
		after, err := s.after(x.seen.Remote)
		if err == nil {
			assert.EqualValues(t, message, after.Bytes)
			assert.Equal(t, hex.EncodeToString(hash.Sum(nil)), after.Sum)
		}
		return err
	}))
	x.client = conn.LocalAddr().String()
	return x
}

func (c caller) connect(t testing.TB, dst netip.AddrPort) *net.TCPConn {
	t.Helper()
	conn, err := c.dial(t.Context(), dst)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(talkTime)))
	return conn
}
