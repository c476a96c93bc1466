package pluginlog_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/program/pluginlog"
)

func TestRecordGoesToStderrAndFile(t *testing.T) {
	var stderr bytes.Buffer
	dir := filepath.Join(t.TempDir(), "run", "meshcni")
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &stderr})
	_, err := os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist, "nothing is made before the first record")

	logger.Debug("hidden")
	logger.Info("decided", "id", "a\"b\nc\x1b[31m\xff")
	path := filepath.Join(dir, pluginlog.FileName)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, stderr.String(), string(file))
	assert.Equal(t, 1, strings.Count(string(file), "\n"), "a pod's name cannot start a line of its own")
	assert.NotContains(t, string(file), "\x1b")
	got := records(t, path)
	require.Len(t, got, 1)
	assert.Equal(t, "decided", got[0].Msg)
	assert.Equal(t, "a\"b\nc\x1b[31m\uFFFD", got[0].ID)
	assert.Equal(t, os.FileMode(0o600), mode(t, path))
	assert.Equal(t, os.FileMode(0o755), mode(t, dir))
}

func TestWiderFileModeIsNarrowed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, pluginlog.FileName)
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	open(t, pluginlog.Options{RunDir: dir, Stderr: &bytes.Buffer{}}).Info("x")
	assert.Equal(t, os.FileMode(0o600), mode(t, path))
}

func TestLevels(t *testing.T) {
	var stderr bytes.Buffer
	logger := open(t, pluginlog.Options{Level: slog.LevelWarn, Stderr: &stderr})
	logger.Info("no")
	logger.Warn("yes")
	assert.Len(t, parse(t, stderr.Bytes()), 1)
}

func TestRotationKeepsSoManyFiles(t *testing.T) {
	dir := t.TempDir()
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &bytes.Buffer{}, MaxBytes: 1, Keep: 2})
	for i := range 5 {
		logger.Info("record", "n", i)
	}
	path := filepath.Join(dir, pluginlog.FileName)
	assert.Equal(t, []string{path, path + ".1", path + ".2"}, logFiles(t, dir))
	for i, p := range []string{path, path + ".1", path + ".2"} {
		got := records(t, p)
		require.Len(t, got, 1)
		assert.Equal(t, 4-i, got[0].N)
		assert.Equal(t, os.FileMode(0o600), mode(t, p))
	}
}

func TestRotationThatCannotHappenLosesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, pluginlog.FileName)
	// A directory in the way of plugin.log.1 that cannot be replaced.
	require.NoError(t, os.MkdirAll(filepath.Join(path+".1", "x"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(path+".2", "x"), 0o755))
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &bytes.Buffer{}, MaxBytes: 1, Keep: 2})
	for i := range 3 {
		logger.Info("record", "n", i)
	}
	assert.Len(t, records(t, path), 3)
}

func TestFileRemovedWhileOpenIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, pluginlog.FileName)
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &bytes.Buffer{}})
	logger.Info("one")
	require.NoError(t, os.Remove(path))
	logger.Info("two")
	got := records(t, path)
	require.Len(t, got, 1)
	assert.Equal(t, "two", got[0].Msg)
}

// Handles in one process, and real processes, all rotating one another's files: no record is lost, none is torn.
func TestManyWritersWithRotation(t *testing.T) {
	const handles, processes, each = 50, 6, 60
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range handles {
		wg.Go(func() {
			logSome(pluginlog.Options{RunDir: dir, Stderr: &bytes.Buffer{}, MaxBytes: smallFile, Keep: manyFiles}, fmt.Sprint("h", i), each)
		})
	}
	for i := range processes {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+fmt.Sprint("p", i), "PLUGINLOG_TEST_DIR="+dir, fmt.Sprint("PLUGINLOG_TEST_RECORDS=", each))
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s", out)
			assert.NotContains(t, string(out), "cannot be used")
		})
	}
	wg.Wait()
	files := logFiles(t, dir)
	assert.Greater(t, len(files), 1, "it did rotate")
	seen := map[string]int{}
	for _, r := range records(t, files...) {
		seen[fmt.Sprint(r.ID, "/", r.N)]++
	}
	assert.Len(t, seen, (handles+processes)*each)
	for key, n := range seen {
		assert.Equal(t, 1, n, key)
	}
}

func TestLargeRecordIsCutToAValidOne(t *testing.T) {
	for name, filler := range map[string]string{"plain": "x", "escaped": "\x01", "wide": "é", "quotes": `"`} {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			dir := t.TempDir()
			logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &stderr})
			logger.Warn("large "+strings.Repeat(filler, pluginlog.MaxRecord), "id", strings.Repeat(filler, 4*pluginlog.MaxRecord))
			assert.LessOrEqual(t, stderr.Len(), pluginlog.MaxRecord)
			got := records(t, filepath.Join(dir, pluginlog.FileName))
			require.Len(t, got, 1)
			assert.True(t, got[0].Truncated)
			assert.Greater(t, got[0].Bytes, 4*pluginlog.MaxRecord)
			assert.Equal(t, "WARN", got[0].Level)
			assert.True(t, strings.HasPrefix(got[0].Msg, "large "+filler))
			assert.True(t, strings.HasPrefix(got[0].Record, `{"time":`))
		})
	}
}

func TestUnusableFileIsReportedOnce(t *testing.T) {
	cases := map[string]func(t *testing.T, dir string) (runDir string){
		"run dir is a file": func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "run")
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			return path
		},
		"log is a directory": func(t *testing.T, dir string) string {
			require.NoError(t, os.Mkdir(filepath.Join(dir, pluginlog.FileName), 0o755))
			return dir
		},
		"log is a symlink": func(t *testing.T, dir string) string {
			require.NoError(t, os.Symlink("/dev/null", filepath.Join(dir, pluginlog.FileName)))
			return dir
		},
		"log is a FIFO": func(t *testing.T, dir string) string {
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, pluginlog.FileName), 0o600))
			return dir
		},
		"read-only file system": func(t *testing.T, dir string) string {
			tmpfs(t, dir, syscall.MS_RDONLY, "")
			return dir
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			var stderr bytes.Buffer
			logger := open(t, pluginlog.Options{RunDir: prepare(t, t.TempDir()), Stderr: &stderr})
			logger.Info("one")
			logger.Info("two")
			var messages []string
			for _, r := range parse(t, stderr.Bytes()) {
				messages = append(messages, r.Msg)
				if r.Error != "" {
					assert.True(t, strings.HasSuffix(r.Path, pluginlog.FileName), r.Path)
				}
			}
			assert.ElementsMatch(t, []string{"log file cannot be used", "one", "two"}, messages)
		})
	}
}

func tmpfs(t *testing.T, dir string, flags uintptr, data string) {
	t.Helper()
	need(t, "root, to mount a tmpfs", rootErr())
	need(t, "to mount a tmpfs", syscall.Mount("tmpfs", dir, "tmpfs", flags, data))
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
}

// A full disk costs records, never the plugin; the first record after it starts on a line of its own.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	tmpfs(t, dir, 0, "size=64k")
	var stderr bytes.Buffer
	logger := open(t, pluginlog.Options{RunDir: dir, Stderr: &stderr})
	const n = 40
	for i := range n {
		logger.Info("record", "n", i, "text", strings.Repeat("x", 3000))
	}
	onStderr := parse(t, stderr.Bytes())
	assert.Len(t, onStderr, n+1)
	assert.Contains(t, stderr.String(), "no space left on device")

	path := filepath.Join(dir, pluginlog.FileName)
	full, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotEqual(t, byte('\n'), full[len(full)-1], "the last record was cut by the full disk")
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=256k"))
	logger.Info("same process")
	// Cut it again, as by a process that died, and come with a new one.
	require.NoError(t, os.Truncate(path, int64(len(full)-10)))
	open(t, pluginlog.Options{RunDir: dir, Stderr: &stderr}).Info("next process")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	got := parse(t, []byte(lines[len(lines)-1]))
	assert.Equal(t, "next process", got[0].Msg)
}

func TestAfterCloseStderrOnly(t *testing.T) {
	var stderr bytes.Buffer
	dir := t.TempDir()
	logger, closer := pluginlog.Open(pluginlog.Options{RunDir: dir, Stderr: &stderr})
	require.NoError(t, closer.Close())
	require.NoError(t, closer.Close())
	logger.Info("late")
	assert.Len(t, parse(t, stderr.Bytes()), 1)
	assert.Empty(t, logFiles(t, dir))
}
