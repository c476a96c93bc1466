package netnstest

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Names of the world's three namespaces, as Probe.From has them.
const (
	fromPod = "pod"
	fromOut = "out"
	fromVM  = "vm"
)

// Probe is a connection or datagram whose fate is to be found out.
type Probe struct {
	From     string         // "pod", "out" or "vm": where it is opened
	Proto    string         // "tcp" or "udp"
	UID, GID uint32         // owner of its socket, which `-m owner` and `meta skuid` see
	Dst      netip.AddrPort // where it is sent; the zone of a link-local address is its link's index where it is opened
	Src      netip.Addr     // source address; the zero Addr lets the kernel choose
	Port     uint16         // source port; 0 lets the kernel choose. It needs Src
	Mark     uint32         // SO_MARK of its socket; one with a mark may have any Src, as a proxy that keeps its client's
}

// String is the probe's name, as in "pod tcp 1000/1337 -> 10.96.5.5:80 from 127.0.0.6 port 4000 mark 0x539". [ParseProbe]
// reads it back.
func (p Probe) String() string {
	s := fmt.Sprintf("%s %s %d/%d -> %s", p.From, p.Proto, p.UID, p.GID, p.Dst)
	if p.Src.IsValid() {
		s += " from " + p.Src.String()
	}
	if p.Port != 0 {
		s += fmt.Sprintf(" port %d", p.Port)
	}
	if p.Mark != 0 {
		s += fmt.Sprintf(" mark %#x", p.Mark)
	}
	return s
}

// ParseProbe reads a probe's name. It accepts only the canonical form, so names compare as strings.
func ParseProbe(name string) (Probe, error) {
	p, err := parseProbe(strings.Split(name, " "))
	if err == nil && p.String() != name {
		err = fmt.Errorf("its canonical form is %q", p)
	}
	if err != nil {
		return Probe{}, fmt.Errorf("parse probe %q: %w", name, err)
	}
	return p, nil
}

func parseProbe(f []string) (p Probe, err error) {
	if len(f) < 5 || len(f)%2 != 1 || f[3] != "->" {
		return p, fmt.Errorf(`want "FROM PROTO UID/GID -> ADDR:PORT" and perhaps "from ADDR", "port N" and "mark N"`)
	}
	p.From, p.Proto = f[0], f[1]
	if !slices.Contains([]string{fromPod, fromOut, fromVM}, p.From) {
		return p, fmt.Errorf("no namespace %q: want %s, %s or %s", p.From, fromPod, fromOut, fromVM)
	}
	if p.Proto != "tcp" && p.Proto != "udp" {
		return p, fmt.Errorf("no protocol %q: want tcp or udp", p.Proto)
	}
	uid, gid, _ := strings.Cut(f[2], "/")
	for _, id := range []struct {
		text string
		to   *uint32
	}{{uid, &p.UID}, {gid, &p.GID}} {
		n, err := strconv.ParseUint(id.text, 10, 32)
		if err != nil {
			return p, fmt.Errorf("owner: %w", err)
		}
		*id.to = uint32(n)
	}
	p.Dst, err = netip.ParseAddrPort(f[4])
	for i := 5; i < len(f) && err == nil; i += 2 {
		var n uint64
		switch f[i] {
		case "from":
			p.Src, err = netip.ParseAddr(f[i+1])
		case "port":
			n, err = strconv.ParseUint(f[i+1], 10, 16)
			p.Port = uint16(n)
		case "mark":
			n, err = strconv.ParseUint(f[i+1], 0, 32)
			p.Mark = uint32(n)
		default:
			err = fmt.Errorf("no word %q: want from, port or mark", f[i])
		}
	}
	return p, err
}

const (
	defaultID = 1337 // the proxy's UID and GID in Istio
	appID     = 1000 // the application's
)

// owner is the user and group that a socket belongs to.
type owner struct {
	UID, GID uint32
}

// Plan says for which proxy [Probes] makes probes. The zero value is Istio's.
type Plan struct {
	ProxyUID, ProxyGID uint32   // the proxy's own identity; both zero means 1337/1337
	Inbound            []uint16 // the proxy's TCP ports to try from outside; nil means 15001 15006 15008 15020 15021 15090
}

// The destinations, by who asks for them.
var (
	tcpOutbound = []string{ // every identity
		"10.96.5.5:80", "10.96.5.5:9090", "10.96.0.10:53", "172.16.3.3:3306", "198.51.100.10:443", "198.51.100.10:15008",
		"10.244.1.5:8080", "10.244.1.5:15008", "127.0.0.1:8080", "127.0.0.1:15020",
		"[fd00:96::5]:80", "[fd00:96::5]:9090", "[fd00:96::10]:53", "[2001:db8:1::3]:3306", "[2001:db8::10]:443",
		"[2001:db8::10]:15008", "[fd00:10:244::5]:8080", "[fd00:10:244::5]:15008", "[::1]:8080", "[::1]:15020",
	}
	udpOutbound = []string{ // every identity
		"10.96.0.10:53", "198.51.100.10:8125", "127.0.0.1:5000", "[fd00:96::10]:53", "[2001:db8::10]:8125", "[::1]:5000",
	}
	tcpByNet1   = []string{"192.168.77.1:80", "192.168.77.1:6379", "[fd00:77::1]:80", "[fd00:77::1]:6379"} // the application
	tcpFromVM   = []string{"10.96.5.5:80", "172.16.3.3:3306", "198.51.100.10:443", "10.99.0.1:8080"}
	appInbound  = []uint16{22, 443, 7070, 8080, 9090}
	meshInbound = []uint16{15001, 15006, 15008, 15020, 15021, 15090}
)

// Probes makes the standard set, of 191 for Istio's proxy, ordered by name: every identity of interest (root, the application, the
// proxy, its UID or GID only, and 2000/3000) to every kind of destination, from the pod, from outside, and from a virtual machine behind
// the pod.
func Probes(pl Plan) []Probe {
	proxy := owner{pl.ProxyUID, pl.ProxyGID}
	if proxy == (owner{}) {
		proxy = owner{defaultID, defaultID}
	}
	inbound := pl.Inbound
	if inbound == nil {
		inbound = meshInbound
	}
	app := owner{appID, appID}
	byName := map[string]Probe{}
	add := func(from, proto string, o owner, src string, dst ...string) {
		for _, d := range dst {
			p := Probe{From: from, Proto: proto, UID: o.UID, GID: o.GID, Dst: netip.MustParseAddrPort(d)}
			if src != "" {
				p.Src = netip.MustParseAddr(src)
			}
			byName[p.String()] = p
		}
	}
	owners := []owner{{}, app, {app.UID, proxy.GID}, {proxy.UID, app.GID}, proxy, {2000, 3000}}
	for _, o := range owners {
		add(fromPod, "tcp", o, "", tcpOutbound...)
		add(fromPod, "udp", o, "", udpOutbound...)
	}
	add(fromPod, "tcp", app, "", tcpByNet1...)
	add(fromPod, "tcp", proxy, "127.0.0.6", "10.244.1.5:8080") // the proxy delivers to the application
	for _, port := range slices.Concat(appInbound, inbound) {
		add(fromOut, "tcp", owner{}, "", fmt.Sprintf("10.244.1.5:%d", port), fmt.Sprintf("[fd00:10:244::5]:%d", port))
	}
	add(fromOut, "tcp", owner{}, "192.168.77.1", "192.168.77.2:8080", "192.168.77.2:9090")
	add(fromOut, "udp", owner{}, "", "10.244.1.5:5000", "[fd00:10:244::5]:5000")
	add(fromVM, "tcp", owner{}, "", tcpFromVM...)

	names := make([]string, 0, len(byName))
	for name := range byName {
		names = append(names, name)
	}
	slices.Sort(names)
	probes := make([]Probe, len(names))
	for i, name := range names {
		probes[i] = byName[name]
	}
	return probes
}
