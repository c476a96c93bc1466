// Package compare checks whether two firewall programs treat a pod's packets
// alike: ours, and the one that another program has left in a running pod.
//
// [Compare] traces one packet of every kind that the rules of either program can tell apart. For each dimension
// (destination, port, protocol, user, group, source, interface, mark) it takes one value of each interval
// between the bounds in the rules. No rule of the model can treat two packets of a kind differently, so without a
// difference both programs treat every first packet of a connection alike. It also traces the connections
// that these packets open, both ways, and finds the rules that only answers and later packets meet.
//
// So are rules compared that drop packets in a conntrack state such as INVALID, and conntrack zones, by the answers that
// queries get with them. [Blind] lists what no comparison sees.
//
// [Parse] reads a file of saved rules, of iptables-save.
package compare

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Difference is one packet whose fate differs.
type Difference struct {
	Packet trace.Packet `json:"packet"`
	A      trace.Result `json:"a"`
	B      trace.Result `json:"b"`
}

// Kind names the one of the programs A and B that captures the packet: that redirects it, hands it to a transparent proxy or drops it.
// It is "missing" if only A does so, "extra" if only B does, and "changed" if both do, in different ways.
func (d Difference) Kind() string {
	switch {
	case d.B.Verdict == trace.Pass:
		return "missing"
	case d.A.Verdict == trace.Pass:
		return "extra"
	}
	return "changed"
}

// String returns for example
// "missing: out tcp 10.244.1.5 -> 10.0.0.1:443 uid 1000 gid 1000 by eth0: redirect 15001 | pass".
func (d Difference) String() string {
	return d.Kind() + ": " + Describe(d.Packet) + ": " + d.A.String() + " | " + d.B.String()
}

// Describe names a packet in one line.
func Describe(p trace.Packet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", p.Direction, p.Proto)
	if p.Src.Addr().IsValid() {
		fmt.Fprintf(&b, " %s", p.Src.Addr())
		if p.Src.Port() != 0 && p.Src.Port() != ephemeral {
			fmt.Fprintf(&b, " port %d", p.Src.Port())
		}
	}
	fmt.Fprintf(&b, " -> %s", p.Dst)
	if p.Direction == trace.Out {
		fmt.Fprintf(&b, " uid %d gid %d by %s", p.UID, p.GID, p.OutInterface)
	} else {
		fmt.Fprintf(&b, " by %s", p.InInterface)
	}
	if p.Mark != 0 {
		fmt.Fprintf(&b, " mark %#x", p.Mark)
	}
	if p.State != 0 && p.State != ruleset.StateNew {
		fmt.Fprintf(&b, " state %s", p.State)
	}
	return b.String()
}

// Blind returns what a comparison does not see, a sentence each: two programs that it finds the same may differ there.
func Blind() []string {
	return []string{
		"policy routing, routes and addresses of lo, which iptables-save and nft do not print: they are taken to be the same",
		"traffic other than TCP and UDP, such as ICMP; fragments; broadcast and multicast",
		"what the kernel logs or counts, comments, and the order of rules that changes no packet's fate",
		"what another program's rules, hooks of other priority or an XDP or tc program do before or after these",
		"conntrack entries that are there already: connections made under one program and continued under the other",
		"whether a proxy listens, and what it does with a connection",
	}
}

const (
	// maxPackets bounds the first packets of a comparison: it costs microseconds for each.
	maxPackets = 1_000_000
	// maxDifferences bounds those that a [Report] has, of each of the two lists.
	maxDifferences = 10_000
)

// ErrMany: the rules tell more than 1,000,000 kinds of packets apart, which are not compared. Check with errors.Is(err, compare.ErrMany).
var ErrMany = errors.New("too many kinds of packets to compare")

// Report is the result of [Compare].
type Report struct {
	// Packets counts those that were traced.
	Packets int `json:"packets"`
	// Differences are in the order of the packets.
	Differences []Difference `json:"differences"`
	// Connections counts those that were traced both ways.
	Connections int `json:"connections"`
	// ConnectionDifferences are in the order of the connections.
	ConnectionDifferences []ConnectionDifference `json:"connectionDifferences,omitempty"`
	// More says that the comparison ended at 10,000 differences: there may be more, and Packets and Connections count those so far.
	More bool `json:"more,omitempty"`
}

// Options are for [Compare].
type Options struct {
	// PodAddrs are the pod's addresses. In a family without one, the pod gets an address that is reserved for documentation.
	PodAddrs []netip.Addr
	// Listeners are the pod's; what they send onward is left out. Without any, first packets are compared and no connections.
	Listeners []trace.Listener
}

// Compare traces packets and connections of every kind through both programs. Connections that go otherwise are those of which one
// is established and the other is not, that fail otherwise, or whose two sides see other addresses; those whose first packet differs are
// left out. The packets are counted before any is made. The error is [ErrMany], the context's, or that of [trace.Trace]: get at a rule outside the model with
// errors.As(err, &unmodelled), where unmodelled is a *[trace.UnmodelledError].
func Compare(ctx context.Context, a, b ruleset.Ruleset, o Options) (Report, error) {
	report := Report{Differences: []Difference{}}
	grids, err := gridsOf(o.PodAddrs, a, b)
	if err != nil {
		return report, fmt.Errorf("compare rules: %w", err)
	}
	for p := range packets(grids) {
		if ctx.Err() != nil {
			return report, fmt.Errorf("compare rules: %w", context.Cause(ctx))
		}
		ra, err := trace.Trace(a, p)
		if err != nil {
			return report, fmt.Errorf("first program, packet %s: %w", Describe(p), err)
		}
		rb, err := trace.Trace(b, p)
		if err != nil {
			return report, fmt.Errorf("second program, packet %s: %w", Describe(p), err)
		}
		report.Packets++
		if ra.Same(rb) {
			continue
		}
		if report.More = len(report.Differences) == maxDifferences; report.More {
			return report, nil
		}
		report.Differences = append(report.Differences, Difference{p, ra, rb})
	}
	if len(o.Listeners) > 0 {
		for c := range connections(o, grids) {
			if ctx.Err() != nil {
				return report, fmt.Errorf("compare rules: %w", context.Cause(ctx))
			}
			if err := report.connect(a, b, c); err != nil {
				return report, err
			}
			if report.More = len(report.ConnectionDifferences) == maxDifferences; report.More {
				return report, nil
			}
		}
	}
	return report, nil
}
