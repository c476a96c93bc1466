// Package ruleset models the firewall program of one pod as a value: typed tables, chains and rules
// for each address family, and the policy routing that transparent proxying needs.
//
// A [Ruleset] holds one [FamilyRuleset] per family. Each has one canonical text, [FamilyRuleset.String], which
// iptables-restore --noflush takes and which iptables-save prints back, rule for rule. [Parse] reads that output, rules
// of others included, and [FamilyRuleset.Diff] compares live rules with wanted ones.
//
// [Live] are the rules found in a kernel, of any backend, each with what it does in the model. [Live.Ruleset] makes a Ruleset of
// them, to trace or compare.
//
// # Ownership
//
// A pod's network namespace may hold rules of others. Ours are in chains whose names begin with a
// prefix, and in one rule in each built-in chain that jumps to them. [Ownership] says which rules and
// chains are ours. [FamilyRuleset.Transition] never changes anything else.
//
// The package does no I/O. Package redirect chooses the rules, and package redirect/apply applies them.
package ruleset
