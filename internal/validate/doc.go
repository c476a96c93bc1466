// Package validate proves, with real connections from inside a pod, that the pod's redirection works. The init
// container of a mesh runs it before the application starts, if a CNI plugin was to set the rules.
//
// The central function is [Run]. It starts from the same [redirect.Redirect] as the rules. Package trace tells
// which connections of this process the rules would redirect, and to where. Validate makes a few of those, and each has
// to arrive at a listener on the proxy's port with its original destination.
//
// # What is tried
//
// What can be proved depends on the user and group of the process:
//
//	the proxy's      TCP to an address of the pod itself (127.0.0.6, or an IPv6 address of an interface; never
//	                 127.0.0.1 and ::1) leaves by lo and must come back on the inbound port. The proxy's own DNS
//	                 queries are not captured; DNS capture shows only by TCP to port 53 of the pod itself, which
//	                 rules with DNS capture leave alone and other rules send to the inbound port. Where calls within
//	                 the pod pass, nothing that the proxy sends tells: the error says who could try.
//	any other        TCP to an address outside the pod must arrive at the outbound port. The address is one for
//	                 documentation (RFC 5737, RFC 3849), or from the included ranges. It needs a route, but no
//	                 answer. DNS queries over UDP and TCP must arrive at the DNS port. If all servers are captured,
//	                 they go to the pod's own loopback addresses. Where they go to another address, it is tried if that is
//	                 the loopback address.
//	root             Both: with CAP_SETUID and CAP_SETGID it opens sockets as either.
//
// Each captured family that the namespace has is tried. Redirection of connections from outside cannot be seen from
// inside, but its rules are loaded in the same transaction as those that are tried.
//
// # What leaves the pod
//
// Nothing, if redirection works. If not, one packet per trial; its hop limit is 1, so
// it ends at the first router, which is the node.
//
// # Needs
//
// No capability and no address outside. The proxy's ports should be free. Where one is
// taken, a connection that is accepted counts, since nobody listens at its destination.
package validate
