package netnstest_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// fakeTB notes how the test would have ended.
type fakeTB struct {
	testing.TB
	skipped, failed string
}

func (f *fakeTB) Helper() {}
func (f *fakeTB) Skipf(format string, args ...any) {
	f.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func tryRequire(needs ...netnstest.Need) (f *fakeTB, passed bool) {
	f = &fakeTB{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		netnstest.Require(f, needs...)
		passed = true
	}()
	<-done
	return f, passed
}

func TestRequire(t *testing.T) {
	there := netnstest.Need{Name: "something there", Check: func() error { return nil }}
	absent := netnstest.Need{Name: "kernel feature xt_WARP", Check: func() error { return errors.New("not in this kernel") }}
	program := netnstest.Binary("no-such-program")

	for _, ci := range []string{"", "false", "true"} {
		t.Setenv("CI", ci)
		f, passed := tryRequire(there, netnstest.Need{})
		assert.True(t, passed)
		assert.Empty(t, f.skipped+f.failed)

		f, passed = tryRequire(there, absent, program)
		assert.False(t, passed)
		said, silent := f.skipped, f.failed
		if ci == "true" {
			said, silent = silent, said
			assert.Contains(t, said, "CI=true")
		}
		assert.Empty(t, silent)
		assert.Contains(t, said, "kernel feature xt_WARP: not in this kernel")
		assert.Contains(t, said, `program no-such-program: exec: "no-such-program": executable file not found`)
		assert.NotContains(t, said, "something there")
	}
}
