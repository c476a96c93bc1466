// Package selection decides whether a pod's traffic is to be redirected to a
// mesh proxy, and says why or why not.
//
// The central function is [Policy.Decide]. A Policy is data, of which each
// mesh has its own; a [Decision] carries a stable [Reason], which is what logs,
// events and metrics are labelled with, and a sentence for people.
//
// The package does no I/O and never guesses: what a policy needs to know is
// in the pod and its namespace.
package selection
