//go:build long

package envoy

import "time"

// The long form.
const (
	bodySize    = 1 << 30
	connections = 10_000
	talkTime    = 10 * time.Minute // for that body on a busy machine
)
