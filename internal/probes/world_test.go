//go:build linux

package probes_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var (
	source4 = netip.MustParseAddr("169.254.7.127")
	source6 = netip.MustParseAddr("fd16:9254:7127:1337:ffff:ffff:ffff:ffff")
	pod4    = netip.MustParseAddr("10.244.1.5")
	pod6    = netip.MustParseAddr("fd00:10:244::5")
	podAddr = []netip.Addr{pod4, pod6}
)

// world is a node: the host, a captured pod behind a veth, and a pod of another network that the host forwards for.
type world struct {
	*netnstest.World
	host, other *netnsexec.NetNS
}

// peerPort is where the captured pod says who connected; what it did not let pass, its proxy answers.
const peerPort = "8081"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{World: netnstest.NewWorld(t, netnstest.Options{}), other: netnstest.New(t)}
	w.host = w.Out
	require.NoError(t, w.host.Do(func() error {
		for path, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "1", "ipv4/conf/default/rp_filter": "1"} {
			if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0); err != nil {
				return err
			}
		}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(w.other.Fd())})
	}))
	for _, line := range []string{"addr add 10.244.2.1/24 dev other", "-6 addr add fd00:10:244:2::1/64 dev other nodad", "link set other up"} {
		do(t, w.host, "ip", strings.Fields(line)...)
	}
	for _, line := range []string{
		"addr add 10.244.2.5/24 dev eth0", "-6 addr add fd00:10:244:2::5/64 dev eth0 nodad", "link set eth0 up",
		"route add default via 10.244.2.1", "-6 route add default via fd00:10:244:2::1",
	} {
		do(t, w.other, "ip", strings.Fields(line)...)
	}
	waittest.Addrs(t, w.host)
	waittest.Addrs(t, w.other)
	w.listen(t, w.Pod)
	return w
}

// listen answers each connection to peerPort with the address that it came from.
func (w *world) listen(t *testing.T, ns *netnsexec.NetNS) {
	t.Helper()
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", ":"+peerPort)
		return err
	}))
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(c, "peer=%s", c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
			_ = c.Close()
		}
	}()
}

// capture puts the rules of a pod of the ambient mesh in force.
func (w *world) capture(t *testing.T) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", Labels: map[string]string{ambient.DataplaneMode: "ambient"}}}
	pod.Spec.Containers = []corev1.Container{{Name: "app", ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.Parse(peerPort)}}}}}
	rs, _, err := dialecttest.Case{Pod: pod}.Rules(ambient.New(ambient.Options{}))
	require.NoError(t, err)
	b, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: ruleset.BackendNftables})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), rs)
	require.NoError(t, err)
}

func (w *world) set(t *testing.T) *probes.Set {
	t.Helper()
	s, err := probes.New(probes.Options{NetNS: w.host, IPv4: source4, IPv6: source6})
	require.NoError(t, err)
	return s
}

// do runs a program in a namespace and returns what it prints.
func do(t *testing.T, ns *netnsexec.NetNS, program string, args ...string) string {
	t.Helper()
	return feed(t, ns, "", program, args...)
}

func feed(t *testing.T, ns *netnsexec.NetNS, input, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	var out strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &out
	require.NoError(t, ns.Run(cmd), "%s %v: %s", program, args, &out)
	return out.String()
}

// ask connects from a namespace and returns the answer: "peer=…" of the application, or "proxy:15006 …".
func ask(t *testing.T, ns *netnsexec.NetNS, to netip.Addr, port string) string {
	t.Helper()
	return try(t, ns, to, port, netnstest.Patience)
}

// try is ask with the patience for the connection.
func try(t *testing.T, ns *netnsexec.NetNS, to netip.Addr, port string, patience time.Duration) string {
	t.Helper()
	var answer []byte
	err := ns.Do(func() error {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(to.String(), port), patience)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if err := c.SetDeadline(time.Now().Add(netnstest.Patience)); err != nil {
			return err
		}
		answer, err = io.ReadAll(c)
		return err
	})
	if err != nil {
		return err.Error()
	}
	answered, _, _ := strings.Cut(strings.TrimSpace(string(answer)), " ")
	return answered
}

// state is all that a host has of rules and sets, in the words of its own programs. Counters and handles are left out.
func (w *world) state(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	all.WriteString(do(t, w.host, "nft", "-s", "list", "ruleset"))
	for _, program := range []string{"iptables-legacy-save", "ip6tables-legacy-save"} {
		for line := range strings.Lines(do(t, w.host, program)) {
			if !strings.HasPrefix(line, "#") {
				line, _, _ = strings.Cut(line, " [")
				all.WriteString(strings.TrimSpace(line) + "\n")
			}
		}
	}
	all.WriteString(do(t, w.host, "ip", "rule"))
	all.WriteString(do(t, w.host, "ip", "-6", "rule"))
	require.NoError(t, w.host.Do(func() error {
		h, err := netlink.NewHandle(12)
		if err != nil {
			return err
		}
		defer h.Close()
		sets, err := h.IpsetListAll()
		for _, s := range sets {
			if s.SetName != "" {
				fmt.Fprintln(&all, "ipset", s.SetName, len(s.Entries))
			}
		}
		return err
	}))
	return all.String()
}
