package ruleset

// AllMissing reports whether the differences from rs are all that a namespace has which has none of its rules. A family without
// differences is one that the kernel lacks. Routing does not count,
// and neither does what becomes of packets.
func (rs Ruleset) AllMissing(diffs []Difference) bool {
	missing := map[Family]int{}
	for _, d := range diffs {
		switch {
		case d.Table == RoutingTable, d.Kind == KindFate, d.Kind == KindUnknown:
		case d.Kind != KindMissing:
			return false
		default:
			missing[d.Family]++
		}
	}
	for family, n := range missing {
		if p := rs.Family(family); p == nil || p.NumRules() != n && p.plainRules() != n { // of nftables, or of iptables
			return false
		}
	}
	return len(missing) > 0
}
