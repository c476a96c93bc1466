package nodeproxytest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestDefaults: without options, it takes its time as ztunnel does.
func TestDefaults(t *testing.T) {
	o := Options{}.withDefaults()
	assert.Equal(t, []time.Duration{15 * time.Second, 25 * time.Second, 5 * time.Second, 5 * time.Second},
		[]time.Duration{o.MaxBackoff, o.Drain, o.Retry, o.KnowTimeout})
}
