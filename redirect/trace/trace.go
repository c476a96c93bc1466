package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// UnmodelledError says that the packet met a rule outside the model, so that the result is unknown.
// Get at it with errors.As(err, &unmodelled), where unmodelled is a *trace.UnmodelledError.
type UnmodelledError struct {
	Table    ruleset.Table // that of iptables whose place a rule of nftables has
	Chain    string
	Position int // from 1
	Rule     string
	Reason   string

	where string // instead of the table and the chain, of a live rule
}

// Error names the rule and what is wrong with it.
func (e *UnmodelledError) Error() string {
	where := cmp.Or(e.where, e.Table.String()+"/"+e.Chain+":"+strconv.Itoa(e.Position))
	return fmt.Sprintf("trace: rule %s (%s): %s", where, e.Rule, e.Reason)
}

// Trace walks a packet through the program of its family. A family without program
// passes. The error is an [UnmodelledError], or says why the packet is impossible.
func Trace(rs ruleset.Ruleset, p Packet) (Result, error) {
	p, err := p.clean()
	if err != nil {
		return Result{}, err
	}
	family := ruleset.FamilyOf(p.Dst.Addr())
	program := rs.Family(family)
	if program == nil {
		return Result{
			Verdict: Pass, Path: []string{}, Mark: p.Mark, family: family,
			Reason: family.String() + " has no rules: passes",
		}, nil
	}
	w := newWalker(program, p)
	if err := w.alone(); err != nil {
		return Result{}, err
	}
	return w.result(), nil
}

// alone walks a packet that brings its connection.
func (w *walker) alone() error {
	w.conn, w.connState = &entry{mark: w.packet.ConnMark}, w.packet.State
	if w.packet.Direction == Out && !w.src.Addr().IsValid() {
		w.src = netip.AddrPortFrom(w.likelySource(), w.src.Port())
	}
	return w.walk()
}

func newWalker(program *ruleset.FamilyRuleset, p Packet) *walker {
	return &walker{program: program, packet: p, src: p.Src, dst: p.Dst, dstKnown: true, mark: p.Mark}
}

// walk takes the packet from where it begins to where it ends.
func (w *walker) walk() error {
	if w.packet.Direction == Out {
		return w.send()
	}
	return w.receive(w.packet.InInterface)
}

// walker is a packet on its way, and what was found so far.
type walker struct {
	program *ruleset.FamilyRuleset
	packet  Packet
	// hooks are the base chains of a namespace; nil: the program's are all. at is the one under way.
	hooks []*base
	at    *base
	plain base
	one   [1]*base
	// supposed are answers to what is not known, of which asked have been used.
	supposed []bool
	asked    int

	src, dst netip.AddrPort
	dstKnown bool // false once it is the address of an interface
	// srcUnknown is set if src is that address: of the answer from there.
	srcUnknown bool
	in, out    string
	mark       uint32
	hook       string

	// The connection. It counts once connection tracking has seen the packet (tracked), and stays with the packet on
	// lo. Before, a CT rule can leave a template. A packet that is traced alone brings its connection and its state.
	table     *table // nil: it is traced alone
	kind      kind
	tracked   bool
	invalid   bool
	template  bool
	zone      uint16
	conn      *entry
	connState ruleset.States
	reply     bool // it goes against the connection's first packet

	steps   []Step
	callers []int // indexes into steps: the jumps that led here
	nat     *decision
	tproxy  *decision
	dropped string   // why
	passes  []string // comments of rules that let it pass

	// Where it ends if it is not dropped: at a socket of the pod, or out of this interface.
	local  bool
	leaves string
}

// decision is a rewritten destination; an invalid address means this host.
type decision struct {
	to  netip.AddrPort
	why string
}

// send walks a packet that a process of the pod sends. Rules of OUTPUT see the interface that was chosen before them,
// even if one of them reroutes the packet; those of POSTROUTING see the new one.
func (w *walker) send() error {
	w.out = w.leavesBy()
	// IPv4 routes a packet before rules see it, and again after them.
	if why := w.cannotLeave(); why != "" && w.program.Family == ruleset.IPv4 {
		w.dropped = why
		return nil
	}
	if stop, err := w.run(ruleset.Output); stop {
		return err
	}
	w.out = w.leavesBy()
	if why := w.cannotLeave(); why != "" {
		w.dropped = why
		return nil
	}
	if stop, err := w.run(ruleset.Postrouting); stop {
		return err
	}
	if w.out != loopback {
		w.leaves = w.out
		return nil
	}
	return w.receive(loopback)
}

// leavesBy routes what goes out.
func (w *walker) leavesBy() string {
	if w.own(w.dst.Addr()) || w.keptHere() {
		return loopback
	}
	return w.packet.OutInterface
}

// keptHere reports whether the program's policy routing makes the packet local.
func (w *walker) keptHere() bool {
	r := w.program.Routing
	return r != nil && matchesMark(ruleset.MarkMatch{Value: r.Mark, Mask: cmp.Or(r.Mask, ruleset.FullMask)}, w.mark)
}

// receive walks a packet that came in by an interface.
func (w *walker) receive(in string) error {
	w.in, w.out = in, ""
	if w.table != nil && in != loopback && w.dst.Addr().IsLoopback() {
		w.dropped = "the kernel takes no packet for a loopback address from " + in + ": dropped"
		return nil
	}
	if stop, err := w.run(ruleset.Prerouting); stop {
		return err
	}
	// What lo brings keeps the route that it left with.
	local := in == loopback || !w.dstKnown || w.keptHere() || w.arrives(w.dst.Addr())
	if local {
		stop, err := w.run(ruleset.Input)
		w.local = !stop
		return err
	}
	if w.tproxy != nil {
		// ip_forward drops a packet that has a socket.
		w.dropped = w.tproxy.why + ": handed to a transparent listener, but no policy route keeps it here: dropped"
		return nil
	}
	w.out = w.packet.OutInterface
	if stop, err := w.run(ruleset.Forward); stop {
		return err
	}
	if stop, err := w.run(ruleset.Postrouting); stop {
		return err
	}
	w.leaves = w.out
	return nil
}

var localhost = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// likelySource is the source that the kernel chooses for an unbound socket; the zero address if that is not known.
func (w *walker) likelySource() netip.Addr {
	switch a := w.dst.Addr(); {
	case a.Is4() && a.IsLoopback():
		return localhost // the source of the route to all of 127.0.0.0/8
	case w.own(a):
		return a
	}
	for _, a := range w.packet.PodAddrs {
		if ruleset.FamilyOf(a) == w.program.Family {
			return a
		}
	}
	return netip.Addr{}
}

// own reports whether an address is the pod's.
func (w *walker) own(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(w.packet.PodAddrs, a) || slices.Contains(w.program.LoopbackAddrs, a)
}

// dstLocal reports whether the destination is an address of this host.
func (w *walker) dstLocal() bool {
	a := w.dst.Addr()
	return !w.dstKnown || w.own(a) || w.packet.Direction == In && w.arrives(a)
}

// arrives reports whether a packet from outside to the address is for the pod.
func (w *walker) arrives(a netip.Addr) bool {
	known := slices.ContainsFunc(w.packet.PodAddrs, func(b netip.Addr) bool { return ruleset.FamilyOf(b) == w.program.Family })
	return !known || w.own(a)
}
