package difftest_test

import (
	"cmp"
	"net/netip"
	"slices"

	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// The proxy of our worlds listens wherever a Case may send connections.
var (
	outboundPorts = []uint16{15001, 4140}
	inboundPorts  = []uint16{15006, 4143}
	dnsPorts      = []uint16{15053, 8600}
	proxyTCP      = []uint16{15001, 4140, 15006, 4143, 15053, 8600, 15008, 15020, 15021, 15090}
	proxyUDP      = []uint16{15053, 8600}
)

// What is chosen from: ports that somebody listens on and some that nobody
// does, prefixes around the world's addresses.
var (
	ports    = []uint16{22, 53, 80, 443, 1234, 3306, 5000, 6379, 7070, 8080, 8125, 9090, 15008, 15020, 15090}
	prefixes = []string{
		"10.96.0.0/16", "10.96.5.5/32", "198.51.100.0/24", "172.16.0.0/12", "10.244.1.5/32", "192.168.77.0/24", "0.0.0.0/0",
		"127.0.0.0/8", "127.0.0.1/32", "fd00:96::/64", "fd00:96::5/128", "2001:db8::/64", "fd00:10:244::5/128", "::/0", "::1/128",
	}
	resolvers  = []string{"10.96.0.10/32", "198.51.100.10/32", "fd00:96::10/128", "0.0.0.0/0"}
	clients    = []string{"10.244.1.1/32", "192.168.77.0/24", "10.99.0.0/16", "fd00:10:244::/64", "127.0.0.6/32"}
	interfaces = []string{"net1", "virt0", "eth0", "none0"}
	ids        = []uint32{1337, 2000, 3000, 1000, 4294967294}
)

// one draws from a list; some draws a few of it, without repeats.
func one[T any](t *rapid.T, label string, from []T) T { return rapid.SampledFrom(from).Draw(t, label) }

func some[T comparable](t *rapid.T, label string, least, most int, from []T) []T {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(from), least, min(most, len(from)), rapid.ID[T]).Draw(t, label)
}

// odds is true once in n.
func odds(t *rapid.T, label string, n int) bool { return rapid.IntRange(1, n).Draw(t, label) == n }

// Cases generates valid Redirects of every kind, with so many probes each.
func Cases(probes int) *rapid.Generator[Case] {
	return rapid.Custom(func(t *rapid.T) Case {
		r := genRedirect(t)
		return Case{Redirect: r, Probes: genProbes(t, r, probes)}
	})
}

func genRedirect(t *rapid.T) redirect.Redirect {
	r := redirect.Default()
	if odds(t, "tproxy", 3) {
		r.Mode = redirect.ModeTProxy
	}
	families := []redirect.FamilyMode{
		redirect.FamilyCapture, redirect.FamilyCapture, redirect.FamilyCapture, redirect.FamilyCapture, redirect.FamilyPass, redirect.FamilyDrop,
	}
	r.IPv4, r.IPv6 = one(t, "ipv4", families), one(t, "ipv6", families)
	if r.IPv4 == redirect.FamilyPass && r.IPv6 == redirect.FamilyPass {
		r.IPv6 = redirect.FamilyCapture
	}
	r.Proxy = genProxy(t)
	r.Inbound = redirect.Inbound{Ports: genPorts(t, "inbound.ports"), ExcludePorts: genFewPorts(t, "inbound.excludePorts")}
	r.Outbound = redirect.Outbound{
		CIDRs: genPrefixes(t, "outbound.cidrs"), ExcludeCIDRs: genFewPrefixes(t, "outbound.excludeCIDRs"),
		ExcludePorts: genFewPorts(t, "outbound.excludePorts"),
	}
	if odds(t, "has outbound.ports", 3) {
		r.Outbound.Ports = genPorts(t, "outbound.ports")
	}
	switch rapid.IntRange(0, 6).Draw(t, "owner groups") {
	case 5:
		r.Outbound.OwnerGroups = some(t, "outbound.ownerGroups", 1, 3, ids)
	case 6:
		r.Outbound.ExcludeOwnerGroups = some(t, "outbound.excludeOwnerGroups", 1, 3, ids)
	}
	if odds(t, "has dns", 3) {
		r.DNS = genDNS(t)
	}
	r.Loopback = one(t, "loopback", []redirect.Loopback{
		redirect.LoopbackHairpin, redirect.LoopbackHairpin, redirect.LoopbackPass, redirect.LoopbackCapture,
	})
	if odds(t, "has localhost", 5) {
		r.Localhost = netip.MustParsePrefix(one(t, "localhost", []string{"127.0.0.0/8", "127.0.0.0/29", "127.0.0.1/32"}))
	}
	if odds(t, "has inbound.excludeSources", 5) {
		r.Inbound.ExcludeSources = parsePrefixes(some(t, "inbound.excludeSources", 1, 2, clients))
		if odds(t, "inbound.excludeSources are many", 3) {
			r.Inbound.ExcludeSources = r.Inbound.ExcludeSources.Union(genSomePrefixes(t, "more inbound.excludeSources", 2))
		}
	}
	if odds(t, "has inbound.probeSources", 5) {
		r.Inbound.ProbeSources, r.Inbound.ProbePorts = parsePrefixes(some(t, "inbound.probeSources", 1, 2, clients)), genFewPorts(t, "inbound.probePorts")
	}
	if odds(t, "has outbound.exclude", 4) {
		r.Outbound.Exclude = rapid.SliceOfN(rapid.Custom(genExclusion), 1, 2).Draw(t, "outbound.exclude")
	}
	if odds(t, "has virtualNetworks", 6) {
		r.VirtualNetworks = []redirect.VirtualNetwork{{
			Interface: one(t, "virtual network", append([]string{"virt+", "net+", "eth0+", "none+"}, interfaces...)),
			Local:     netip.MustParsePrefix(one(t, "local", []string{"10.99.0.0/24", "10.244.0.0/16", "fd00:77::/64"})),
		}}
	}
	if odds(t, "log", 10) {
		r.Log = redirect.Log{Enabled: true, Level: uint8(rapid.IntRange(0, 7).Draw(t, "log.level"))}
	}
	if r.Mode == redirect.ModeRedirect && odds(t, "proxy has a mark", 8) {
		r.Proxy.UIDs, r.Proxy.GIDs = nil, nil
		r.Proxy.Mark = redirect.Mark{Value: 0x200, Mask: one(t, "proxy.mark.mask", []uint32{0, 0xf00})}
		r.Names.InboundMark, r.Names.MarkMask = 0x300, one(t, "names.markMask", []uint32{0, 0xf00})
	}
	if odds(t, "has excludeInterfaces", 4) {
		r.ExcludeInterfaces = some(t, "excludeInterfaces", 1, 2, interfaces)
	}
	if odds(t, "has virtualInterfaces", 4) {
		r.VirtualInterfaces = some(t, "virtualInterfaces", 1, 2, interfaces)
	}
	if odds(t, "has includeInterfaces", 5) {
		r.IncludeInterfaces = slices.DeleteFunc(some(t, "includeInterfaces", 1, 2, interfaces), func(name string) bool { return slices.Contains(r.VirtualInterfaces, name) })
	}
	if odds(t, "has own", 4) {
		r.Own = genOwn(t)
	}
	if odds(t, "lo has an IPv6 address", 3) {
		r.Names.LoopbackIPv6 = netip.MustParseAddr("::6")
	}
	r.DropInvalid = odds(t, "dropInvalid", 4)
	r.Names.ChainPrefix = one(t, "names.chainPrefix", []string{"MESH_", "ISTIO_", "A", "PREFIX_OF_LEN_16"})
	if len(r.Own) > 0 && len(r.Names.ChainPrefix) > 12 {
		r.Names.ChainPrefix = "PREFIX_OF_12" // the longest with which each point has a name
	}
	for i := range r.Own {
		r.Own[i].Name = r.Names.ChainPrefix + r.Own[i].Name
	}
	return r
}

// genOwn draws chains of the mesh's own, without the prefix: one at a hook of the nat table, and one that drops.
func genOwn(t *rapid.T) []ruleset.Chain {
	rule := rapid.Custom(func(t *rapid.T) ruleset.Rule {
		r := ruleset.Rule{Proto: one(t, "own proto", []ruleset.Proto{ruleset.TCP, ruleset.UDP})}
		if rapid.Bool().Draw(t, "own has ports") {
			r.DstPorts = ruleset.MatchPorts(ruleset.Port(one(t, "own port", ports)))
		}
		if rapid.Bool().Draw(t, "own has a destination") {
			r.Dst = ruleset.MatchPrefix(netip.MustParsePrefix(one(t, "own destination", prefixes)))
		}
		r.Target.Action = one(t, "own target", []ruleset.Action{ruleset.ActionReturn, ruleset.ActionAccept, ruleset.ActionRedirect})
		if r.Target.Action == ruleset.ActionRedirect {
			r.Target.Port = one(t, "own to", map[ruleset.Proto][]uint16{ruleset.TCP: outboundPorts, ruleset.UDP: proxyUDP}[r.Proto])
		}
		return r
	})
	point := one(t, "own point", []string{"OUTPUT_FIRST", "OUTPUT_LAST", "OUTPUT", "PREROUTING_FIRST", "PREROUTING_LAST", "PREROUTING"})
	own := []ruleset.Chain{{Table: ruleset.NAT, Name: point, Rules: rapid.SliceOfN(rule, 1, 3).Draw(t, "own rules")}}
	if rapid.Bool().Draw(t, "own drops") {
		dropped := ruleset.Rule{
			Proto: ruleset.UDP, DstPorts: ruleset.MatchPorts(ruleset.Port(one(t, "own dropped", outUDP))), Target: ruleset.Target{Action: ruleset.ActionDrop},
		}
		own = append(own, ruleset.Chain{Table: ruleset.Mangle, Name: "OUTPUT_FIRST", Rules: []ruleset.Rule{dropped}})
	}
	return own
}

func genDNS(t *rapid.T) redirect.DNS {
	d := redirect.DNS{Servers: redirect.AllPrefixes(), UDPOnly: odds(t, "dns.udpOnly", 3), OneZone: odds(t, "dns.oneZone", 4)}
	d.TCPOutbound = d.UDPOnly && odds(t, "dns.tcpOutbound", 3)
	if rapid.Bool().Draw(t, "dns.servers are listed") {
		d.Servers = parsePrefixes(some(t, "dns.servers", 1, 3, resolvers))
	}
	if !odds(t, "has dns.to", 3) {
		d.Port = one(t, "dns.port", dnsPorts)
		return d
	}
	d.To = []netip.AddrPort{netip.MustParseAddrPort(one(t, "dns.to ipv4", []string{"10.96.0.10:53", "10.96.0.10:0", "127.0.0.1:8600"}))}
	if rapid.Bool().Draw(t, "has dns.to ipv6") {
		d.To = append(d.To, netip.MustParseAddrPort(one(t, "dns.to ipv6", []string{"[fd00:96::10]:53", "[fd00:96::10]:0", "[::1]:8600"})))
	}
	d.Everyone = odds(t, "dns.everyone", 3)
	return d
}

func genExclusion(t *rapid.T) redirect.Exclusion {
	e := redirect.Exclusion{
		Protocol: one(t, "protocol", []redirect.Protocol{redirect.TCP, redirect.UDP, ""}),
		Ports:    redirect.AllPorts(), CIDRs: redirect.AllPrefixes(),
	}
	if e.Protocol != "" && rapid.Bool().Draw(t, "has ports") {
		e.Ports = genSomePorts(t, "ports", 3)
	}
	if rapid.Bool().Draw(t, "has cidrs") {
		e.CIDRs = genSomePrefixes(t, "cidrs", 2)
	}
	if e.Protocol == "" && e.CIDRs.All() || rapid.Bool().Draw(t, "has uids") {
		first, last := one(t, "first uid", sendersID), one(t, "last uid", sendersID)
		e.UIDs = []redirect.IDRange{{First: min(first, last), Last: max(first, last)}}
	}
	return e
}

func genProxy(t *rapid.T) redirect.Proxy {
	p := redirect.Proxy{
		UIDs:         some(t, "proxy.uids", 0, 2, ids),
		OutboundPort: one(t, "proxy.outboundPort", outboundPorts),
		InboundPort:  one(t, "proxy.inboundPort", inboundPorts),
	}
	if len(p.UIDs) == 0 || rapid.Bool().Draw(t, "has proxy.gids") {
		p.GIDs = some(t, "proxy.gids", 1, 2, ids)
	}
	if rapid.Bool().Draw(t, "has proxy.tunnelPort") {
		p.TunnelPort = 15008
	}
	if rapid.Bool().Draw(t, "has proxy.passSources") {
		p.PassSources = []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}
	}
	return p
}

func genPorts(t *rapid.T, label string) redirect.PortSet {
	switch rapid.IntRange(0, 3).Draw(t, label+" are") {
	case 0:
		return redirect.AllPorts()
	case 1:
		return redirect.NoPorts()
	}
	return genSomePorts(t, label, 8)
}

func genFewPorts(t *rapid.T, label string) redirect.PortSet {
	switch rapid.IntRange(0, 9).Draw(t, label+" are") {
	case 0:
		return redirect.AllPorts()
	case 1, 2, 3, 4, 5:
		return redirect.NoPorts()
	}
	return genSomePorts(t, label, 3)
}

func genSomePorts(t *rapid.T, label string, most int) redirect.PortSet {
	set := redirect.Ports(some(t, label, 1, most, ports)...)
	if odds(t, label+" have a range", 3) {
		first, last := one(t, label+" first", ports), one(t, label+" last", ports)
		set = set.Union(redirect.PortRanges(ruleset.PortRange{First: min(first, last), Last: max(first, last)}))
	}
	if odds(t, label+" are many", 6) { // more than one match takes
		for p := uint16(20000); p < 20040; p += 2 {
			set = set.Union(redirect.Ports(p))
		}
	}
	return set
}

func genPrefixes(t *rapid.T, label string) redirect.PrefixSet {
	switch rapid.IntRange(0, 3).Draw(t, label+" are") {
	case 0, 1:
		return redirect.AllPrefixes()
	case 2:
		return redirect.NoPrefixes()
	}
	return genSomePrefixes(t, label, 5)
}

func genSomePrefixes(t *rapid.T, label string, most int) redirect.PrefixSet {
	set := parsePrefixes(some(t, label, 1, most, prefixes))
	if odds(t, label+" are many", 3) { // more than have a rule each: neighbours, and some that overlap the others
		var many []netip.Prefix
		for i := range byte(20) {
			bits := int(one(t, label+" bits", []uint16{32, 32, 31, 28}))
			many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, 5, i}), bits),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x96, 15: i}), 96+bits))
		}
		set = set.Union(redirect.Prefixes(many...))
	}
	return set
}

func genFewPrefixes(t *rapid.T, label string) redirect.PrefixSet {
	if !odds(t, "has "+label, 3) {
		return redirect.NoPrefixes()
	}
	return genSomePrefixes(t, label, 3)
}

func parsePrefixes(texts []string) redirect.PrefixSet {
	out := make([]netip.Prefix, len(texts))
	for i, s := range texts {
		out[i] = netip.MustParsePrefix(s)
	}
	return redirect.Prefixes(out...)
}

var (
	outTCP    = []uint16{53, 80, 443, 3306, 6379, 7070, 8080, 9090, 15008, 1234}
	outUDP    = []uint16{53, 5353, 8125, 1234}
	podTCP    = []uint16{22, 443, 7070, 8080, 9090, 15001, 15006, 4140, 4143, 15008, 15020, 15021, 15090, 1234}
	podUDP    = []uint16{5000, 15053, 53, 1234}
	outside   = []string{"10.96.5.5", "10.96.0.10", "198.51.100.10", "172.16.3.3", "192.168.77.1", "10.244.1.1", "fd00:96::5", "fd00:96::10", "2001:db8::10", "2001:db8:1::3", "fd00:77::1", "fd00:10:244::1"}
	inside    = []string{"10.244.1.5", "192.168.77.2", "fd00:10:244::5", "fd00:77::2"}
	selfOnly  = []string{"127.0.0.1", "127.0.0.9", "::1", "10.99.0.1"}
	sendersID = []uint32{0, 1000, 1337, 2000, 3000}
)

// genProbes draws different probes, those of the proxy's own ids among them.
func genProbes(t *rapid.T, r redirect.Redirect, n int) []netnstest.Probe {
	uids, gids := slices.Concat(sendersID, r.Proxy.UIDs), slices.Concat(sendersID, r.Proxy.GIDs)
	marks := []uint32{0x1, cmp.Or(r.Proxy.Mark.Value, r.Names.InboundMark), r.Names.InboundMark, r.Names.HairpinMark}
	gen := rapid.Custom(func(t *rapid.T) netnstest.Probe {
		p := netnstest.Probe{Proto: one(t, "proto", []string{"tcp", "tcp", "tcp", "udp"})}
		to := func(addrs []string, tcp, udp []uint16) {
			port := tcp
			if p.Proto == "udp" {
				port = udp
			}
			p.Dst = netip.AddrPortFrom(netip.MustParseAddr(one(t, "dst", addrs)), one(t, "dport", port))
		}
		switch rapid.IntRange(0, 11).Draw(t, "kind") {
		case 0, 1, 2, 3:
			p.From = "pod"
			to(outside, outTCP, outUDP)
		case 4, 5:
			p.From = "pod"
			to(slices.Concat(inside, selfOnly), podTCP, podUDP)
		case 6, 7, 8:
			p.From = "out"
			to(inside, podTCP, podUDP)
		case 9:
			p.From = "vm"
			to([]string{"10.96.5.5", "198.51.100.10", "10.99.0.1", "10.244.1.5"}, slices.Concat(outTCP, podTCP), slices.Concat(outUDP, podUDP))
		}
		if p.From == "" {
			// A proxy that speaks to the application from its client's address, as TPROXY and node proxies do.
			p.From, p.Mark = "pod", one(t, "mark", marks)
			// Where somebody listens: a refusal is the kernel's own packet, which goes to the client itself.
			to(inside, slices.Concat(appTCP, proxyTCP), slices.Concat(appUDP, proxyUDP))
			p.Src = clientOf(p.Dst.Addr())
		}
		if p.From == "pod" {
			p.UID, p.GID = one(t, "uid", uids), one(t, "gid", gids)
			if !r.Proxy.Mark.IsZero() && slices.Contains(outside, p.Dst.Addr().String()) && odds(t, "from a proxy with a mark", 3) {
				p.Src, p.Mark = source(podAddrs, route(p.Dst.Addr()), p.Dst.Addr()), r.Proxy.Mark.Value
			}
			if p.Mark == 0 && slices.Contains(inside, p.Dst.Addr().String()) && odds(t, "from the pass source", 4) {
				p.Src = passSource(r, p.Dst.Addr())
			}
		}
		return p
	})
	return rapid.SliceOfNDistinct(gen, n, n, func(p netnstest.Probe) string { return p.String() }).Draw(t, "probes")
}

// clientOf is an address of the outside that has connections to one of the pod's.
func clientOf(dst netip.Addr) netip.Addr {
	if dst.Is4() {
		return netip.MustParseAddr("198.51.100.10")
	}
	return netip.MustParseAddr("2001:db8::10")
}

// passSource is the address that a proxy speaks to the application from, where
// the pod has it.
func passSource(r redirect.Redirect, dst netip.Addr) netip.Addr {
	switch {
	case dst.Is4():
		return netip.MustParseAddr("127.0.0.6")
	case r.IPv6 == redirect.FamilyCapture:
		return r.Names.LoopbackIPv6
	}
	return netip.Addr{}
}
