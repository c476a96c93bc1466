package cli_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
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

// TestLogPrints: nothing that a terminal heeds is in a log, and a record is what it was.
func TestLogPrints(t *testing.T) {
	hostile := strings.TrimSuffix(visibletest.Hostile, "\xff") + "\u009b2J\u200b\U000e0041\x7f" // JSON has no bytes that are no character
	var out bytes.Buffer
	cli.Logger(&out, slog.LevelInfo).Info(hostile, hostile, hostile)
	line := strings.TrimSuffix(out.String(), "\n")
	for _, r := range line {
		require.True(t, strconv.IsPrint(r), "%U", r)
	}
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &got))
	assert.Equal(t, hostile, got["msg"])
	assert.Equal(t, hostile, got[hostile])
}
