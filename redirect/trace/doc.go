// Package trace computes what a pod's firewall program does to a packet, without a
// kernel: the verdict, the rules that matched, and the reason in words.
//
//	result, err := trace.Trace(redirect.Default().MustRuleset(), trace.Packet{
//		Direction: trace.Out,
//		Proto:     ruleset.TCP,
//		Dst:       netip.MustParseAddrPort("10.0.0.1:443"),
//		UID:       1000,
//	})
//	// result.Verdict == trace.Redirect, result.ToPort == 15001
//	// result.Reason  == "outbound connection: redirected to port 15001"
//
// # What is modelled
//
// The model has the hooks and tables in the kernel's order: raw, connection tracking, mangle, nat, filter. A process's
// packets meet OUTPUT and POSTROUTING, arriving ones PREROUTING and INPUT or FORWARD, and those that leave by lo all of
// these but FORWARD. The first packet of a connection decides its destination, in the first of nat OUTPUT and
// PREROUTING that it meets: what passed OUTPUT is not looked at again when lo brings it to PREROUTING. A redirected
// packet goes to the loopback address, or in PREROUTING to the address of the interface. A new mark or destination
// routes the packet again, and policy routing keeps marked packets on this host, but the rules of a hook go on seeing
// the interface that was chosen before it.
//
// A match or target outside this model is an [UnmodelledError], never a guess.
//
// # Limits
//
// The model has only the program's own rules: not those of others, and not what the kernel refuses
// by itself (martian addresses, reverse path filters). It assumes that the proxy listens where
// packets are sent. Do not trace a reply: the first packet of its connection decides for it.
package trace
