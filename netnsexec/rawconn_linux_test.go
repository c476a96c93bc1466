package netnsexec_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestSyscallConn: who uses the descriptor has the namespace's, and nobody's once it is closed.
func TestSyscallConn(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	raw, err := ns.SyscallConn()
	require.NoError(t, err)
	var st unix.Stat_t
	require.NoError(t, raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }))
	require.NoError(t, err)
	assert.Equal(t, ns.ID().Ino, st.Ino)
	assert.Error(t, raw.Read(func(uintptr) bool { return true }))
	assert.Error(t, raw.Write(func(uintptr) bool { return true }))

	require.NoError(t, ns.Close())
	assert.ErrorIs(t, raw.Control(func(uintptr) { t.Error("called") }), os.ErrClosed)
}
