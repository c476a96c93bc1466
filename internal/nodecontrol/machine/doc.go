// Package machine decides what is to be done about a pod so that it is in, or out of, the care of the node's proxy: from what
// is wanted and what is the case it makes actions in order. It does nothing itself; [Run] does them through [Effects].
//
// # Joining
//
// The order is hand-over, listeners, sysctl, probes, rules, annotation. The proxy comes before the rules because a proxy that
// listens where no rule leads disturbs nobody, while rules that lead to no listener refuse every connection. So a pod that
// runs has no moment in which it is captured without a proxy, and a failure on the way leaves its traffic as it was. The
// price is that its traffic stays outside the mesh for some milliseconds more. The probes' exemption comes before the rules
// too, or a probe could meet them without it.
//
// When the rules come, new connections are captured. Those that are open or being made go on outside the mesh: the effect that
// writes the rules first makes the namespace's conntrack know each of them, or the kernel would take their next packet for the
// first of a new connection and redirect it.
//
// # Leaving
//
// The order is annotation, drain, proxy, probes, rules. Rules that drain redirect nothing, so new connections go straight to the
// application. The proxy keeps the pod for a while: ztunnel cuts all that it carries when it is told to let go, and peers use the tunnel
// until their control plane, which goes by the annotation, has told them. So it is told when it carries nothing any more and peers have had
// time, or when that takes too long (Actual.Due). As long as it carries connections, the rest of the rules keeps their packets
// translated, and marked: without any rule of table nat the kernel would send them as they are, to ends that do not know them, and an end that
// only listens would wait for ever. When the last has ended, the rest of the rules goes. A pod that is gone is taken from the proxy at
// once.
// A pod whose rules cannot be looked at stays with the proxy, since rules without a proxy would refuse its connections.
//
// # The annotation
//
// Peers encrypt by it: to a pod that says that it is in the mesh they use the tunnel, to others they send plaintext, which the proxy takes.
// So it is no report of the moment. It is set last on joining and removed first on leaving, and stays while the pod is to be in, whatever
// is missing: as long as rules redirect what is sent to the pod, nothing gets in without a proxy, by tunnel or not, and it is set if
// it says anything else. It is taken back only if nobody has listened for the tunnel for long and the rules do not redirect what is sent to
// the pod, so that peers cannot reach it by the tunnel and can without. No decision about traffic of this node rests on it.
package machine
