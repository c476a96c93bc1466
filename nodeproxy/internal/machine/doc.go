// Package machine decides what is to be done about a pod so that it is in, or out of, the care of the node's proxy: from what
// is wanted and what is the case it makes actions in order. It does nothing itself; [Run] does them through [Effects].
//
// # Joining
//
// The order is hand-over, listeners, probes, rules, annotation. The proxy comes before the rules because a proxy that
// listens where no rule leads disturbs nobody, while rules that lead to no listener refuse every connection. So a pod that
// runs has no moment in which it is captured without a proxy, and a failure on the way leaves its traffic as it was. The
// price is that its traffic stays outside the mesh for some milliseconds more. The probes' exemption comes before the rules
// too, or a probe could meet them without it.
//
// When the rules come, new connections are captured. Of connections that are open, those survive that the namespace's
// conntrack knows. Where it knows none, because no rule of the namespace used it before, the kernel takes the next packet of
// an open TCP connection for the first of a new one and redirects it, and the proxy's side resets the connection.
//
// # Leaving
//
// The order is annotation, rules, proxy, probes. Peers stop to use the tunnel when the annotation goes. New connections go
// straight to the application once the rules are gone, while the proxy still listens for those on their way to it. Then
// the proxy lets go: the connections that it carries are cut, at the latest when it ends its grace period. Connections that
// were never captured survive. A pod whose rules cannot be looked at stays with the proxy, since rules without a proxy
// would refuse its connections.
//
// # The annotation
//
// It only reports. It is set last and removed first, and corrected when it says more than the kernel does. No decision about
// traffic rests on it.
package machine
