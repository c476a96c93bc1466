package ambient_test

import (
	"context"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestFates: what the pod's own sockets and its clients send, which carries no
// mark, ends up where it does under Istio's rules, if these exempt of the probes' source the port of the pod's own probe alone.
func TestFates(t *testing.T) {
	tests := []struct {
		name        string
		annotations map[string]string
		settings    settings
	}{
		{"plain", nil, settings{dns: true}},
		{"no look-ups", map[string]string{ambient.DNSCapture: "false"}, settings{}},
		{"virtual interface", map[string]string{"istio.io/reroute-virtual-interfaces": "virt0"}, settings{virtual: true, dns: true}},
		{"inbound bypass", map[string]string{"ambient.istio.io/bypass-inbound-capture": "true"}, settings{dns: true, bypass: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			programs := map[ruleset.Family]string{}
			for _, f := range ruleset.Families {
				s := tt.settings
				s.probe = 8080
				programs[f] = agentText(f, s)
			}
			pod := probed(labelled("ambient", tt.annotations))
			dialecttest.Equivalent(t, ambient.New(ambient.Options{}), netnstest.Options{}, dialecttest.Case{Pod: pod}, programs, netnstest.Probes(netnstest.Plan{}))
		})
	}
}

// TestMarkedSockets plays the node proxy in the pod's namespace: sockets with
// its mark, and with clients' addresses, reach who they ask for, and the
// answers come back to them.
func TestMarkedSockets(t *testing.T) {
	tests := []struct {
		name, from, to string
		mark           uint32
		want           string
	}{
		{"application, out", "", "10.96.5.5:80", 0, "proxy:15001 orig=10.96.5.5:80"},
		{"proxy, out", "", "10.96.5.5:80", ambient.ProxyMark, "out:80 orig=10.96.5.5:80"},
		{"proxy, out, other bits of the mark", "", "10.96.5.5:80", 0xa000 | ambient.ProxyMark, "out:80 orig=10.96.5.5:80"},
		{"another mark, out", "", "10.96.5.5:80", 0x53a, "proxy:15001 orig=10.96.5.5:80"},
		{"application to its own pod", "", "10.244.1.5:8080", 0, "app:8080 orig=10.244.1.5:8080"},
		{"proxy to the application", "", "10.244.1.5:8080", ambient.ProxyMark, "app:8080 orig=10.244.1.5:8080"},
		{"proxy to the application, from the client", "198.51.100.10", "10.244.1.5:8080", ambient.ProxyMark, "app:8080 orig=10.244.1.5:8080"},
		{"proxy, out over IPv6", "", "[fd00:96::5]:80", ambient.ProxyMark, "out:80 orig=[fd00:96::5]:80"},
		{"proxy to the application over IPv6, from the client", "2001:db8::10", "[fd00:10:244::5]:8080", ambient.ProxyMark, "app:8080 orig=[fd00:10:244::5]:8080"},
	}
	for _, backend := range dialecttest.Backends {
		t.Run(string(backend), func(t *testing.T) {
			for name, annotations := range map[string]map[string]string{
				"captured": nil, "inbound bypass": {"ambient.istio.io/bypass-inbound-capture": "true"},
			} {
				t.Run(name, func(t *testing.T) {
					w := captured(t, backend, annotations)
					for _, tt := range tests {
						assert.Equal(t, tt.want, ask(t, w.Pod, tt.from, tt.to, tt.mark), tt.name)
					}
					routing := show(t, w.Pod, "rule")
					assert.Contains(t, routing, "32764:\tfrom all fwmark 0x111/0xfff lookup 100")
					assert.Contains(t, show(t, w.Pod, "route", "show", "table", "100"), "local default dev lo")
				})
			}
		})
	}
}

// TestProbes: the kubelet's probes reach the application, by their source and the port of the pod's own. Another pod's probe that asks another
// port of this one meets the proxy.
func TestProbes(t *testing.T) {
	for _, backend := range dialecttest.Backends {
		t.Run(string(backend), func(t *testing.T) {
			w := captured(t, backend, nil)
			show(t, w.Out, "addr", "add", "169.254.7.127/32", "dev", "lo")
			show(t, w.Out, "addr", "add", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128", "dev", "lo")
			assert.Equal(t, "app:8080 orig=[fd00:10:244::5]:8080", ask(t, w.Out, "fd16:9254:7127:1337:ffff:ffff:ffff:ffff", "[fd00:10:244::5]:8080", 0))
			assert.Equal(t, "app:8080 orig=10.244.1.5:8080", ask(t, w.Out, "169.254.7.127", "10.244.1.5:8080", 0))
			assert.Equal(t, "proxy:15006 orig=10.244.1.5:8080", ask(t, w.Out, "", "10.244.1.5:8080", 0))
			assert.Equal(t, "proxy:15006 orig=10.244.1.5:80", ask(t, w.Out, "169.254.7.127", "10.244.1.5:80", 0))
			assert.Equal(t, "proxy:15006 orig=[fd00:10:244::5]:80", ask(t, w.Out, "fd16:9254:7127:1337:ffff:ffff:ffff:ffff", "[fd00:10:244::5]:80", 0))
		})
	}
}

// captured is a world whose pod has the dialect's rules for its annotations.
func captured(t *testing.T, backend ruleset.Backend, annotations map[string]string) *netnstest.World {
	t.Helper()
	rs, _, err := dialecttest.Case{Pod: probed(labelled("ambient", annotations))}.Rules(ambient.New(ambient.Options{}))
	require.NoError(t, err)
	w := netnstest.NewWorld(t, netnstest.Options{})
	set(t, w, backend, rs)
	return w
}

// set puts rules in force in the world's pod.
func set(t *testing.T, w *netnstest.World, backend ruleset.Backend, rs ruleset.Ruleset) {
	t.Helper()
	b, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: backend, Runner: w.Pod.Sandbox()})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), rs)
	require.NoError(t, err)
}

// ask connects from a namespace, with a source address and a mark, and returns
// what the listener says of itself.
func ask(t *testing.T, ns *netnsexec.NetNS, from, to string, mark uint32) string {
	t.Helper()
	var answer []byte
	err := ns.Do(func() (err error) {
		answer, err = connect(context.WithoutCancel(t.Context()), from, to, mark)
		return err
	})
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(answer))
}

// connect is ask in the calling thread's namespace.
func connect(ctx context.Context, from, to string, mark uint32) ([]byte, error) {
	dialer := net.Dialer{Timeout: netnstest.Patience, Control: marking(mark, from != "")}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(netnstest.Patience)); err != nil {
		return nil, err
	}
	return io.ReadAll(conn)
}

// marking sets up a socket as the node proxy does. A mark of 0 is none.
func marking(mark uint32, transparent bool) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) {
			if mark != 0 {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
			}
			if err == nil && transparent { // it also sets IPV6_TRANSPARENT's flag
				err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
			}
		})
		if cerr != nil {
			return cerr
		}
		return err
	}
}

func show(t *testing.T, ns *netnsexec.NetNS, args ...string) string {
	t.Helper()
	return tool(t, ns, "", "ip", args...)
}
