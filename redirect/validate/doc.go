// Package validate proves, with real connections from inside a pod, that its
// redirection works. It is what the init container of a mesh runs before the
// application starts, when a CNI plugin was to set the rules.
//
// The central function is [Validate]. It starts from the same
// [redirect.Redirect] as the rules, so it never asks for what they do not give:
// package trace says which connections of this very process the rules would
// redirect, and to where; a few of those are made, and each must arrive at a
// listener of ours on the proxy's port, with the destination that it was sent to.
//
// # What is tried
//
// Which connections are redirected depends on who makes them, so what can be
// proved depends on the user and group that validate runs as:
//
//	the proxy's      A connection to an address of the pod itself (127.0.0.6, or an IPv6 address of an
//	                 interface; never 127.0.0.1 and ::1) leaves by lo and must come back on the inbound port.
//	                 Its DNS queries are not captured. That DNS is, shows only by TCP to port 53 of the pod
//	                 itself: rules with DNS capture leave that alone, rules without send it to the inbound port.
//	any other        A connection to an address that is not the pod's must arrive at the outbound port. The
//	                 address is one for documentation (RFC 5737, RFC 3849), or from the included ranges. It needs
//	                 a route, but no answer. DNS queries over UDP and TCP, to the pod's own loopback addresses where
//	                 all servers are captured, must arrive at the DNS port.
//	root             Both: with CAP_SETUID and CAP_SETGID sockets are opened in the name of either.
//
// Each captured family that the namespace has is tried. That connections from
// outside are redirected cannot be seen from inside; it is the same program,
// loaded in the same transaction, that is shown to be there.
//
// # What leaves the pod
//
// Nothing, where redirection works: packets turn back inside the pod. Where it
// does not, one packet per trial would go out; its hop limit is 1, so it ends at
// the first router, which is the node.
//
// # Needs
//
// No capability and no outside address. The proxy's ports should be free, as
// they are before the proxy starts; where one is taken it is enough that the
// connection is accepted, since nobody listens where it was sent to.
package validate
