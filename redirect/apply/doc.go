// Package apply puts a [ruleset.Ruleset] into the network namespace of a pod,
// compares the live rules with it, and removes them.
//
//	backend, err := apply.Choose(ctx, ns, apply.Options{})
//	result, err := backend.Apply(ctx, rules)
//	differences, err := backend.Check(ctx, rules)
//	err = backend.Remove(ctx, rules.Owner())
//
// [Choose] picks the backend from what is in the namespace and on the host: the iptables-restore of the nft or legacy
// variant, or native nftables by netlink, which starts no process. [Live] lists the rules with their counters.
//
// Apply is idempotent and all or nothing. It replaces an earlier program of the same owner without a moment in which a
// connection is not captured, leaves the rules of others alone, and restores the owner's earlier rules on failure. It
// never passes text that it read in a namespace to a program, because a pod may have written that text, and asks the
// kernel whether the rules are there instead of trusting a program's exit status.
package apply
