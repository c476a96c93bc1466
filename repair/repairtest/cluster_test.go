package repairtest_test

import (
	"testing"

	"github.com/meshcni/meshcni/repair/repairtest"
)

// TestConform runs the table that repair/integration runs on a real API server.
func TestConform(t *testing.T) {
	t.Parallel()
	c := repairtest.New()
	repairtest.Conform(t, c, c.Admin())
}
