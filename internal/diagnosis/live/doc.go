// Package live says how a running pod is, and what is behind it if it is not well. [Pod] takes what should become of the pod, as
// package explain tells it, and all that the cluster and the agent of the pod's node tell; [Pod.Now] is the one state that explains
// them all, with what to do. It does no I/O: who asks the cluster and the agent, and with which rights, is the caller's. "kubectl
// meshcni explain" prints it.
package live
