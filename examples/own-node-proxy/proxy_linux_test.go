package ownnodeproxy_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	ownnodeproxy "github.com/meshcni/meshcni/examples/own-node-proxy"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy"
)

func TestGateway(t *testing.T) {
	first, second := netnstest.New(t), netnstest.New(t)
	workload := func(path string) nodeproxy.Workload {
		file, err := os.Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { _ = file.Close() })
		return nodeproxy.Workload{PodID: nodeproxy.PodID{UID: "uid-1", Namespace: "shop", Name: "cart"}, NetNS: file}
	}
	gateway := &ownnodeproxy.Gateway{Port: 7001, Serve: func(pod nodeproxy.PodID, conn net.Conn) {
		_, _ = fmt.Fprintf(conn, "the gateway has %s/%s", pod.Namespace, pod.Name)
		_ = conn.Close()
	}}
	ask := func(ns interface{ Do(func() error) error }) (answer string, err error) {
		err = ns.Do(func() error {
			conn, err := net.Dial("tcp", "127.0.0.1:7001")
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			said, err := io.ReadAll(conn)
			answer = string(said)
			return err
		})
		return answer, err
	}
	require.NoError(t, gateway.Ready())
	require.NoError(t, gateway.Remove(t.Context(), "uid-1"), "a pod that it does not have")
	_, err := ask(first)
	require.Error(t, err)

	require.NoError(t, gateway.Add(t.Context(), workload(first.Path())))
	require.NoError(t, gateway.Add(t.Context(), workload(first.Path())), "again")
	said, err := ask(first)
	require.NoError(t, err)
	assert.Equal(t, "the gateway has shop/cart", said)

	require.NoError(t, gateway.Add(t.Context(), workload(second.Path())), "its namespace is another")
	_, err = ask(first)
	require.Error(t, err)
	_, err = ask(second)
	require.NoError(t, err)

	require.NoError(t, gateway.Remove(t.Context(), "uid-1"))
	_, err = ask(second)
	require.Error(t, err)
	require.Error(t, gateway.Add(t.Context(), workload("/proc/self/ns/net")), "the host's")
}
