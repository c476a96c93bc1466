package difftest_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// model predicts the fates of probes in a world with these options, given the pod's rules: it is the tracer, and who listens
// where. The kernel judges it, by the recorded fates of testdata/fates and by TestKernelAgrees.
type model netnstest.Options

// The world of netnstest's documentation.
var (
	podAddrs = addrs("10.244.1.5", "192.168.77.2", "10.99.0.1", "fd00:10:244::5", "fd00:77::2")
	outAddrs = addrs("10.244.1.1", "192.168.77.1", "10.96.5.5", "10.96.0.10", "198.51.100.10", "172.16.3.3",
		"fd00:10:244::1", "fd00:77::1", "fd00:96::5", "fd00:96::10", "2001:db8::10", "2001:db8:1::3")
	net1  = []netip.Prefix{netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix("fd00:77::/64")}
	virt0 = []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}

	appTCP     = []uint16{22, 443, 7070, 8080, 9090}
	appUDP     = []uint16{5000}
	outsideTCP = []uint16{53, 80, 443, 3306, 6379, 7070, 8080, 9090, 15008}
	outsideUDP = []uint16{53, 5353, 8125}

	defaultProxyTCP = []uint16{15001, 15006, 15008, 15020, 15021, 15053, 15090}
	defaultProxyUDP = []uint16{15053}
)

const defaultTransparentPort = 15006

func addrs(s ...string) []netip.Addr {
	out := make([]netip.Addr, len(s))
	for i, a := range s {
		out[i] = netip.MustParseAddr(a)
	}
	return out
}

// Packet returns the probe's first packet as it reaches the pod's rules. A probe that
// sends none there, as between an outside namespace and itself, is an error.
func (m model) Packet(p netnstest.Probe) (trace.Packet, error) {
	proto, err := trace.ParseProto(p.Proto)
	if err != nil {
		return trace.Packet{}, err
	}
	packet := trace.Packet{
		Direction: trace.In, Proto: proto, PodAddrs: podAddrs,
		Src: netip.AddrPortFrom(p.Src, p.Port), Dst: p.Dst, OutInterface: route(p.Dst.Addr()), Mark: p.Mark,
	}
	switch p.From {
	case "pod":
		packet.Direction, packet.UID, packet.GID = trace.Out, p.UID, p.GID
		if local := p.Dst.Addr().IsLoopback() || slices.Contains(podAddrs, p.Dst.Addr()); !p.Src.IsValid() && !local {
			packet.Src = netip.AddrPortFrom(source(podAddrs, packet.OutInterface, p.Dst.Addr()), p.Port)
		}
		packet.InInterface = route(packet.Src.Addr())
	case "out":
		packet.InInterface = route(p.Dst.Addr())
		if packet.InInterface == "virt0" { // out reaches what is behind the pod through its eth0
			packet.InInterface = "eth0"
		}
		if !p.Src.IsValid() {
			packet.Src = netip.AddrPortFrom(source(outAddrs, packet.InInterface, p.Dst.Addr()), p.Port)
		}
	case "vm":
		packet.InInterface = "virt0"
		if !p.Src.IsValid() {
			packet.Src = netip.AddrPortFrom(netip.MustParseAddr("10.99.0.2"), p.Port)
		}
	default:
		return packet, fmt.Errorf("no namespace %q", p.From)
	}
	if p.From != "pod" && p.Dst.Addr().IsLoopback() || p.From == "out" && slices.Contains(outAddrs, p.Dst.Addr()) {
		return packet, fmt.Errorf("probe %s does not leave its namespace", p)
	}
	return packet, nil
}

// route is the interface by which the pod sends to a foreign address, and by which
// that reaches the pod.
func route(a netip.Addr) string {
	in := func(p netip.Prefix) bool { return p.Contains(a) }
	switch {
	case slices.ContainsFunc(net1, in):
		return "net1"
	case slices.ContainsFunc(virt0, in):
		return "virt0"
	}
	return "eth0"
}

// source is the one of a namespace's addresses that it sends from by a link.
func source(addrs []netip.Addr, link string, dst netip.Addr) netip.Addr {
	for _, a := range addrs {
		if ruleset.FamilyOf(a) == ruleset.FamilyOf(dst) && route(a) == link {
			return a // the links' own addresses come before those on lo
		}
	}
	return netip.Addr{}
}

// Fate predicts the fate of a probe, in netnstest's words, and returns its trace.
func (m model) Fate(rs ruleset.Ruleset, p netnstest.Probe) (string, trace.Conversation, error) {
	return m.next(&trace.Tracker{Rules: rs}, rs, p)
}

// next is Fate in a pod that may have connections already.
func (m model) next(pod *trace.Tracker, rs ruleset.Ruleset, p netnstest.Probe) (string, trace.Conversation, error) {
	packet, err := m.Packet(p)
	if err != nil {
		return "", trace.Conversation{}, err
	}
	c, err := pod.Connect(trace.Connection{First: packet, Listeners: m.listeners()})
	if err != nil {
		return "", c, err
	}
	fate := m.fate(c, p)
	if fate == "refused" && p.Proto == "udp" && p.From == "pod" {
		lost, err := refusalLost(rs, packet)
		if lost || err != nil {
			return "timeout", c, err
		}
	}
	return fate, c, nil
}

// listeners are the sockets of the world's pod.
func (m model) listeners() []trace.Listener {
	var list []trace.Listener
	for _, s := range []struct {
		proto          ruleset.Proto
		app, proxy     []uint16
		proxyByDefault []uint16
	}{{ruleset.TCP, appTCP, m.ProxyTCP, defaultProxyTCP}, {ruleset.UDP, appUDP, m.ProxyUDP, defaultProxyUDP}} {
		for _, port := range s.app {
			list = append(list, trace.Listener{Port: port, Proto: s.proto, UID: 1000, GID: 1000})
		}
		if s.proxy == nil {
			s.proxy = s.proxyByDefault
		}
		for _, port := range s.proxy {
			list = append(list, trace.Listener{
				Port: port, Proto: s.proto, UID: cmp.Or(m.ProxyUID, 1337), GID: cmp.Or(m.ProxyGID, 1337), Mark: m.ProxyMark,
				Transparent: s.proto == ruleset.TCP && port == cmp.Or(m.TransparentPort, defaultTransparentPort),
			})
		}
	}
	return list
}

// refusalLost reports whether the pod's rules drop the ICMP error that tells a sender
// in the pod that nobody listens. Conntrack looks for the error's connection in the
// default zone only; otherwise the error is invalid.
func refusalLost(rs ruleset.Ruleset, sent trace.Packet) (bool, error) {
	r, err := trace.Trace(rs, sent)
	if err != nil {
		return false, err
	}
	icmp := trace.Packet{
		Direction: trace.In, Proto: 1, State: ruleset.StateRelated, PodAddrs: podAddrs,
		Src: netip.AddrPortFrom(sent.Dst.Addr(), 0), Dst: netip.AddrPortFrom(podAddrs[0], 0), InInterface: sent.OutInterface,
	}
	if sent.Dst.Addr().Is6() {
		icmp.Proto, icmp.Dst = 58, netip.AddrPortFrom(podAddrs[3], 0)
	}
	if sent.Dst.Addr().IsLoopback() || slices.Contains(podAddrs, sent.Dst.Addr()) {
		icmp.InInterface = "lo"
	}
	if r.Zone != 0 {
		icmp.State = ruleset.StateInvalid
	}
	back, err := trace.Trace(rs, icmp)
	return back.Verdict == trace.Drop, err
}

// fate is where a probe ends.
func (m model) fate(c trace.Conversation, p netnstest.Probe) string {
	server := c.Server
	asked := server.Local.IsValid() && !server.Pod
	switch {
	case asked && !slices.Contains(outAddrs, server.Local.Addr()):
		return "unreachable"
	case asked && !listensOutside(p.Proto, server.Local.Port()) && (c.Verdict == trace.Established || p.Proto == "udp" && p.From == "pod"):
		return "refused"
	}
	switch c.Verdict {
	case trace.Refused:
		return "refused"
	case trace.Established:
		return m.answer(c, p)
	case trace.Dropped:
		if strings.HasPrefix(c.Reason, "the kernel sends nothing") && p.Proto == "udp" && p.Dst.Addr().Is4() {
			return "error: invalid argument"
		}
	}
	return "timeout"
}

func listensOutside(proto string, port uint16) bool {
	if proto == "udp" {
		return slices.Contains(outsideUDP, port)
	}
	return slices.Contains(outsideTCP, port)
}

// answer is what the server of a connection says.
func (m model) answer(c trace.Conversation, p netnstest.Probe) string {
	who, port, orig := "out", c.Server.Local.Port(), c.Server.Local
	if c.Server.Pod {
		who, port, orig = "proxy", c.Server.Port, p.Dst
		if slices.Contains(appTCP, port) || slices.Contains(appUDP, port) {
			who = "app"
		}
	}
	s := fmt.Sprintf("%s:%d orig=%s", who, port, orig)
	if p.Proto == "udp" {
		s = fmt.Sprintf("%s:%d/udp", who, port)
	}
	if m.Echo {
		s += " peer=" + c.Server.Peer.Addr().String()
	}
	return s
}
