package netnstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// TB is the part of testing.TB that this package uses. A program that is no test can bring its own.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	TempDir() string
}

// Need is something that a test needs; see [Require]. The zero Need is always met.
type Need struct {
	name  string
	check func() error
}

// String returns the need's name.
func (n Need) String() string { return n.name }

// Needing makes a Need of a name, such as "kernel feature xt_TPROXY", and a check that returns nil when it is met.
func Needing(name string, check func() error) Need { return Need{name, check} }

// Root is the right to make network namespaces and to own sockets as other users.
var Root = Needing("root on Linux", rootCheck)

// IPv6 is an IPv6 stack.
var IPv6 = Needing("IPv6", func() error {
	_, err := os.Stat("/proc/net/if_inet6")
	return err
})

// Binary is a program on the PATH.
func Binary(name string) Need {
	return Needing("program "+name, func() error {
		_, err := exec.LookPath(name)
		return err
	})
}

// Missing returns the needs that are not met, or nil.
func Missing(needs ...Need) error {
	var missing []error
	for _, n := range needs {
		if n.check == nil {
			continue
		}
		if err := n.check(); err != nil {
			missing = append(missing, fmt.Errorf("%s: %w", n.name, err))
		}
	}
	return errors.Join(missing...)
}

// Require skips the test, naming what is missing, unless all needs are met. With CI=true in the environment it fails the
// test, since a test that CI skips protects nothing.
func Require(tb TB, needs ...Need) {
	tb.Helper()
	switch err := Missing(needs...); {
	case err == nil:
	case os.Getenv("CI") == "true":
		tb.Fatalf("missing, and CI=true allows no skipping:\n%v", err)
	default:
		tb.Skipf("missing:\n%v", err)
	}
}
