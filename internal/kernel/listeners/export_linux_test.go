package listeners

// The same with another limit, for tests.
var (
	MissingWithin     = missingWithin
	ConnectionsWithin = connectionsWithin
	CarriedWithin     = carriedWithin
)
