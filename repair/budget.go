package repair

import "github.com/meshcni/meshcni/internal/node/budget"

// Budget limits a rate: Burst actions at once and PerMinute in the long run. It starts empty, so that a controller that
// keeps restarting acts no faster than one that keeps running. Its Validate returns an error unless both are positive or
// it is [Unlimited].
type Budget = budget.Budget

// Unlimited is the Budget without limits.
var Unlimited = budget.Unlimited
