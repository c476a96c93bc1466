package zds_test

import (
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/socktest"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// What a proxy must refuse it refuses in words, disconnects, and keeps no file.
func TestClientRefuses(t *testing.T) {
	path := socktest.Path(t)
	listener := listenRaw(t, path)
	file, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	fd := int(file.Fd())
	add, del := "0a 09 0a 05 75 69 64 2d 61 12 00", "12 07 12 05 75 69 64 2d 61"
	many := make([]int, 40)
	for i := range many {
		many[i] = fd
	}
	before := socktest.OpenFiles(t)
	for name, tt := range map[string]struct {
		packet string
		files  []int
	}{
		"Add without a file":   {add, nil},
		"Add with two":         {add, []int{fd, fd}},
		"Add with too many":    {add, many},
		"Del with a file":      {del, []int{fd}},
		"Snapshot with a file": {"1a 00", []int{fd}},
		"nothing, with a file": {"50 01", []int{fd}},
		"cut off":              {"12 83 08 12 80 08" + long(1030), nil},
		"nonsense":             {"ff", []int{fd}},
		"Del of no pod":        {"12 00", nil},
		"Add of no pod":        {"0a 02 12 00", []int{fd}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := zds.Dial(t.Context(), path)
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			agent, err := listener.AcceptUnix()
			require.NoError(t, err)
			defer func() { _ = agent.Close() }()
			answer := make([]byte, 2048)
			n, err := agent.Read(answer)
			require.NoError(t, err)
			require.Equal(t, unhex(t, "08 01"), answer[:n])

			var rights []byte
			if tt.files != nil {
				rights = syscall.UnixRights(tt.files...)
			}
			_, _, err = agent.WriteMsgUnix(unhex(t, tt.packet), rights, nil)
			require.NoError(t, err)
			_, got, err := c.Receive()
			require.ErrorIs(t, err, zds.ErrMalformed)
			assert.Nil(t, got)
			n, err = agent.Read(answer)
			require.NoError(t, err)
			reason, err := zds.ParseResponse(answer[:n])
			require.NoError(t, err)
			assert.NotEmpty(t, reason)
			_, err = agent.Read(answer)
			require.ErrorIs(t, err, io.EOF)
		})
	}
	assert.Equal(t, before, socktest.OpenFiles(t))
}

func long(n int) (hex string) {
	for range n {
		hex += "78"
	}
	return hex
}

// The proxy's file is its own, and no program that it starts inherits it.
func TestClientOwnsTheFile(t *testing.T) {
	a := start(t, nil)
	c := a.connected(t)
	w := pod(t, "a")
	added := a.adding(t.Context(), w)
	file := c.expect("Add a")
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, file.Fd(), syscall.F_GETFD, 0)
	require.Zero(t, errno)
	assert.Equal(t, uintptr(syscall.FD_CLOEXEC), flags&syscall.FD_CLOEXEC)
	c.ack(nil)
	require.NoError(t, await(t, added))
	require.NoError(t, w.NetNS.(*os.File).Close())
	_, err := file.Stat()
	require.NoError(t, err)
	a.stop()
	c.ended()
	_, err = zds.Dial(t.Context(), a.path)
	require.ErrorIs(t, err, syscall.ENOENT)
}
