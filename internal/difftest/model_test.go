package difftest_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

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
		Src: netip.AddrPortFrom(p.Src, 0), Dst: p.Dst, OutInterface: route(p.Dst.Addr()),
	}
	switch p.From {
	case netnstest.FromPod:
		packet.Direction, packet.UID, packet.GID = trace.Out, p.UID, p.GID
	case netnstest.FromOut:
		packet.InInterface = route(p.Dst.Addr())
		if packet.InInterface == "virt0" { // out reaches what is behind the pod through its eth0
			packet.InInterface = "eth0"
		}
		if !p.Src.IsValid() {
			packet.Src = netip.AddrPortFrom(outSource(packet.InInterface, p.Dst.Addr()), 0)
		}
	case netnstest.FromVM:
		packet.InInterface = "virt0"
		if !p.Src.IsValid() {
			packet.Src = netip.AddrPortFrom(netip.MustParseAddr("10.99.0.2"), 0)
		}
	default:
		return packet, fmt.Errorf("no namespace %q", p.From)
	}
	if p.From != netnstest.FromPod && p.Dst.Addr().IsLoopback() || p.From == netnstest.FromOut && slices.Contains(outAddrs, p.Dst.Addr()) {
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

// outSource is the address that the outside sends from by a link.
func outSource(link string, dst netip.Addr) netip.Addr {
	for _, a := range outAddrs {
		if ruleset.FamilyOf(a) == ruleset.FamilyOf(dst) && route(a) == link {
			return a // the links' own addresses come before those on lo
		}
	}
	return netip.Addr{}
}

// Fate predicts the fate of a probe, in netnstest's words, and returns its trace.
func (m model) Fate(rs ruleset.Ruleset, p netnstest.Probe) (string, trace.Result, error) {
	packet, err := m.Packet(p)
	if err != nil {
		return "", trace.Result{}, err
	}
	r, err := trace.Trace(rs, packet)
	if err != nil {
		return "", r, err
	}
	fate, err := m.fate(r, p)
	if err != nil || fate == "timeout" {
		return fate, r, err
	}
	lost := false
	switch forwarded := p.From != netnstest.FromPod && r.Verdict == trace.Pass && !slices.Contains(podAddrs, p.Dst.Addr()); {
	case forwarded:
		lost, err = replyLost(rs, packet)
	case fate == "refused" && p.Proto == "udp" && p.From == netnstest.FromPod:
		lost, err = refusalLost(rs, packet, r)
	case p.Proto == "udp" && r.Verdict == trace.Redirect && !r.ToAddr.IsValid():
		lost, err = m.answerLost(rs, packet, r)
	}
	if lost {
		fate = "timeout"
	}
	return fate, r, err
}

// replyLost reports whether the answer to a forwarded packet does not get back
// through the pod: the rules drop it, or mark it as the pod's own, as those of TPROXY
// do with every packet of a known connection.
func replyLost(rs ruleset.Ruleset, sent trace.Packet) (bool, error) {
	back := trace.Packet{
		Direction: trace.In, Proto: sent.Proto, Src: sent.Dst, Dst: netip.AddrPortFrom(sent.Src.Addr(), ephemeral),
		InInterface: sent.OutInterface, OutInterface: sent.InInterface, State: ruleset.StateEstablished, PodAddrs: podAddrs,
	}
	r, err := trace.Trace(rs, back)
	program := rs.Program(ruleset.FamilyOf(sent.Dst.Addr()))
	kept := program != nil && program.Routing != nil && program.Routing.Matches(r.Mark)
	return r.Verdict == trace.Drop || kept, err
}

// answerLost reports whether conntrack looks for the proxy's answer to a redirected
// datagram in another zone, so that it leaves with the proxy's port, not the one that
// was asked.
func (m model) answerLost(rs ruleset.Ruleset, sent trace.Packet, r trace.Result) (bool, error) {
	back := trace.Packet{
		Direction: trace.Out, Proto: sent.Proto, PodAddrs: podAddrs, State: ruleset.StateEstablished,
		Src: netip.AddrPortFrom(sent.Dst.Addr(), r.ToPort), Dst: netip.AddrPortFrom(sent.Src.Addr(), ephemeral),
		UID: cmp.Or(m.ProxyUID, 1337), GID: cmp.Or(m.ProxyGID, 1337), OutInterface: sent.InInterface,
	}
	if sent.Direction == trace.Out {
		back.Dst = netip.AddrPortFrom(podAddrs[0], ephemeral)
		if sent.Dst.Addr().Is6() {
			back.Dst = netip.AddrPortFrom(podAddrs[3], ephemeral)
		}
	}
	answer, err := trace.Trace(rs, back)
	return answer.Verdict == trace.Drop || answer.Zone != r.Zone, err
}

// ephemeral stands for a client's port; no rules name it.
const ephemeral = 40000

// refusalLost reports whether the pod's rules drop the ICMP error that tells a sender
// in the pod that nobody listens. Conntrack looks for the error's connection in the
// default zone only; otherwise the error is invalid.
func refusalLost(rs ruleset.Ruleset, sent trace.Packet, r trace.Result) (bool, error) {
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

// fate is where a probe ends after the pod's rules.
func (m model) fate(r trace.Result, p netnstest.Probe) (string, error) {
	to := p.Dst
	switch r.Verdict {
	case trace.Drop:
		return "timeout", nil
	case trace.TProxy:
		if p.Proto != "tcp" || r.ToPort != cmp.Or(m.TransparentPort, defaultTransparentPort) {
			return "timeout", nil // the kernel drops what no transparent socket takes
		}
		return answer("proxy", r.ToPort, p), nil
	case trace.Redirect:
		if !r.ToAddr.IsValid() {
			return m.inPod(r.ToPort, p), nil
		}
		to = netip.AddrPortFrom(r.ToAddr, r.ToPort)
		// The source was chosen for the first destination. A loopback address
		// does not leave the host: IPv4 refuses it (ip_route_me_harder), an IPv6
		// receiver discards it. An address that only lo has gets no answer.
		loopback := p.Src.IsLoopback() || !p.Src.IsValid() && p.Dst.Addr().IsLoopback() ||
			p.Src.IsValid() && p.From == netnstest.FromPod && !slices.Contains(podAddrs, p.Src)
		if loopback && !slices.Contains(podAddrs, to.Addr()) && !to.Addr().IsLoopback() {
			if p.Proto == "udp" && p.Dst.Addr().Is4() {
				return "error: invalid argument", nil
			}
			return "timeout", nil
		}
	}
	return m.at(to, p), nil
}

// at is who answers at an address.
func (m model) at(to netip.AddrPort, p netnstest.Probe) string {
	switch a := to.Addr(); {
	case a.IsLoopback(), slices.Contains(podAddrs, a):
		return m.inPod(to.Port(), p)
	case slices.Contains(outAddrs, a):
		listeners := outsideTCP
		if p.Proto == "udp" {
			listeners = outsideUDP
		}
		if !slices.Contains(listeners, to.Port()) {
			return "refused"
		}
		p.Dst = to // the pod's connection tracking is not asked there
		return answer("out", to.Port(), p)
	}
	return "unreachable"
}

// inPod is who answers on a port of the pod.
func (m model) inPod(port uint16, p netnstest.Probe) string {
	app, proxy := appTCP, m.ProxyTCP
	if proxy == nil {
		proxy = defaultProxyTCP
	}
	if p.Proto == "udp" {
		if app, proxy = appUDP, m.ProxyUDP; proxy == nil {
			proxy = defaultProxyUDP
		}
	}
	switch {
	case slices.Contains(app, port):
		return answer("app", port, p)
	case slices.Contains(proxy, port):
		return answer("proxy", port, p)
	}
	return "refused"
}

func answer(who string, port uint16, p netnstest.Probe) string {
	if p.Proto == "udp" {
		return fmt.Sprintf("%s:%d/udp", who, port)
	}
	return fmt.Sprintf("%s:%d orig=%s", who, port, p.Dst)
}
