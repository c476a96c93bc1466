package nodeproxytest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/socktest"
	"github.com/meshcni/meshcni/internal/testing/streamtest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// captured is a world whose pod has the rules of ambient mode, and no proxy yet.
func captured(t *testing.T, backend ruleset.Backend, annotations map[string]string) *netnstest.World {
	t.Helper()
	w := netnstest.NewWorld(t, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "cart", Labels: map[string]string{ambient.DataplaneMode: "ambient"}, Annotations: annotations,
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "cart"}}},
	}
	rules, _, err := dialecttest.Case{Pod: pod}.Rules(ambient.New(ambient.Options{}))
	require.NoError(t, err)
	b, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: backend, Runner: w.Pod.Sandbox()})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), rules)
	require.NoError(t, err)
	return w
}

// speak connects from a namespace, says something, ends its half, and returns all of the answer.
func speak(t testing.TB, ns *netnsexec.NetNS, to, say string) string {
	t.Helper()
	conn := dial(t, ns, to)
	defer func() { _ = conn.Close() }()
	_, err := io.WriteString(conn, say)
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(answer)
}

func dial(t testing.TB, ns *netnsexec.NetNS, to string) *net.TCPConn {
	t.Helper()
	var conn net.Conn
	require.NoError(t, ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", to, patience)
		return err
	}))
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn.(*net.TCPConn)
}

// serve answers each connection in a namespace, once the client has ended its half, with what it said and who it is.
func serve(t testing.TB, ns *netnsexec.NetNS, at string) {
	t.Helper()
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", at)
		return err
	}))
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = conn.Close() }()
				said, _ := io.ReadAll(conn)
				peer := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
				_, _ = fmt.Fprintf(conn, "%s from %s", said, peer)
			})
		}
	})
}

// connectTo is what a client of the tunnel says and hears first.
func tunnel(t testing.TB, ns *netnsexec.NetNS, through, to, say string) string {
	t.Helper()
	conn := dial(t, ns, through)
	defer func() { _ = conn.Close() }()
	_, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n%s", to, to, say)
	require.NoError(t, err)
	require.NoError(t, conn.CloseWrite())
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // it is the tunnel, which ends with the connection
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	answer, err := io.ReadAll(reader)
	require.NoError(t, err)
	return string(answer)
}

func lookUp(t testing.TB, ns *netnsexec.NetNS, network string) []netip.Addr {
	t.Helper()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, "10.96.0.10:53")
			return err
		})
		return conn, err
	}}
	addrs, err := resolver.LookupNetIP(t.Context(), "ip4", "bank.example.")
	require.NoError(t, err)
	return addrs
}

// Everything of a captured pod passes by its proxy, in the namespace that was handed over, and the application sees its
// clients.
func TestCaptured(t *testing.T) {
	for _, backend := range dialecttest.Backends {
		for _, bypass := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bypass %t", backend, bypass), func(t *testing.T) {
				annotations := map[string]string{}
				if bypass {
					annotations["ambient.istio.io/bypass-inbound-capture"] = "true"
				}
				w := captured(t, backend, annotations)
				serve(t, w.Pod, "[::]:9999")
				const out = "pod tcp 1000/1000 -> 10.96.5.5:80"
				require.Equal(t, "refused", fate(t, w, out), "without a proxy")

				a := newAgent(t, socktest.Path(t), patience)
				p := start(t, nodeproxytest.Options{Socket: a.path})
				a.ready(t, 1)
				require.NoError(t, a.Add(t.Context(), workload(t, "cart", w.Pod)))
				pod, ok := p.State().Pods["cart"]
				require.True(t, ok)
				assert.Equal(t, w.Pod.ID(), pod.NetNS)
				assert.Equal(t, []string{"shop", "cart", "cart"}, []string{pod.Namespace, pod.Name, pod.ServiceAccount})

				assert.Equal(t, "out:80 orig=10.96.5.5:80", fate(t, w, out))
				assert.Equal(t, "out:443 orig=[2001:db8::10]:443", fate(t, w, "pod tcp 1000/1000 -> [2001:db8::10]:443"))
				assert.Equal(t, "hello from 10.244.1.1", speak(t, w.Out, "10.244.1.5:9999", "hello"))
				assert.Equal(t, "hello from fd00:10:244::1", speak(t, w.Out, "[fd00:10:244::5]:9999", "hello"))
				assert.Equal(t, "hello from 10.244.1.1", tunnel(t, w.Out, "10.244.1.5:15008", "10.244.1.5:9999", "hello"))
				assert.Equal(t, "hello from fd00:10:244::1", tunnel(t, w.Out, "[fd00:10:244::5]:15008", "[fd00:10:244::5]:9999", "hello"))
				for _, network := range []string{"udp", "tcp"} {
					assert.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.53")}, lookUp(t, w.Pod, network))
				}

				pod = p.State().Pods["cart"]
				want := map[uint16]int{15001: 2, 15006: 2, 15008: 2, 15053: 2}
				if bypass {
					delete(want, 15006)
				}
				assert.Equal(t, want, pod.Accepted)

				require.NoError(t, a.Remove(t.Context(), "cart"))
				assert.Equal(t, "refused", fate(t, w, out))
			})
		}
	}
}

// While one proxy takes the place of another, or one agent of another, or both, no connection is lost, and those that are open
// live on.
func TestSwap(t *testing.T) {
	for _, backend := range dialecttest.Backends {
		t.Run(string(backend), func(t *testing.T) {
			w := captured(t, backend, nil)
			// No proxy sets it; without it, what waits in the queue of the old one's listener is reset.
			require.NoError(t, w.Pod.Do(func() error {
				return os.WriteFile("/proc/sys/net/ipv4/tcp_migrate_req", []byte("1"), 0)
			}))
			serve(t, w.Out, "[::]:9999")
			path := socktest.Path(t)
			a := newAgent(t, path, patience)
			cart := workload(t, "cart", w.Pod)
			o := nodeproxytest.Options{Socket: path, Drain: patience}
			proxy := nodeproxytest.StartProcess(t, o)
			a.ready(t, 1)
			a.hold(cart)
			require.NoError(t, a.Add(t.Context(), cart))
			swapProxy := func() {
				next := nodeproxytest.StartProcess(t, o)
				a.ready(t, 2)
				proxy.Terminate()
				a.ready(t, 1)
				require.Equal(t, next.State().PID, a.Proxies()[0].PID)
				proxy = next
			}
			swapAgent := func() {
				a.stop()
				a = newAgent(t, path, patience, cart)
			}
			probe, err := netnstest.ParseProbe("pod tcp 1000/1000 -> 10.96.5.5:80")
			require.NoError(t, err)
			stop := streamtest.Start(t, w, probe)
			for name, swap := range map[string]func(){
				"proxy":            swapProxy,
				"agent":            func() { swapAgent(); a.ready(t, 1) },
				"agent, and proxy": func() { swapAgent(); swapProxy() },
			} {
				long, old := dial(t, w.Pod, "10.96.5.5:9999"), proxy
				eventually(t, "the proxy has the connection", func() bool {
					pod := proxy.State().Pods["cart"]
					return pod.Open > 0
				})
				swap()
				_, err := io.WriteString(long, "hello")
				require.NoError(t, err)
				require.NoError(t, long.CloseWrite())
				answer, err := io.ReadAll(long)
				require.NoError(t, err)
				assert.Equal(t, "hello from 10.244.1.5", string(answer), name)
				_ = long.Close()
				if proxy != old {
					require.Zero(t, old.ExitCode(), name)
				}
			}
			fates := stop()
			assert.Positive(t, fates["out:80 orig=10.96.5.5:80"])
			assert.Len(t, fates, 1, "%v", fates)
		})
	}
}
