// Package apply puts a [ruleset.Ruleset] into the network namespace of a pod,
// compares what is there with it, and takes it out again.
//
// There are two backends with the same three verbs. [IPTables] feeds the
// host's iptables-restore, nft or legacy variant; [NFTables] writes native
// nftables by netlink and starts no process. [Choose] picks one from what is
// found in the namespace and on the host.
//
// Apply is idempotent and all or nothing: it replaces an earlier program of
// the same owner with no moment in which a connection is not captured, leaves
// the rules of others alone, and on failure puts back the owner's rules as it
// found them. What it reads in a namespace is never given back to a program as
// text: a pod may have written it. That a program ends well is not taken for rules in
// the kernel, which is asked.
package apply
