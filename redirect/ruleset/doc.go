// Package ruleset models the firewall program of one pod as a value: typed
// tables, chains and rules for each address family, and the policy routing
// that transparent proxying needs.
//
// The central type is [Ruleset]; it holds one [Program] per family. A Program
// has one canonical text, [Program.String], which is exactly what
// iptables-restore --noflush takes and, rule for rule, what iptables-save
// prints back. [Parse] reads that output again, rules of others included, and
// [Diff] compares what is live with what is wanted, by rule.
//
// # Ownership
//
// A pod's network namespace may hold rules of others. Ours live in chains
// whose names begin with a prefix, and each built-in chain holds one rule of
// ours, the jump to them. [Owner] says which rules and chains are ours; nothing
// else is ever changed by the texts that [Program.Transition] makes.
//
// The package does no I/O: what was found on the host is an argument. It is
// out of its scope to choose the rules (package redirect does) and to put them
// into a kernel (package redirect/apply does).
package ruleset
