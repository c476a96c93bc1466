//go:build linux

package apply

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const lockHolder = "TEST_LOCK_HOLDER"

// The lock of a namespace is its holder's alone, and ends with it, whoever else has the same open file: the node's proxy keeps the one
// that it was sent.
func TestLockIsItsHoldersAlone(t *testing.T) {
	if os.Getenv(lockHolder) != "" {
		holdLock(t)
		return
	}
	ns := netnstest.New(t)
	sent, err := os.Open(ns.Path())
	require.NoError(t, err)
	defer func() { require.NoError(t, sent.Close()) }()
	shared, err := netnsexec.FromFile(sent, "shared")
	require.NoError(t, err)
	defer func() { require.NoError(t, shared.Close()) }()
	now, cancel := context.WithCancel(t.Context())
	cancel()

	unlock, err := lock(now, shared)
	require.NoError(t, err)
	for _, other := range []Namespace{shared, ns} {
		_, err = lock(now, other)
		require.ErrorIs(t, err, context.Canceled)
	}
	unlock()

	holder := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	holder.Env, holder.ExtraFiles = append(os.Environ(), lockHolder+"=1"), []*os.File{sent}
	in, err := holder.StdinPipe()
	require.NoError(t, err)
	defer func() { _ = in.Close() }()
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		if line == "locked\n" {
			break
		}
	}
	_, err = lock(now, ns)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, holder.Process.Kill())
	require.Error(t, holder.Wait())
	unlock, err = lock(now, ns)
	require.NoError(t, err)
	unlock()
}

// holdLock is the holder: it is killed, or ends with its parent.
func holdLock(t *testing.T) {
	ns, err := netnsexec.FromFile(os.NewFile(3, "sent"), "sent")
	require.NoError(t, err)
	_, err = lock(t.Context(), ns)
	require.NoError(t, err)
	_, err = os.Stdout.WriteString("locked\n")
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, os.Stdin)
	assert.NoError(t, err)
}
