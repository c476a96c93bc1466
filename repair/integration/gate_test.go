package integration

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/kubetest"
)

// gate is a TCP port in front of the API server that can be shut: connections
// break, and new ones are refused.
type gate struct {
	target, address string
	mu              sync.Mutex
	listener        net.Listener
	conns           map[net.Conn]bool
}

func newGate(t testing.TB, s *kubetest.Server) *gate {
	t.Helper()
	g := &gate{target: fmt.Sprintf("127.0.0.1:%d", s.Address().Port()), address: "127.0.0.1:0", conns: map[net.Conn]bool{}}
	require.NoError(t, g.open())
	t.Cleanup(g.shut)
	return g
}

func (g *gate) open() error {
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener, g.address = l, l.Addr().String()
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", g.target)
			if err != nil {
				_ = in.Close()
				continue
			}
			g.mu.Lock()
			if g.listener != l { // shut meanwhile
				_, _ = in.Close(), out.Close()
			}
			g.conns[in], g.conns[out] = true, true
			g.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(way[0], way[1])
					_, _ = way[0].Close(), way[1].Close()
				}()
			}
		}
	}()
	return nil
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener != nil {
		_ = g.listener.Close()
		g.listener = nil
	}
	for c := range g.conns {
		_ = c.Close()
		delete(g.conns, c)
	}
}
