package pluginlog_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/program/pluginlog"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The test binary doubles as a plugin-like process: it logs records numbered from 0 and exits.
const childEnv = "PLUGINLOG_TEST_CHILD"

func TestMain(m *testing.M) {
	if id := os.Getenv(childEnv); id != "" {
		n, err := strconv.Atoi(os.Getenv("PLUGINLOG_TEST_RECORDS"))
		if err != nil {
			panic(err)
		}
		logSome(pluginlog.Options{RunDir: os.Getenv("PLUGINLOG_TEST_DIR"), MaxBytes: smallFile, Keep: manyFiles}, id, n)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	smallFile = 16 << 10
	manyFiles = 100 // more than there can be; a rotation looks for each
)

func logSome(o pluginlog.Options, id string, n int) {
	logger, closer := pluginlog.Open(o)
	for i := range n {
		logger.Info("record", "id", id, "n", i, "text", `a "quoted" line`+"\n"+string(bytes.Repeat([]byte{'x'}, i%300)))
	}
	_ = closer.Close()
}

type record struct {
	Time, Level, Msg string
	ID               string
	N                int
	Truncated        bool
	Bytes            int
	Record           string
	Dropped          int
	Error            string
	Path             string
}

// records reads files of JSON lines; every line that isn't empty must be one whole record.
func records(t testing.TB, paths ...string) []record {
	t.Helper()
	var out []record
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		if len(content) > 0 {
			require.Equal(t, byte('\n'), content[len(content)-1], "%s ends in a torn line", path)
		}
		out = append(out, parse(t, content)...)
	}
	return out
}

func parse(t testing.TB, content []byte) []record {
	t.Helper()
	var out []record
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 2*pluginlog.MaxRecord)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var r record
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r), lines.Text())
		out = append(out, r)
	}
	require.NoError(t, lines.Err())
	return out
}

func logFiles(t testing.TB, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, pluginlog.FileName+"*"))
	require.NoError(t, err)
	return paths
}

func mode(t testing.TB, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Mode().Perm()
}

// need requires what is there when err is nil.
func need(t testing.TB, what string, err error) {
	t.Helper()
	netnstest.Require(t, netnstest.Need{Name: what, Check: func() error { return err }})
}

var errNotRoot = errors.New("not root")

func rootErr() error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	return nil
}

func open(t testing.TB, o pluginlog.Options) *slog.Logger {
	t.Helper()
	logger, closer := pluginlog.Open(o)
	t.Cleanup(func() { require.NoError(t, closer.Close()) })
	return logger
}
