// Package selection decides whether a pod's traffic is redirected to a mesh proxy, and why.
//
// The central function is [Policy.Decide]. A [Policy] is data, one per mesh. Its answer, a [Decision], carries a stable
// Reason, the label of logs, events and metrics, and a sentence for people.
//
// The package does no I/O: a decision depends on the pod and its namespace only.
package selection
