//go:build !long

package envoy

import "time"

// The short form, for CI.
const (
	bodySize    = 8 << 20
	connections = 200
	talkTime    = time.Minute
)
