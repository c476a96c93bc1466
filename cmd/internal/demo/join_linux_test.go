package demo

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

const (
	service     = "10.96.5.5:7777"
	application = "10.244.1.5:7777"
	patience    = netnstest.Patience
)

// running is a pod that runs, with a process, before the mesh knows of it.
type running struct {
	*demo
	*netnstest.World
	pod *corev1.Pod
	// out and in were open before the pod joined, through is made while it is in the mesh.
	out, in, through net.Conn
}

// joins has two running pods join a node's proxy and leave it, with connections open, and says what became of those.
func (d *demo) joins() {
	d.heading("Ambient mode: pods that run join a proxy of the node, and leave it; nobody restarts them")
	cart, ledger := d.running("cart"), d.running("ledger")
	const cmd = "iptables -A INPUT -m conntrack --ctstate INVALID -j DROP"
	require.NoError(d, ledger.Pod.Run(exec.Command("sh", "-c", cmd)))
	cart.connect()
	ledger.connect()
	d.say("Pods shop/cart and shop/ledger run, each with a connection to a service and one from a client. In ledger's namespace the\n"+
		"kernel tracks connections, for there is a rule that needs it: %s", cmd)

	dir, err := os.MkdirTemp("", "demo") // t.TempDir may be too long for a socket's name
	require.NoError(d, err)
	d.Cleanup(func() { // after the agent's end, which leaves its journal to the next one
		assert.NoError(d, netnsstore.RemoveJournal(netnsstore.Options{RunDir: filepath.Join(dir, "run")}))
		assert.NoError(d, os.RemoveAll(dir))
	})
	socket := filepath.Join(dir, "zds.sock")
	n := d.newAgent(dir, socket, cart.pod, ledger.pod)
	proxy := nodeproxytest.StartProcess(d, nodeproxytest.Options{Socket: socket})
	require.Eventually(d, func() bool { return proxy.State().Ready }, patience, time.Millisecond)
	d.say("The agent runs, and a proxy, in process %d, which has connected to it. Lines with a time are its log.", proxy.State().PID)

	rows := [][]string{{"CONNECTION", "BEFORE", "IN THE MESH", "AFTER"},
		{"new, cart to a service"}, {"new, a client to cart"}, {"open since before, cart to a service"}, {"open since before, a client to cart"},
		{"open since before, ledger to a service"}, {"open since before, a client to ledger"}, {"made in the mesh, cart to a service"}}
	look := func(want ...string) {
		got := []string{cart.fresh(proxy, cart.Pod, service), cart.fresh(proxy, cart.Out, application)}
		for _, c := range []*net.Conn{&cart.out, &cart.in, &ledger.out, &ledger.in, &cart.through} {
			got = append(got, fate(c))
		}
		for i, says := range got {
			rows[i+1] = append(rows[i+1], says)
		}
		assert.Equal(d, want, got)
	}
	look("straight", "straight", "lives", "lives", "lives", "lives", "–")
	d.say("\nkubectl label namespace shop istio.io/dataplane-mode=ambient")
	n.label("ambient", status.StateCaptured)
	cart.through, _ = cart.dial(cart.Pod, service)
	look("through the proxy (15001)", "through the proxy (15006)", "lives", "lives", "lives", "lives", "lives")
	d.say("\nkubectl label namespace shop istio.io/dataplane-mode-")
	n.label("", status.StateOutside)
	look("straight", "straight", "lives", "lives", "lives", "lives", "lives")

	d.say("")
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	require.NoError(d, table.Flush())
	d.say("\nEach server saw its client's address, also through the proxy. Connections that are open when a pod joins live on, outside the mesh,\n"+
		"whether or not the kernel tracked them in the pod. When a pod leaves, those through the proxy live on until they end, for at most %s.",
		nodecontrol.DefaultDrainTimeout)
	_ = cart.through.Close()
	require.Eventually(d, func() bool { return len(proxy.State().Pods) == 0 }, patience, time.Millisecond, "the proxy lets go of what has left")
	n.end()
}

func (d *demo) running(name string) *running {
	uid := podproctest.NewUID()
	r := &running{demo: d, World: netnstest.NewWorld(d.T, netnstest.Options{ProxyTCP: []uint16{}, ProxyUDP: []uint16{}}), pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: name}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.1.5"}}},
	}}
	podproctest.Start(d.T, r.Pod, podproctest.Plain("kubepods/besteffort/pod%s/5ad0d8f4", uid))
	r.serve(r.Out, service)
	r.serve(r.Pod, application)
	return r
}

// serve tells each client its address, and then sends back what it sends.
func (r *running) serve(ns *netnsexec.NetNS, addr string) {
	var l net.Listener
	require.NoError(r, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	}))
	r.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).IP)
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
}

func (r *running) connect() {
	r.out, _ = r.dial(r.Pod, service)
	r.in, _ = r.dial(r.Out, application)
}

// dial connects, and returns the address that the server sees.
func (r *running) dial(ns *netnsexec.NetNS, addr string) (c net.Conn, seen string) {
	r.Helper()
	require.NoError(r, ns.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", addr, patience)
		return err
	}))
	r.Cleanup(func() { _ = c.Close() })
	require.NoError(r, c.SetDeadline(time.Now().Add(patience)))
	seen, err := bufio.NewReader(io.LimitReader(c, int64(len("10.244.1.1\n")))).ReadString('\n')
	require.NoError(r, err)
	return c, strings.TrimSpace(seen)
}

// fresh makes a connection, and says which way it went.
func (r *running) fresh(proxy *nodeproxytest.Proxy, from *netnsexec.NetNS, to string) string {
	r.Helper()
	before := proxy.State().Pods[r.pod.UID]
	c, seen := r.dial(from, to)
	client := netip.MustParseAddrPort(c.LocalAddr().String()).Addr().String()
	assert.Equal(r, client, seen)
	after := proxy.State().Pods[r.pod.UID]
	for port, count := range after.Accepted {
		if count > before.Accepted[port] {
			return fmt.Sprintf("through the proxy (%d)", port)
		}
	}
	return "straight"
}

// fate says whether a connection still reaches its server. One that is cut is none from then on.
func fate(c *net.Conn) string {
	if *c == nil {
		return "–"
	}
	if _, err := (*c).Write([]byte("x")); err == nil {
		if _, err = io.ReadFull(*c, make([]byte, 1)); err == nil {
			return "lives"
		}
	}
	*c = nil
	return "cut"
}
