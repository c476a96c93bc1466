// Package repair finds the pods that started before the CNI plugin was on their
// node, and so have no redirection rules, and deals with them safely.
//
// A mesh's injector puts an init container into such pods that proves
// redirection, and that ends with a known exit code when it is missing (see
// [dialect.Validation]). The central functions are [Diagnose], which is pure and
// says of one pod whether it is broken and why, and [Controller.Run], which
// watches the pods of one node and takes one [Action] on the broken ones:
//
//	label    marks the pod, for people and other programs to deal with
//	delete   evicts it, so that its owner makes another one
//	repair   puts the rules into its running network namespace, as the plugin would have
//
// # Safety
//
// Before each action the pod is read again, and the action carries the UID and
// the resource version of what was read: a pod that was made anew under the same
// name, or that has changed meanwhile, is not touched. Disruption budgets hold,
// since pods are evicted. [Budget] bounds the pace on the node and, for deleting,
// across all nodes without a leader. While the plugin itself is not ready, or most
// of the node's pods look broken, nothing is deleted ([Breaker]): their
// successors would be no better. After each action its effect is verified.
//
// # State
//
// There is none to lose: what is broken is told by the pods' status, what is
// handled by labels, deletion timestamps and the live rules.
//
// # Verification
//
// With Config.VerifyInterval the rules of running, captured pods are compared with
// the wanted ones, one pod after the other; what differs is reported and, in
// repair mode, put back.
//
// # In a container
//
// Labels and evictions need nothing of the node. To look into running pods takes the host's PID namespace, and
// CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_NET_ADMIN; with the host's iptables, which Flags.HostRoot gives the way to
// ("/proc/1/root"), CAP_SYS_CHROOT as well, and CAP_NET_RAW where that is the legacy variant. Without it, rules that
// the plugin made by iptables can be neither compared nor put back ([ErrVariant]). repair/integration
// (TestRepairCapabilities) shows that this is enough, and that no less is.
//
// # Cost
//
// Measured with the program meshcni-repair on a real API server with 5,000 pods,
// 200 of them on this node, of which 100 break at once (repair/integration, TestScale):
// 25 MB of memory at rest and 32 MB at most; 9 requests until it is at rest, and none
// then but the open watch; for each broken pod one read before the eviction, the
// eviction, one read after it, and an event or two. Other nodes' pods are not held.
package repair
