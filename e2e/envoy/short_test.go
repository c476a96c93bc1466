//go:build !long

package envoy

import "github.com/meshcni/meshcni/netnsexec/netnstest"

// The short form, for CI.
const (
	bodySize    = 8 << 20
	connections = 200
	talkTime    = netnstest.Patience
)
