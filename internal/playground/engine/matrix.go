package engine

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Cell is a connection of the matrix of who reaches what.
type Cell struct {
	Family string `json:"family"`
	Who    string `json:"who"`
	What   string `json:"what"`
	// Ask is the connection, to trace by itself.
	Ask   Connection `json:"ask"`
	Class Class      `json:"class"`
	Said  string     `json:"said"`
	Why   string     `json:"why"`
}

// maxExcluded bounds the excluded ports and prefixes of a kind that the matrix shows.
const maxExcluded = 2

func (a *asked) matrix() []Cell {
	cells := []Cell{}
	for _, f := range ruleset.Families {
		has := slices.ContainsFunc(a.Subject.Addrs, func(x netip.Addr) bool { return ruleset.FamilyOf(x) == f })
		if f == ruleset.IPv4 && len(a.Subject.Addrs) == 0 || has || a.Plan.Ruleset.Family(f) != nil {
			cells = append(cells, a.matrixOf(f)...)
		}
	}
	return cells
}

func (a *asked) matrixOf(f ruleset.Family) (cells []Cell) {
	e, port, r := a.Example(f), a.ApplicationPort(), a.Plan.Redirect
	add := func(who, what string, c Connection) {
		cell := Cell{Family: f.String(), Who: who, What: what, Ask: c}
		p, err := a.packet(c)
		var w Way
		if err == nil {
			w, err = a.way(p)
		}
		if err != nil {
			cell.Class, cell.Said, cell.Why = Unknown, "cannot tell", err.Error()
		} else {
			cell.Class, cell.Said, cell.Why = w.Class, w.Said, reason(w.Conversation)
		}
		cells = append(cells, cell)
	}
	out := func(what, proto string, to netip.Addr, port uint16) {
		add("the application", what, Connection{Direction: trace.Out, Who: Application, Proto: proto, Dst: to.String(), Port: port})
		if a.Decision.Selected {
			add("the proxy", what, Connection{Direction: trace.Out, Who: Proxy, Proto: proto, Dst: to.String(), Port: port})
		}
	}
	in := func(what, proto string, port uint16) {
		add("a client", what, Connection{Direction: trace.In, Proto: proto, Src: e.Client.String(), Dst: e.Pod.String(), Port: port})
	}
	out("a service", "tcp", e.Service, 80)
	out("the internet", "tcp", e.Outside, 443)
	out("a name server", "udp", e.Resolver, 53)
	out("other UDP", "udp", e.Outside, 8125)
	out("its own pod", "tcp", e.Pod, port)
	out("localhost", "tcp", e.Loopback, port)
	for i, x := range r.Outbound.ExcludeCIDRs.Family(f) {
		if i < maxExcluded {
			out("excluded "+x.String(), "tcp", x.Addr(), 443)
		}
	}
	for i, x := range r.Outbound.ExcludePorts.Ranges() {
		if i < maxExcluded {
			out(excludedPorts(x), "tcp", e.Service, x.First)
		}
	}
	in("the application", "tcp", port)
	for i, x := range r.Inbound.ExcludePorts.Ranges() {
		if i < maxExcluded {
			in(excludedPorts(x), "tcp", x.First)
		}
	}
	if r.Proxy.TunnelPort != 0 {
		in("the mesh's tunnel", "tcp", r.Proxy.TunnelPort)
	}
	in("the application, UDP", "udp", port)
	return cells
}

func excludedPorts(r ruleset.PortRange) string {
	if r.First == r.Last {
		return fmt.Sprintf("excluded port %d", r.First)
	}
	return fmt.Sprintf("excluded ports %d-%d", r.First, r.Last)
}

// reason is why the first packet goes where it does, or why the connection fails.
func reason(c trace.Conversation) string {
	if c.Verdict == trace.Established && len(c.Packets) > 0 {
		return c.Packets[0].Reason
	}
	return c.Reason
}
