package netnstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Need is something that a test needs; see [Require].
type Need struct {
	// Name says what it is, such as "kernel feature xt_TPROXY".
	Name string
	// Check returns nil when it is met. Nil: it always is.
	Check func() error
}

// Root is the right to make network namespaces and to own sockets as other users.
var Root = Need{Name: "root on Linux", Check: rootCheck}

// IPv6 is an IPv6 stack.
var IPv6 = Need{Name: "IPv6", Check: func() error {
	_, err := os.Stat("/proc/net/if_inet6")
	return err
}}

// Binary is a program on the PATH.
func Binary(name string) Need {
	return Need{Name: "program " + name, Check: func() error {
		_, err := exec.LookPath(name)
		return err
	}}
}

// Require skips the test, naming what is missing, unless all needs are met. With CI=true in the environment it fails the
// test, since a test that CI skips protects nothing.
func Require(tb testing.TB, needs ...Need) {
	tb.Helper()
	var missing []error
	for _, n := range needs {
		if n.Check == nil {
			continue
		}
		if err := n.Check(); err != nil {
			missing = append(missing, fmt.Errorf("%s: %w", n.Name, err))
		}
	}
	switch err := errors.Join(missing...); {
	case err == nil:
	case os.Getenv("CI") == "true":
		tb.Fatalf("missing, and CI=true allows no skipping:\n%v", err)
	default:
		tb.Skipf("missing:\n%v", err)
	}
}
