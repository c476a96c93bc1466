package main

import (
	"context"
	"net/netip"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// questions are packets of interest, by the form of netnstest.ParseProbe.
var questions = []struct{ what, probe string }{
	{"application to a service", "pod tcp 1000/1000 -> 10.96.5.5:80"},
	{"application to the internet", "pod tcp 1000/1000 -> 172.16.3.3:80"},
	{"application to an excluded range", "pod tcp 1000/1000 -> 198.51.100.10:443"},
	{"application to an excluded port", "pod tcp 1000/1000 -> 10.96.5.5:3306"},
	{"application's name look-up", "pod udp 1000/1000 -> 10.96.0.10:53"},
	{"application to itself", "pod tcp 1000/1000 -> 127.0.0.1:8080"},
	{"proxy to a service", "pod tcp 1337/1337 -> 10.96.5.5:80"},
	{"proxy to its own pod's service", "pod tcp 1337/1337 -> 10.244.1.5:8080"},
	{"client to the application", "out tcp 0/0 -> 10.244.1.5:8080"},
	{"client to an excluded port", "out tcp 0/0 -> 10.244.1.5:22"},
	{"client to the proxy's health port", "out tcp 0/0 -> 10.244.1.5:15021"},
}

// row is a packet with what was to happen and what did.
type row struct {
	what    string
	probe   netnstest.Probe
	fate    string
	verdict string
	reason  string
	agrees  bool
}

// send sends the packets, and asks the tracer about each.
func (s *stage) send() ([]row, error) {
	addr := netip.MustParseAddr(podAddress)
	plan, err := istio.New().Plan(context.Background(), dialect.Subject{Pod: s.pod, Addrs: []netip.Addr{addr}}, dialect.Options{})
	if err != nil {
		return nil, err
	}
	var rows []row
	var probes []netnstest.Probe
	for _, q := range questions {
		probe, err := netnstest.ParseProbe(q.probe)
		if err != nil {
			return nil, err
		}
		result, err := trace.Trace(plan.Ruleset, packet(probe, addr))
		if err != nil {
			return nil, err
		}
		verdict := string(result.Verdict)
		if result.ToPort != 0 {
			verdict += " to " + strconv.Itoa(int(result.ToPort))
		}
		reason, _, _ := strings.Cut(result.Reason, ": ")
		rows = append(rows, row{what: q.what, probe: probe, verdict: verdict, reason: reason})
		probes = append(probes, probe)
	}
	fates := s.world.Run(probes)
	for i := range rows {
		r := &rows[i]
		r.fate = fates[r.probe.String()]
		r.agrees = agree(r.verdict, r.probe, r.fate)
		r.fate, _, _ = strings.Cut(r.fate, " orig=")
	}
	return rows, nil
}

func packet(p netnstest.Probe, pod netip.Addr) trace.Packet {
	packet := trace.Packet{Direction: trace.Out, Proto: ruleset.TCP, Dst: p.Dst, UID: p.UID, GID: p.GID, PodAddrs: []netip.Addr{pod}}
	if p.Proto == "udp" {
		packet.Proto = ruleset.UDP
	}
	if p.From != netnstest.FromPod {
		packet.Direction, packet.UID, packet.GID = trace.In, 0, 0
		packet.Src = netip.AddrPortFrom(netip.MustParseAddr(gateway), 0)
	}
	return packet
}

// agree compares a verdict with who answered: the proxy on the port that it
// names, or else whoever listens at the packet's own destination.
func agree(verdict string, p netnstest.Probe, fate string) bool {
	if port, ok := strings.CutPrefix(verdict, string(trace.Redirect)+" to "); ok {
		return fate == "proxy:"+port+" orig="+p.Dst.String()
	}
	answerer, _, _ := strings.Cut(strings.TrimSuffix(fate, "/udp"), " orig=")
	return verdict == string(trace.Pass) && strings.HasSuffix(answerer, ":"+strconv.Itoa(int(p.Dst.Port())))
}
