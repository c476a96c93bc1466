package nodelock_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/nodelock"
)

// worker is a process that takes part; each has an open file of its own, which is what the kernel's lock goes by.
type worker struct {
	began, left chan struct{}
	end         context.CancelFunc
	result      chan error
}

func start(t *testing.T, l nodelock.Lock, active *atomic.Int32) worker {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := worker{began: make(chan struct{}, 8), left: make(chan struct{}, 8), end: cancel, result: make(chan error, 1)}
	go func() {
		w.result <- l.Run(ctx, func(ctx context.Context) error {
			assert.EqualValues(t, 1, active.Add(1), "alone")
			w.began <- struct{}{}
			<-ctx.Done()
			active.Add(-1)
			w.left <- struct{}{}
			return ctx.Err()
		})
	}()
	return w
}

// TestTheNewestHasTheTurn: the one before it stops, and goes on when it is gone.
func TestTheNewestHasTheTurn(t *testing.T) {
	var active atomic.Int32
	l := nodelock.Lock{Path: filepath.Join(t.TempDir(), "lock")}
	old := start(t, l, &active)
	<-old.began
	next := start(t, l, &active)
	<-old.left
	<-next.began
	third := start(t, l, &active)
	<-next.left
	<-third.began
	third.end()
	require.NoError(t, <-third.result)
	// One of the two before goes on, and only one.
	select {
	case <-old.began:
	case <-next.began:
	}
	old.end()
	next.end()
	require.NoError(t, <-old.result)
	require.NoError(t, <-next.result)
}

// TestADeadProcessHasNoTurn: whatever ended it.
func TestADeadProcessHasNoTurn(t *testing.T) {
	if path := os.Getenv("TURNS_TEST_LOCK"); path != "" { // this is what is killed, so it has no directory of its own
		_ = nodelock.Lock{Path: path}.Run(t.Context(), func(context.Context) error {
			_, _ = os.Stdout.WriteString("began\n")
			select {} // it does not stop, as one that hangs
		})
	}
	l := nodelock.Lock{Path: filepath.Join(t.TempDir(), "lock")}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-test.run=^TestADeadProcessHasNoTurn$")
	cmd.Env = append(os.Environ(), "TURNS_TEST_LOCK="+l.Path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 6))
	require.NoError(t, err)
	var active atomic.Int32
	next := start(t, l, &active)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	<-next.began
	next.end()
	require.NoError(t, <-next.result)
}

func TestErrors(t *testing.T) {
	broken := errors.New("broken")
	err := nodelock.Lock{Path: filepath.Join(t.TempDir(), "lock")}.Run(t.Context(), func(context.Context) error { return broken })
	require.ErrorIs(t, err, broken)
	require.NoError(t, nodelock.Lock{Path: filepath.Join(t.TempDir(), "lock")}.Run(t.Context(), func(context.Context) error { return nil }))
	err = nodelock.Lock{Path: filepath.Join(t.TempDir(), "no", "lock")}.Run(t.Context(), func(context.Context) error { return nil })
	require.ErrorIs(t, err, os.ErrNotExist)
}
