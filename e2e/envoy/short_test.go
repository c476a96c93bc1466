//go:build !long

package envoy

// The short form, for CI.
const (
	bodySize    = 8 << 20
	connections = 200
)
