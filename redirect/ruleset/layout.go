package ruleset

// Layout names the nftables tables and chains, of family inet, in which another program keeps the rules of a [Ruleset].
type Layout struct {
	// Tables has a name for each table of the ruleset.
	Tables map[Table]string
	// Chains has a name for each chain, built-in ones included. A chain without one keeps its own.
	Chains map[string]string
}
