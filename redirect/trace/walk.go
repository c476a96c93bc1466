package trace

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/meshcni/meshcni/internal/prefixes"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// tablesOf lists the tables of a hook, in the order of their priorities.
// Connection tracking comes after raw, where there is one.
var tablesOf = map[string][]ruleset.Table{
	ruleset.Prerouting:  {ruleset.Raw, ruleset.Mangle, ruleset.NAT, ruleset.Filter},
	ruleset.Output:      {ruleset.Raw, ruleset.Mangle, ruleset.NAT, ruleset.Filter},
	ruleset.Input:       {ruleset.Mangle, ruleset.Filter, ruleset.NAT},
	ruleset.Forward:     {ruleset.Mangle, ruleset.Filter},
	ruleset.Postrouting: {ruleset.Mangle, ruleset.NAT},
}

// run walks a hook's tables. It reports whether the packet ends here, by a drop or an error.
func (w *walker) run(hook string) (stop bool, err error) {
	w.hook = hook
	for _, t := range tablesOf[hook] {
		if t == ruleset.Mangle {
			w.track()
		}
		if t == ruleset.NAT && w.decided() {
			w.translate()
			continue
		}
		bases, err := w.basesOf(t, hook)
		if err != nil {
			return true, err
		}
		for _, b := range bases {
			if stop, err := w.base(t, b); stop {
				return true, err
			}
			if t == ruleset.NAT && w.conn.dnat {
				break // the next base chains are not asked
			}
		}
		if t == ruleset.NAT {
			w.translate()
		}
	}
	w.confirm()
	return false, nil
}

// track is connection tracking: invalid and untracked packets have no connection.
func (w *walker) track() {
	if w.table != nil {
		w.lookUp()
		return
	}
	w.tracked = w.connState != ruleset.StateInvalid && w.connState != ruleset.StateUntracked
	w.template = w.template && w.tracked
}

// decided reports whether this hook skips the nat table. It acts only on first packets,
// once for the connection's destination and once for its source, even if no rule matches.
func (w *walker) decided() bool {
	if !w.tracked || w.connState != ruleset.StateNew && w.connState != ruleset.StateRelated {
		return true
	}
	done := &w.conn.dstDone
	if w.hook == ruleset.Input || w.hook == ruleset.Postrouting {
		done = &w.conn.srcDone
	}
	was := *done
	*done = true
	return was
}

// base walks a base chain. It reports whether the packet ends there.
func (w *walker) base(t ruleset.Table, b *base) (stop bool, err error) {
	w.at = b
	end, err := w.chain(t, b.name, 0)
	if err != nil {
		return true, err
	}
	if b.drops && end != accept && w.dropped == "" {
		w.dropped = b.where + ": dropped by its policy"
	}
	return w.dropped != "", nil
}

// flow is the end of a walk of a chain, or of a rule's action.
type flow uint8

const (
	next   flow = iota // go on with the next rule
	back               // go back to the caller
	accept             // leave the table
)

// maxDepth is far above what programs nest; more is a loop, which the kernel refuses to load.
const maxDepth = 32

func (w *walker) chain(t ruleset.Table, name string, depth int) (flow, error) {
	c := w.at.program.Chain(t, name)
	if c == nil {
		return next, nil
	}
	for i := range c.Rules {
		r := &c.Rules[i]
		fail := func(reason string) error {
			return &UnmodelledError{Table: t, Chain: name, Position: i + 1, Rule: r.Text(w.program.Family), Reason: reason}
		}
		does := unmodelled(r, w.program.Family, t, w.hook)
		if does != "" && w.at.live == nil {
			return next, fail(does)
		}
		matches, reason := w.matches(r)
		if live := w.at.live[r]; live != nil {
			fail = func(reason string) error { return live.unmodelled(t, reason) }
			if matches && !live.understood {
				reason = live.Foreign
			}
			if reason != "" { // both are tried
				var err error
				if matches, err = w.suppose(fail(reason)); err != nil {
					return next, err
				}
			}
			if matches && does != "" && does != natDrop { // nftables may drop there
				return next, fail(cmp.Or(live.Foreign, does))
			}
		} else if reason != "" {
			return next, fail(reason)
		}
		if !matches {
			continue
		}
		w.steps = append(w.steps, Step{t, name, i + 1, *r})
		end := w.act(r)
		if r.Target.Action == ruleset.ActionJump {
			if w.at.program.Chain(t, r.Target.Chain) == nil {
				return next, fail("its chain " + r.Target.Chain + " does not exist")
			}
			if depth == maxDepth {
				return next, fail("the chains form a loop")
			}
			w.callers = append(w.callers, len(w.steps)-1)
			var err error
			end, err = w.chain(t, r.Target.Chain, depth+1)
			w.callers = w.callers[:len(w.callers)-1]
			if err != nil {
				return next, err
			}
			if end == back {
				end = next
			}
		}
		if end != next {
			return end, nil
		}
	}
	return next, nil
}

// matches reports whether all of the rule's matches hold. If that depends on something
// that the packet does not tell, it returns the reason instead.
func (w *walker) matches(r *ruleset.Rule) (ok bool, reason string) {
	p := &w.packet
	if r.Proto != ruleset.AnyProto && r.Proto != p.Proto ||
		!r.In.Matches(w.in) || !r.Out.Matches(w.out) ||
		!matchesPort(r.SrcPorts, w.src.Port()) || !matchesPort(r.DstPorts, w.dst.Port()) ||
		r.States != 0 && r.States&w.state() == 0 ||
		!matchesMark(r.Mark, w.mark) ||
		!r.ConnMark.IsZero() && (!w.tracked || !matchesMark(r.ConnMark, w.conn.mark)) {
		return false, ""
	}
	if len(r.Owner) > 0 && p.Direction != Out {
		return false, "a forwarded packet has no owner, and whether a negated match takes it differs between backends"
	}
	for _, o := range r.Owner {
		id := p.UID
		if o.Kind == ruleset.OwnerGID {
			id = p.GID
		}
		if !o.IsZero() && (o.First <= id && id <= o.Last) == o.Not {
			return false, ""
		}
	}
	srcKnown := w.src.Addr().IsValid() && !w.srcUnknown
	if w.dstKnown && !matchesAddr(r.Dst, w.dst.Addr()) || srcKnown && !matchesAddr(r.Src, w.src.Addr()) {
		return false, ""
	}
	// A packet that a process sends has a source of the pod, even if it is not known which.
	knownType := srcKnown || p.Direction == Out
	switch {
	case !matchesType(r.DstType, w.dstLocal()),
		knownType && !matchesType(r.SrcType, !srcKnown || w.own(w.src.Addr())):
		return false, ""
	case !w.dstKnown && !r.Dst.IsZero():
		return false, "it asks for the destination, which is now an address of the interface"
	case !knownType && r.SrcType != 0, !srcKnown && !r.Src.IsZero():
		return false, "it asks for the source, which the packet does not tell"
	}
	return true, ""
}

func matchesAddr(m ruleset.PrefixMatch, a netip.Addr) bool {
	return m.IsZero() || (m.Prefix.Contains(a) || prefixes.Find(m.More, a) >= 0) != m.Not
}

func matchesPort(m ruleset.PortMatch, port uint16) bool {
	return m.IsZero() || slices.ContainsFunc(m.Ranges, func(r ruleset.PortRange) bool { return r.Contains(port) }) != m.Not
}

func matchesMark(m ruleset.MarkMatch, mark uint32) bool {
	return m.IsZero() || (mark&m.Mask == m.Value) != m.Not
}

func matchesType(t ruleset.AddrType, local bool) bool {
	return t == 0 || (t == ruleset.AddrTypeLocal) == local
}

// state is the packet's as a rule sees it. Before connection tracking a packet
// counts as invalid, unless a template is attached to it.
func (w *walker) state() ruleset.States {
	switch {
	case w.tracked || w.connState == ruleset.StateUntracked:
		return w.connState
	case w.template:
		return ruleset.StateNew
	}
	return ruleset.StateInvalid
}

// act does what the rule's target does, except for jumps.
func (w *walker) act(r *ruleset.Rule) flow {
	switch t := r.Target; t.Action {
	case ruleset.ActionAccept:
		w.pass()
		return accept
	case ruleset.ActionReturn:
		w.pass()
		return back
	case ruleset.ActionDrop:
		w.dropped = w.why() + ": dropped"
		return accept
	case ruleset.ActionRedirect:
		w.nat = &decision{netip.AddrPortFrom(netip.Addr{}, t.Port), w.why()}
		w.redirect(t.Port)
		w.conn.sendTo(w.dst, w.dstKnown)
		return accept
	case ruleset.ActionDNAT:
		to := netip.AddrPortFrom(t.To.Addr(), t.To.Port())
		if to.Port() == 0 {
			to = netip.AddrPortFrom(to.Addr(), w.dst.Port())
		}
		w.nat = &decision{to, w.why()}
		w.dst, w.dstKnown = to, true
		w.conn.sendTo(w.dst, true)
		return accept
	case ruleset.ActionTProxy:
		port := t.Port
		if port == 0 {
			port = w.dst.Port()
		}
		w.tproxy = &decision{netip.AddrPortFrom(netip.Addr{}, port), w.why()}
		w.mark = t.Mark
		return accept
	case ruleset.ActionSetMark:
		w.mark = t.Mark
	case ruleset.ActionSaveMark:
		if w.tracked {
			w.conn.mark = w.mark
		}
	case ruleset.ActionRestoreMark:
		if w.tracked {
			w.mark = w.conn.mark
		}
	case ruleset.ActionSetConnMark:
		if w.tracked {
			w.conn.mark = w.conn.mark&^t.Mask ^ t.Mark
		}
	case ruleset.ActionNoTrack:
		if !w.tracked && !w.template {
			w.connState = ruleset.StateUntracked
		}
	case ruleset.ActionZone:
		// A packet that has a connection or a template keeps it.
		if !w.tracked && !w.template && !w.invalid && w.connState != ruleset.StateUntracked {
			w.template, w.zone = true, t.Zone
		}
	}
	return next
}

// redirect rewrites the destination to this host: in OUTPUT and on lo to the
// loopback address, else to the address of the interface.
func (w *walker) redirect(port uint16) {
	w.dstKnown = w.hook == ruleset.Output || w.in == loopback
	addr, unknown := netip.IPv6Loopback(), netip.IPv6Unspecified()
	if w.program.Family == ruleset.IPv4 {
		addr, unknown = localhost, netip.IPv4Unspecified()
	}
	if w.table != nil && !w.dstKnown {
		// The interface's address: nearly always the one that was asked, if that is the pod's.
		if addr = w.dst.Addr(); !w.own(addr) {
			addr = unknown
		}
	}
	w.dst = netip.AddrPortFrom(addr, port)
}

// why is the comment of the rule that matched last, or else of the jump that led to it, or else the rule's text.
func (w *walker) why() string {
	last := w.steps[len(w.steps)-1]
	if last.Rule.Comment != "" {
		return last.Rule.Comment
	}
	for i := len(w.callers) - 1; i >= 0; i-- {
		if c := w.steps[w.callers[i]].Rule.Comment; c != "" {
			return c
		}
	}
	return "rule " + last.String() + " (" + strconv.Quote(last.Rule.Text(w.program.Family)) + ")"
}

func (w *walker) pass() { w.passes = append(w.passes, w.why()) }
