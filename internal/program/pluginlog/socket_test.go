package pluginlog_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/program/pluginlog"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// shortDir is a directory whose path leaves room for a socket's name: sun_path has 108 bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pl")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func listen(t testing.TB, dir string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, netconf.LogSocketName), Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func receive(t testing.TB, conn *net.UnixConn) record {
	t.Helper()
	buf := make([]byte, 2*pluginlog.MaxRecord)
	n, err := conn.Read(buf)
	require.NoError(t, err)
	got := parse(t, buf[:n])
	require.Len(t, got, 1, "one datagram is one record")
	return got[0]
}

func TestAgentGetsRecords(t *testing.T) {
	dir := shortDir(t)
	conn := listen(t, dir)
	var stderr bytes.Buffer
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &stderr})
	logger.Info("one")
	assert.Equal(t, "one", receive(t, conn).Msg)
	logger.Info("large", "id", strings.Repeat("x", pluginlog.MaxRecord-200))
	assert.Equal(t, "large", receive(t, conn).Msg)
	assert.NotContains(t, stderr.String(), "cannot be used")
}

// A receiver that never reads costs records on the socket, which the next one that gets through counts; the plugin goes on.
func TestAgentThatDoesNotReadBlocksNothing(t *testing.T) {
	dir := shortDir(t)
	conn := listen(t, dir)
	var stderr bytes.Buffer
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &stderr})
	const n = 2000 // more than any net.unix.max_dgram_qlen and socket buffer hold together, at 4 KiB each
	for i := range n {
		logger.Info("record", "n", i, "text", strings.Repeat("x", 4096))
	}
	assert.Len(t, parse(t, stderr.Bytes()), n)
	assert.Len(t, records(t, filepath.Join(dir, pluginlog.FileName)), n)

	require.Equal(t, 0, receive(t, conn).N)
	logger.Info("record", "n", n) // there is room again
	received, last := 1, record{}
	for last.N < n {
		last = receive(t, conn)
		received++
	}
	assert.Positive(t, last.Dropped)
	assert.Equal(t, n+1, received+last.Dropped)
}

func TestAgentAbsentThenThereThenRestarted(t *testing.T) {
	dir := shortDir(t)
	var stderr bytes.Buffer
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &stderr})
	logger.Info("nobody")

	conn := listen(t, dir)
	logger.Info("first")
	got := receive(t, conn)
	assert.Equal(t, "first", got.Msg)
	assert.Equal(t, 1, got.Dropped)

	path := filepath.Join(dir, netconf.LogSocketName)
	require.NoError(t, conn.Close())
	logger.Info("gone") // the file is there, or not, but nobody listens
	require.NoError(t, os.RemoveAll(path))
	conn = listen(t, dir)
	logger.Info("second")
	got = receive(t, conn)
	assert.Equal(t, "second", got.Msg)
	assert.Equal(t, 1, got.Dropped)
	assert.NotContains(t, stderr.String(), "cannot be used")
}

func TestSocketThatIsNoneIsReportedOnce(t *testing.T) {
	dir := filepath.Join(shortDir(t), strings.Repeat("d", 120)) // longer than a socket's path can be
	var stderr bytes.Buffer
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &stderr})
	logger.Info("one")
	logger.Info("two")
	assert.Equal(t, 1, strings.Count(stderr.String(), "log socket cannot be used"))
	assert.Len(t, records(t, filepath.Join(dir, pluginlog.FileName)), 2)
}
