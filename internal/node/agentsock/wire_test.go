package agentsock_test

import (
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// raw sends bytes with files and returns the whole answer.
func raw(t testing.TB, path string, b []byte, files ...int) []byte {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	_, _, err = conn.WriteMsgUnix(b, oob, nil)
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	if err != nil {
		require.ErrorIs(t, err, unix.ECONNRESET)
	}
	return answer
}

func frame(version, kind byte, body string) []byte {
	f := binary.BigEndian.AppendUint32(nil, uint32(2+len(body)))
	return append(append(f, version, kind), body...)
}

// opened counts this process's descriptors of a file.
func opened(t testing.TB, path string) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == path {
			n++
		}
	}
	return n
}

// TestBytes: the bytes are those of the package's documentation.
func TestBytes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, example, _ := strings.Cut(string(text), "that the agent does not know it:\n")
	var frames [][]byte
	for line := range strings.Lines(example) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "//"))
		if head, body, ok := strings.Cut(line, "{"); ok {
			b, err := hex.DecodeString(strings.ReplaceAll(head, " ", ""))
			require.NoError(t, err)
			frames = append(frames, append(b, "{"+body...))
		}
	}
	require.Len(t, frames, 2)
	assert.Equal(t, frame(1, 1, `{"uid":"7f3c0a"}`), frames[0])
	c, _ := serve(t, &agentsock.Server{Handler: unknown})
	assert.Equal(t, string(frames[1]), string(raw(t, c.Path, frames[0])))
}

// TestMalformed: what is no request gets an answer that says so, and its files are closed.
func TestMalformed(t *testing.T) {
	c, _ := serve(t, &agentsock.Server{Handler: unknown})
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	fd := int(file.Fd())
	many := make([]int, 200)
	for i := range many {
		many[i] = fd
	}
	for name, f := range map[string]struct {
		bytes []byte
		files []int
		want  string
	}{
		"another version":            {bytes: frame(9, 1, "{}"), want: `"code":"version","message":"the agent speaks version 1 of the protocol, and the request is in version 9"`},
		"another version, with file": {bytes: frame(0, 2, "{}"), files: []int{fd}, want: `"code":"version"`},
		"unknown kind":               {bytes: frame(1, 99, ""), want: `"code":"unsupported","message":"the agent does not do this: kind 99"`},
		"no JSON":                    {bytes: frame(1, 1, "["), want: `"code":"malformed"`},
		"too long":                   {bytes: append(binary.BigEndian.AppendUint32(nil, 65536+1), 1, 1), want: `its length is 65537, of 2 to 65536`},
		"too short":                  {bytes: []byte{0, 0, 0, 1, 1, 1}, want: `its length is 1, of 2 to 65536`},
		"file beside another":        {bytes: frame(1, 4, ""), files: []int{fd}, want: `"code":"malformed"`},
		"attach without file":        {bytes: frame(1, 2, "{}"), want: `"code":"malformed"`},
		"attach with two files":      {bytes: frame(1, 2, "{}"), files: []int{fd, fd}, want: `"code":"malformed"`},
		"attach with many files":     {bytes: frame(1, 2, "{}"), files: many, want: `"code":"malformed"`},
		"attach of nothing":          {bytes: frame(1, 2, "{}"), files: []int{fd}, want: `containerID is missing`},
		"attach without UID":         {bytes: frame(1, 2, `{"containerID":"c","ifName":"e","network":"n","pod":{"namespace":"shop","name":"cart-0"}}`), files: []int{fd}, want: `"malformed request: pod's UID is missing"`},
	} {
		answer := raw(t, c.Path, f.bytes, f.files...)
		if assert.Greater(t, len(answer), 6, name) {
			assert.Equal(t, []byte{1, 255}, answer[4:6], name)
			assert.Contains(t, string(answer[6:]), f.want, name)
		}
	}
	// The server may still be closing what came with the last one. Other descriptors come and go, so this one file is counted.
	require.Eventually(t, func() bool { return opened(t, file.Name()) == 1 }, netnstest.Patience, time.Millisecond, "files stay open")
}

// TestOtherServers: a client takes nothing for an answer that is none.
func TestOtherServers(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		answer []byte
		want   string
	}{
		"nothing":                  {nil, "it gave no answer"},
		"a later version":          {frame(7, 129, ""), "it answers in version 7"},
		"a later version's error":  {frame(7, 255, `{"code":"version","message":"only 7"}`), "only 7"},
		"another request's answer": {frame(1, 132, "[]"), "it is of kind 132"},
		"half an answer":           {frame(1, 129, "xxxx")[:8], "unexpected EOF"},
		"no pod":                   {frame(1, 129, "xx"), "it has no pod"},
		"a pod too long":           {frame(1, 129, "\x00\x00\x00\x09x"), "its pod has 9 bytes, of 1"},
		"no protobuf":              {frame(1, 129, "\x00\x00\x00\x01x"), "decode the pod"},
		"no namespace":             {frame(1, 129, "\x00\x00\x00\x00x"), "decode the namespace"},
		"too long":                 {[]byte{0xff, 0, 0, 0, 1, 129}, "its length is 4278190080"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "sock")
			require.NoError(t, err)
			defer func() { require.NoError(t, os.RemoveAll(dir)) }()
			l, err := net.Listen("unix", dir+"/s")
			require.NoError(t, err)
			defer func() { _ = l.Close() }()
			go func() {
				conn, err := l.Accept()
				if err == nil {
					_, _ = conn.Read(make([]byte, 65536))
					_, _ = conn.Write(f.answer)
					_ = conn.Close()
				}
			}()
			_, err = agentsock.Client{Path: dir + "/s"}.Pod(t.Context(), cart)
			require.ErrorContains(t, err, f.want)
		})
	}
}

// TestServerOfAnotherUser: a client believes nobody who is neither root nor its own user.
func TestServerOfAnotherUser(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root)
	dir, err := os.MkdirTemp("", "sock")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	require.NoError(t, os.Chmod(dir, 0o777))
	const nobody = 65534
	listening := make(chan net.Listener)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its user
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, nobody, nobody, nobody)
		assert.Zero(t, errno)
		l, err := net.Listen("unix", dir+"/s")
		assert.NoError(t, err)
		listening <- l
	}()
	l := <-listening
	require.NotNil(t, l)
	defer func() { _ = l.Close() }()
	_, err = agentsock.Client{Path: dir + "/s"}.Pods(t.Context())
	require.ErrorContains(t, err, "it belongs to user 65534")
}

// FuzzServer: whatever a peer sends, it gets one frame or none, and the next peer is served.
func FuzzServer(f *testing.F) {
	f.Add(frame(1, 1, `{"uid":"x"}`))
	f.Add(frame(1, 2, `{}`))
	f.Add(frame(2, 5, ``))
	f.Add([]byte{0, 0, 0, 2, 1})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	c, _ := serve(f, &agentsock.Server{Handler: unknown})
	f.Fuzz(func(t *testing.T, b []byte) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.Path, Net: "unix"})
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write(b)
		_ = conn.CloseWrite()
		answer, _ := io.ReadAll(conn)
		if len(answer) > 0 {
			require.GreaterOrEqual(t, len(answer), 6)
			require.Equal(t, len(answer)-4, int(binary.BigEndian.Uint32(answer)))
		}
		_, err = c.Pod(t.Context(), cart)
		require.ErrorIs(t, err, agentsock.ErrUnknown)
	})
}
