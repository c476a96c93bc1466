package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/internal/testing/socktest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// A pod with the rules of ambient mode, an agent, and this proxy: connections arrive both ways and through the tunnel, and the
// application sees its clients.
func TestProxy(t *testing.T) {
	w := netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}})
	rules, _, err := dialecttest.Case{Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{ambient.DataplaneMode: "ambient"}, Annotations: map[string]string{ambient.DNSCapture: "false"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}}},
	}}.Rules(ambient.New(ambient.Options{}))
	require.NoError(t, err)
	backend, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: ruleset.BackendNftables})
	require.NoError(t, err)
	_, err = backend.Apply(t.Context(), rules)
	require.NoError(t, err)
	probe := func(name string) string {
		p, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		return w.Run([]netnstest.Probe{p})[name]
	}
	const out = "pod tcp 1000/1000 -> 10.96.5.5:80"
	require.Equal(t, "refused", probe(out))

	socket := socktest.Path(t)
	netns, err := os.Open(w.Pod.Path())
	require.NoError(t, err)
	defer func() { _ = netns.Close() }()
	cart := nodeproxy.Workload{PodID: nodeproxy.PodID{UID: "uid-1", Namespace: "shop", Name: "cart"}, NetNS: netns}
	told := make(chan struct{}, 10)
	agent, err := zds.Listen(t.Context(), zds.Options{
		Path:     socket,
		Snapshot: func(context.Context) ([]nodeproxy.Workload, error) { return []nodeproxy.Workload{cart}, nil },
		OnChange: func() { told <- struct{}{} },
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served, ended := make(chan error, 1), make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	pods := map[string]*pod{}
	go func() { served <- serve(ctx, socket, pods) }()
	for agent.Ready() != nil {
		<-told
	}

	serveClients(t, w)
	for _, family := range [][2]string{{"10.244.1.5", "10.244.1.1"}, {"fd00:10:244::5", "fd00:10:244::1"}} {
		var conn net.Conn
		require.NoError(t, w.Out.Do(func() (err error) {
			conn, err = net.DialTimeout("tcp", net.JoinHostPort(family[0], "9999"), netnstest.Patience)
			return err
		}))
		client, err := io.ReadAll(conn)
		require.NoError(t, err)
		assert.Equal(t, family[1], string(client))
		_ = conn.Close()
		assert.Equal(t, family[1], through(t, w, net.JoinHostPort(family[0], "15008"), net.JoinHostPort(family[0], "9999")))
	}
	assert.Equal(t, "out:80 orig=10.96.5.5:80", probe(out))
	assert.Equal(t, "out:443 orig=[2001:db8::10]:443", probe("pod tcp 1000/1000 -> [2001:db8::10]:443"))

	require.NoError(t, agent.Add(ctx, cart), "again")
	require.NoError(t, agent.Remove(ctx, cart.UID))
	assert.Equal(t, "refused", probe(out))
	stop()
	require.NoError(t, <-ended)
	require.ErrorIs(t, <-served, io.EOF)
	assert.Empty(t, pods)
}

// through returns what the application says to a client that comes through the tunnel.
func through(t *testing.T, w *netnstest.World, tunnel, app string) string {
	t.Helper()
	var conn net.Conn
	require.NoError(t, w.Out.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", tunnel, netnstest.Patience)
		return err
	}))
	defer func() { _ = conn.Close() }()
	_, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", app, app)
	require.NoError(t, err)
	said, err := io.ReadAll(conn)
	require.NoError(t, err)
	head, client, _ := strings.Cut(string(said), "\r\n\r\n")
	assert.Equal(t, "HTTP/1.1 200 OK", head)
	return client
}

// serveClients has the application tell each client its address.
func serveClients(t *testing.T, w *netnstest.World) {
	t.Helper()
	var l net.Listener
	require.NoError(t, w.Pod.Do(func() (err error) {
		l, err = net.Listen("tcp", "[::]:9999")
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
			_ = conn.Close()
		}
	}()
}
