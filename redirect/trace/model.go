package trace

import "github.com/meshcni/meshcni/redirect/ruleset"

const natDrop = "the nat table does not drop"

// unmodelled names the part of a rule that is outside the model for any packet;
// empty when nothing is. Much of it the kernel refuses to load.
func unmodelled(r *ruleset.Rule, f ruleset.Family, t ruleset.Table, hook string) string {
	foreign := func(m ruleset.PrefixMatch) bool { return !m.IsZero() && ruleset.FamilyOf(m.Prefix.Addr()) != f }
	ports := r.Proto == ruleset.TCP || r.Proto == ruleset.UDP
	const states = ruleset.StateInvalid | ruleset.StateNew | ruleset.StateRelated | ruleset.StateEstablished | ruleset.StateUntracked
	switch {
	case foreign(r.Src), foreign(r.Dst):
		return "it names an address that is not " + f.String()
	case !ports && (!r.SrcPorts.IsZero() || !r.DstPorts.IsZero()):
		return "ports need protocol tcp or udp"
	case r.States&^states != 0:
		return "it names a state that is not modelled"
	}
	for _, o := range r.Owner {
		switch {
		case o.IsZero():
		case o.Kind != ruleset.OwnerUID && o.Kind != ruleset.OwnerGID:
			return "it names a kind of owner that is not modelled"
		case hook != ruleset.Output && hook != ruleset.Postrouting:
			return "owners are known in OUTPUT and POSTROUTING only"
		}
	}
	nats := t == ruleset.NAT && (hook == ruleset.Output || hook == ruleset.Prerouting)
	switch r.Target.Action {
	case ruleset.ActionNone, ruleset.ActionAccept, ruleset.ActionReturn, ruleset.ActionJump,
		ruleset.ActionSetMark, ruleset.ActionSaveMark, ruleset.ActionRestoreMark, ruleset.ActionSetConnMark, ruleset.ActionLog:
	case ruleset.ActionDrop:
		if t == ruleset.NAT {
			return natDrop
		}
	case ruleset.ActionRedirect:
		if !nats || !ports || r.Target.Port == 0 {
			return "REDIRECT needs the nat table's PREROUTING or OUTPUT, protocol tcp or udp, and a port"
		}
	case ruleset.ActionDNAT:
		to := r.Target.To
		if !nats || !to.Addr().IsValid() || ruleset.FamilyOf(to.Addr()) != f || to.Port() != 0 && !ports {
			return "DNAT needs the nat table's PREROUTING or OUTPUT, an address of the family, and for a port protocol tcp or udp"
		}
	case ruleset.ActionTProxy:
		if t != ruleset.Mangle || hook != ruleset.Prerouting || !ports {
			return "TPROXY needs the mangle table's PREROUTING and protocol tcp or udp"
		}
	case ruleset.ActionZone, ruleset.ActionNoTrack:
		if t != ruleset.Raw {
			return "CT needs the raw table"
		}
	default:
		return "its target is not modelled"
	}
	return ""
}
