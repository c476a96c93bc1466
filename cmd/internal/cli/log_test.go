package cli_test

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/cmd/internal/cli"
)

func TestLogHasNoNanoseconds(t *testing.T) {
	var out bytes.Buffer
	log := cli.Logger(&out, slog.LevelWarn)
	log.Info("quiet")
	log.With("every", 5*time.Minute).Warn("slow", "pause", 1200*time.Millisecond, slog.Group("in", "wait", 2*time.Second), "n", 3)
	for _, want := range []string{`"every":"5m0s"`, `"pause":"1.2s"`, `"in":{"wait":"2s"}`, `"n":3`} {
		assert.Contains(t, out.String(), want)
	}
	assert.NotContains(t, out.String(), "quiet")
}
