//go:build long

package envoy

// The long form.
const (
	bodySize    = 1 << 30
	connections = 10_000
)
