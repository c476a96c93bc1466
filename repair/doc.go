// Package repair finds pods that started without redirection rules, because the CNI plugin was not on their node yet or was
// not called, and repairs them.
//
// A mesh's injector gives each pod an init container that checks redirection and ends with a known exit code when it is
// missing (see [dialect.Check]). [Diagnose] is a pure function that tells from a pod's status whether the pod is
// broken and why. A [Controller] watches the pods of one node and takes one [Action] on the broken ones:
//
//	label    labels the pod, for people and other programs to deal with
//	delete   evicts the pod, so that its owner replaces it
//	repair   writes the rules into its running network namespace, as the plugin would have
//
// # Safety
//
// The controller reads a pod again before it acts, and each action carries the UID and resource version that it read: a
// pod that was replaced or has changed since is left alone. It evicts pods, so disruption budgets hold. [Budget] limits
// the rate on the node, for the pods of each namespace, and an owner whose replacements are broken too has its pods deleted at growing
// intervals. While the plugin is not ready, the controller deletes nothing: replacements would be no better. It verifies the effect of each
// action.
//
// # Detection
//
// With Options.Detect the controller also finds pods in the mesh that started without the plugin and have no check of their own.
// It compares the node's pods with libcni's cache and the plugin's records, which takes no privilege: see [Detection] and
// [status.Code]. It reports them with any action, and takes [Action] on them if Detection.Act is set.
//
// # Whose is what
//
// Package internal/node/podrules is the way to a pod's rules, for this package and package nodeproxy; [InPlace] is it for an embedder. This
// package has the policy for pods that started without their rules or lost them, and whose proxy is in the pod: diagnose, then label, evict or mend, within budgets. The pods of a node's proxy are nodeproxy's; its controller takes each from any state to the one that it should have.
//
// The controller keeps no state that matters: pods' status says what is broken; labels, deletion timestamps and the live
// rules say what was done.
//
// # Verification
//
// With Options.VerifyInterval the controller compares the rules of running, captured pods with the wanted rules, one pod
// after another. It reports differences and, with [ActionRepair], restores the rules.
//
// # In a container
//
// Labels and evictions need nothing of the node. To look into running pods, a container needs the host's PID namespace
// and CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_NET_ADMIN. To run the host's iptables, it also needs Options.HostRoot
// ("/proc/1/root"), CAP_SYS_CHROOT and, for the legacy variant, CAP_NET_RAW. Without the host's iptables, rules that the
// plugin made with iptables can be neither compared nor restored. TestRepairCapabilities in
// repair/integration shows that these capabilities are sufficient and necessary.
//
// # Cost
//
// Measured by TestScale in repair/integration, with meshcni-repair on a real API server with 5,000 pods, 200 of them on
// this node, of which 100 break at once: 25 MB of memory at rest, 32 MB at most; 9 requests until it is at rest, then
// only the open watch; for each broken pod a read, the eviction, another read, and one or two events. Pods of other nodes
// are not cached. Detection adds no request but its events; BenchmarkLook measures what it takes on the node.
package repair
