package waittest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEventually(t *testing.T) {
	looks := 0
	Eventually(t, "three looks", func() error {
		if looks++; looks < 3 {
			return errors.New("too few")
		}
		return nil
	})
	assert.Equal(t, 3, looks)
}

type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic("failed")
}

func TestEventuallySaysWhatItSawLast(t *testing.T) {
	f := &failing{}
	assert.PanicsWithValue(t, "failed", func() {
		eventually(f, 0, "the pod is captured", func() error { return errors.New("it is outside") })
	})
	assert.Equal(t, "waited 0s until the pod is captured: it is outside", f.said)
}
