package netnstest

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/netready"
	"github.com/meshcni/meshcni/netnsexec"
)

// Options say what the proxy of a [World] is like. The zero value is Istio's.
type Options struct {
	ProxyUID, ProxyGID uint32        // owner of the proxy's sockets; 0 means 1337
	ProxyTCP           []uint16      // nil means 15001 15006 15008 15020 15021 15053 15090
	ProxyUDP           []uint16      // nil means 15053; an empty slice means none
	TransparentPort    uint16        // the TCP port that listens with IP_TRANSPARENT, as TPROXY needs; 0 means 15006
	ProxyMark          uint32        // SO_MARK of the proxy's sockets
	Echo               bool          // who answers says what it is, and then sends back what it gets; see [World.Run]
	Patience           time.Duration // how long a probe waits for its answer before its fate is "timeout"; 0 means 5 s
}

func (o Options) withDefaults() Options {
	o.ProxyUID, o.ProxyGID = cmp.Or(o.ProxyUID, defaultID), cmp.Or(o.ProxyGID, defaultID)
	o.TransparentPort = cmp.Or(o.TransparentPort, 15006)
	// A lost SYN is sent again after 1 s and after 3 s (RFC 6298): room for both, on a busy machine.
	o.Patience = cmp.Or(o.Patience, 5*time.Second)
	if o.ProxyTCP == nil {
		o.ProxyTCP = []uint16{15001, 15006, 15008, 15020, 15021, 15053, 15090}
	}
	if o.ProxyUDP == nil {
		o.ProxyUDP = []uint16{15053}
	}
	return o
}

// World is the three network namespaces of the package documentation. Make one with [NewWorld]. A runtime passes Pod.Path in CNI_NETNS.
type World struct {
	Pod, Out, VM *netnsexec.NetNS
	opts         Options
	tb           testing.TB
}

// NewWorld makes a world, which is removed when the test ends. It requires [Root] and [IPv6].
func NewWorld(tb testing.TB, o Options) *World {
	tb.Helper()
	Require(tb, Root, IPv6)
	w := &World{opts: o.withDefaults(), tb: tb}
	if err := w.build(); err != nil {
		tb.Fatalf("make the test world: %v", err)
	}
	return w
}

func (w *World) build() (err error) {
	handles := map[string]*netlink.Handle{}
	defer func() {
		for _, h := range handles {
			h.Close()
		}
	}()
	for _, side := range []struct {
		name    string
		ns      **netnsexec.NetNS
		forward string
	}{{fromPod, &w.Pod, "1"}, {fromOut, &w.Out, "0"}, {fromVM, &w.VM, "0"}} {
		if *side.ns, err = newNetNS(w.tb, side.name); err != nil {
			return err
		}
		if err = (*side.ns).Do(func() error {
			if err := setSysctls(side.forward); err != nil {
				return err
			}
			handles[side.name], err = netlink.NewHandle(unix.NETLINK_ROUTE)
			return err
		}); err != nil {
			return fmt.Errorf("namespace %s: %w", side.name, err)
		}
	}
	if err := w.wire(handles); err != nil {
		return err
	}
	for name, h := range handles {
		if err := configure(h, topology[name]); err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	for name, ns := range map[string]*netnsexec.NetNS{fromPod: w.Pod, fromOut: w.Out, fromVM: w.VM} {
		if err := poll(func() error { return ns.Do(netready.Addrs) }); err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	return w.serve()
}

// setSysctls acts in the calling thread's namespace. New namespaces inherit some of these from the host; setting all of
// them makes the world the same on every machine.
func setSysctls(forward string) error {
	for _, kv := range [][2]string{
		{"ipv6/conf/all/disable_ipv6", "0"},
		{"ipv6/conf/default/disable_ipv6", "0"},
		{"ipv6/conf/lo/disable_ipv6", "0"},
		{"ipv6/conf/all/accept_dad", "0"}, // duplicate address detection would make each address wait a second
		{"ipv6/conf/default/accept_dad", "0"},
		{"ipv6/conf/default/router_solicitations", "0"},
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		{"ipv4/conf/lo/rp_filter", "0"},
		{"ipv4/conf/all/route_localnet", "0"},
		{"ipv4/conf/default/route_localnet", "0"},
		{"ipv4/conf/lo/route_localnet", "0"},
		{"ipv4/ip_forward", forward},
	} {
		if err := os.WriteFile("/proc/sys/net/"+kv[0], []byte(kv[1]), 0); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	return nil
}

// A cable is a veth pair. Its pod end has an index that no other end has: with equal indexes the kernel delays the
// carrier event by up to a second (linkwatch_urgent_event).
var cables = []struct {
	pod      string
	podIndex int
	far      string // fromOut or fromVM
	farName  string
}{{"eth0", 101, fromOut, "pod0"}, {"net1", 102, fromOut, "pod1"}, {"virt0", 103, fromVM, "eth0"}}

// site is the addresses and routes of one namespace.
type site struct {
	addrs  [][2]string // link, prefix
	routes [][3]string // link, destination prefix, gateway
}

var topology = map[string]site{
	fromPod: {
		addrs: [][2]string{
			{"eth0", "10.244.1.5/24"}, {"eth0", "fd00:10:244::5/64"},
			{"net1", "192.168.77.2/24"}, {"net1", "fd00:77::2/64"},
			{"virt0", "10.99.0.1/24"},
		},
		routes: [][3]string{{"eth0", "0.0.0.0/0", "10.244.1.1"}, {"eth0", "::/0", "fd00:10:244::1"}},
	},
	fromOut: {
		addrs: [][2]string{
			{"pod0", "10.244.1.1/24"}, {"pod0", "fd00:10:244::1/64"},
			{"pod1", "192.168.77.1/24"}, {"pod1", "fd00:77::1/64"},
			{"lo", "10.96.5.5/32"}, {"lo", "10.96.0.10/32"}, {"lo", "198.51.100.10/32"}, {"lo", "172.16.3.3/32"},
			{"lo", "fd00:96::5/128"}, {"lo", "fd00:96::10/128"}, {"lo", "2001:db8::10/128"}, {"lo", "2001:db8:1::3/128"},
		},
		routes: [][3]string{{"pod0", "10.99.0.0/24", "10.244.1.5"}},
	},
	fromVM: {
		addrs:  [][2]string{{"eth0", "10.99.0.2/24"}},
		routes: [][3]string{{"eth0", "0.0.0.0/0", "10.99.0.1"}},
	},
}

// wire makes the cables.
func (w *World) wire(handles map[string]*netlink.Handle) error {
	farNS := map[string]*netnsexec.NetNS{fromOut: w.Out, fromVM: w.VM}
	for _, c := range cables {
		veth := &netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: c.pod, Index: c.podIndex},
			PeerName:      c.farName,
			PeerNamespace: netlink.NsFd(farNS[c.far].Fd()),
		}
		if err := handles[fromPod].LinkAdd(veth); err != nil {
			return fmt.Errorf("make link %s: %w", c.pod, err)
		}
		far, err := handles[c.far].LinkByName(c.farName)
		if err != nil {
			return fmt.Errorf("find link %s: %w", c.farName, err)
		}
		if err := handles[c.far].LinkSetUp(far); err != nil {
			return fmt.Errorf("set up link %s: %w", c.farName, err)
		}
		if err := handles[fromPod].LinkSetUp(veth); err != nil {
			return fmt.Errorf("set up link %s: %w", c.pod, err)
		}
	}
	return nil
}

// poll calls ready until it returns nil, or gives up after a while with its last error.
func poll(ready func() error) error {
	for deadline := time.Now().Add(Patience); ; time.Sleep(200 * time.Microsecond) {
		if err := ready(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func configure(h *netlink.Handle, s site) error {
	index := map[string]int{}
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		index[l.Attrs().Name] = l.Attrs().Index
	}
	for _, a := range s.addrs {
		dev := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index[a[0]]}}
		addr := &netlink.Addr{IPNet: ipNet(a[1])}
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(dev, addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a[1], a[0], err)
		}
	}
	for _, r := range s.routes {
		route := &netlink.Route{LinkIndex: index[r[0]], Dst: ipNet(r[1]), Gw: netip.MustParseAddr(r[2]).AsSlice()}
		if err := h.RouteAdd(route); err != nil {
			return fmt.Errorf("add route to %s: %w", r[1], err)
		}
	}
	return nil
}

func ipNet(prefix string) *net.IPNet {
	p := netip.MustParsePrefix(prefix)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
