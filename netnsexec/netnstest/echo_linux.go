package netnstest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// messageSize is the size in bytes of what a probe sends at once to who sends it back.
const messageSize = 700

// errEcho says that what came back is not what was sent.
var errEcho = errors.New("what came back is not what was sent")

// saysPeer is the line of who answers: what it is, and whom it speaks with.
func saysPeer(line string, peer netip.Addr) []byte {
	return fmt.Appendf(nil, "%s peer=%s\n", line, peer.Unmap().WithZone(""))
}

// echo serves a server's TCP connections until the test ends.
type echo struct {
	mu    sync.Mutex
	conns map[*net.TCPConn]bool // nil once the test has ended
	done  sync.WaitGroup
}

func newEcho(tb testing.TB) *echo {
	e := &echo{conns: map[*net.TCPConn]bool{}}
	tb.Cleanup(func() {
		e.mu.Lock()
		conns := e.conns
		e.conns = nil
		e.mu.Unlock()
		for conn := range conns {
			_ = conn.Close()
		}
		e.done.Wait()
	})
	return e
}

// serve says the line, and then sends back what it gets until the client hangs up.
func (e *echo) serve(conn *net.TCPConn, line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conns == nil {
		_ = conn.Close()
		return
	}
	e.conns[conn] = true
	e.done.Go(func() {
		peer := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		if _, err := conn.Write(saysPeer(line, peer)); err == nil {
			_, _ = io.Copy(conn, conn) // the client notices errors
		}
		_ = conn.Close()
		e.mu.Lock()
		delete(e.conns, conn)
		e.mu.Unlock()
	})
}

// message is what a probe sends: random, so that nothing else can be taken for it.
func message() []byte {
	b := make([]byte, messageSize)
	for i := range b {
		b[i] = byte(rand.Uint32()) //nolint:gosec // no secret
	}
	return b
}

// converse speaks with who sends back what it gets, twice, and returns what that said of itself.
func converse(socket *os.File, proto string, deadline time.Time) (string, error) {
	_ = socket.SetDeadline(deadline)
	if proto == "udp" {
		line, err := exchangeDatagram(socket, deadline)
		if err == nil {
			_, err = exchangeDatagram(socket, deadline)
		}
		return line, err
	}
	r := bufio.NewReader(socket)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	for range 2 {
		sent, got := message(), make([]byte, messageSize)
		if _, err := socket.Write(sent); err != nil {
			return "", err
		}
		if _, err := io.ReadFull(r, got); err != nil {
			return "", err
		}
		if !bytes.Equal(sent, got) {
			return "", errEcho
		}
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// exchangeDatagram sends a datagram, again and again, until it comes back.
func exchangeDatagram(socket *os.File, deadline time.Time) (string, error) {
	sent, buf := message(), make([]byte, 2*messageSize)
	for {
		if _, err := socket.Write(sent); err != nil {
			return "", err
		}
		for {
			_ = socket.SetReadDeadline(time.Now().Add(min(resend, time.Until(deadline))))
			n, err := socket.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(deadline) {
				break // send it again
			}
			if err != nil {
				return "", err
			}
			// An answer to a datagram that was sent twice may come late.
			if line, rest, ok := bytes.Cut(buf[:n], []byte{'\n'}); ok && bytes.Equal(rest, sent) {
				return string(line), nil
			}
		}
	}
}
