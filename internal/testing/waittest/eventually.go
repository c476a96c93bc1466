// Package waittest waits in tests for what must happen.
package waittest

import (
	"fmt"
	"testing"
	"time"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// Eventually calls check until it returns nil, which is when the test goes on. After [netnstest.Patience] it fails the test, with what it
// waited for and the error that check returned last. Check runs on the test's goroutine, every 10 milliseconds.
func Eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	eventually(tb, netnstest.Patience, what, check)
}

func eventually(tb testing.TB, patience time.Duration, what string, check func() error) {
	tb.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("waited %s until %s: %v", patience, what, err)
			panic(fmt.Sprintf("Fatalf of %T returned", tb)) // a TB that goes on would take what is awaited for granted
		}
	}
}
