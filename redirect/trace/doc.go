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
// The hooks and their order: raw, connection tracking, mangle, nat, filter;
// OUTPUT and POSTROUTING for what a process sends, PREROUTING and INPUT or
// FORWARD for what arrives, and all four for what leaves by lo. A connection's
// destination is decided once, by its first packet, in the first of OUTPUT and
// PREROUTING that it meets: what passed nat OUTPUT untouched is not looked at
// again when lo brings it to PREROUTING. A redirected packet's destination
// becomes the loopback address, or in PREROUTING the address of the interface;
// a changed mark or destination routes the packet anew, and the policy routing
// of the program keeps marked packets on this host. Rules of a hook go on
// seeing the interface that was chosen before the hook.
//
// A match or target outside this model is an [UnmodelledError], never a guess.
//
// # Limits
//
// Only the program's own rules are known: not those of others, and not what
// the kernel refuses by itself (martian addresses, reverse path filters). It is
// assumed that the proxy listens where packets are sent to. A reply is not a
// packet to trace: the connection's first packet decided for it.
package trace
