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
// # Connections
//
// A first packet does not tell whether answers come back. [TraceConnection] traces a connection both ways:
//
//	got, err := trace.TraceConnection(rs, trace.Connection{First: packet, Listeners: listeners})
//	// got.Verdict == trace.AnswerLost
//	// got.Reason  == "the answer of 10.244.1.5:8080 in the pod (uid 1000 gid 1000) leaves by eth0, and …"
//
// Each packet finds its connection in connection tracking, in the zone that the raw table chose, by the addresses that
// it was sent with. It is translated as the connection's first packet was, or back; it has the mark of the socket that
// sends it, and what rules save and restore of the connection's. Then it is routed: to a socket of the pod, or out of an
// interface. Whoever gets the first packet answers it, and then the client speaks again. A [Listener] of a proxy opens a
// connection of its own, which is traced as well, so that a loop is found. A [Tracker] traces several connections of one
// pod, since an earlier one can be in the way of a later one.
//
// # Limits
//
// The model has only the program's own rules: not those of others, and of what the kernel refuses by itself only
// loopback addresses on other interfaces. [Trace] assumes that the proxy listens where packets are sent. An answer to
// somebody outside leaves by the interface that the first packet came by. The kernel's own packets, such as a reset or
// an ICMP error, are not traced: a connection to a port where nobody listens is [Refused]. Do not trace a reply with
// [Trace]: the first packet of its connection decides for it.
package trace
