//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/hook"
	"github.com/meshcni/meshcni/internal/testing/waittest"
)

// A hook that is asked for and not there is told of; with auto it is not missed.
func TestRuntimeHookIsMissed(t *testing.T) {
	for mode, want := range map[hook.Mode]string{hook.Gate: "runtime-hook-lost: ", hook.Auto: "", hook.Off: ""} {
		t.Run(string(mode), func(t *testing.T) {
			a := &Agent{config: DefaultConfig(meshcni.Identity{}), log: slog.New(slog.DiscardHandler), options: Options{}.withDefaults()}
			a.config.RuntimeHook, a.config.NRISocket = mode, filepath.Join(t.TempDir(), "nri.sock")
			h := newRuntimeHook(meshcni.Identity{})
			h.agent, a.hook = a, h
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- h.run(ctx) }()
			if want != "" {
				waittest.Eventually(t, "the agent has tried to connect", func() error {
					if running := h.running.Load(); running == nil || running.State().Err == nil {
						return errors.New("not yet")
					}
					return nil
				})
				assert.Equal(t, mode, h.mode())
				assert.Empty(t, h.News(), "a runtime may restart")
				h.well.Store(time.Now().Add(-time.Hour).UnixNano())
				require.Len(t, h.News(), 1)
				assert.True(t, strings.HasPrefix(h.News()[0].String(), want), h.News()[0].String())
			}
			cancel()
			require.NoError(t, <-ended)
			assert.Empty(t, h.News())
			assert.Equal(t, hook.Off, h.mode(), "what does not run does nothing")
		})
	}
}
