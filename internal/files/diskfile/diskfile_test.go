//go:build linux

package diskfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

func onlyIn(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	assert.ElementsMatch(t, names, got)
}

func TestReplaceKeepsModeOwnerAndAttributes(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o640))
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(path, 12, 34))
	}
	attrs := unix.Setxattr(path, "user.note", []byte("x"), 0) == nil
	require.NoError(t, Replace(path, []byte("old"), []byte("new")))
	assert.Equal(t, "new", read(t, path))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	assert.Equal(t, uint32(0o640), st.Mode&0o7777)
	if os.Geteuid() == 0 {
		assert.Equal(t, [2]uint32{12, 34}, [2]uint32{st.Uid, st.Gid})
	}
	if attrs {
		buf := make([]byte, 8)
		n, err := unix.Getxattr(path, "user.note", buf)
		require.NoError(t, err)
		assert.Equal(t, "x", string(buf[:n]))
	}
	onlyIn(t, dir, "f")
}

func TestReplaceThroughASymbolicLink(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	target := filepath.Join(other, "real")
	require.NoError(t, os.WriteFile(target, []byte("old"), 0o600))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, Replace(link, []byte("old"), []byte("new")))
	assert.Equal(t, "new", read(t, target))
	got, err := os.Readlink(link)
	require.NoError(t, err)
	assert.Equal(t, target, got)
	onlyIn(t, dir, "link")
	onlyIn(t, other, "real")
}

func TestChangedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	path, gone := filepath.Join(dir, "f"), filepath.Join(dir, "gone")
	require.NoError(t, os.WriteFile(path, []byte("theirs"), 0o600))
	old := []byte("what I saw")
	require.ErrorIs(t, Replace(path, old, []byte("new")), ErrChanged)
	require.ErrorIs(t, Replace(gone, old, []byte("new")), ErrChanged)
	require.ErrorIs(t, Remove(path, old), ErrChanged)
	require.ErrorIs(t, Move(path, path+".saved", old), ErrChanged)
	require.ErrorIs(t, Create(path, old, ""), ErrChanged)
	require.ErrorIs(t, MoveNew(gone, path+"2"), ErrChanged)
	assert.Equal(t, "theirs", read(t, path))
	onlyIn(t, dir, "f")
}

// Writers that append their own number to what they read lose none: a lost update would lose a number.
func TestReplaceLosesNoUpdate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	const writers, each = 4, 50
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := 0; i < each; {
				old, err := os.ReadFile(path)
				if !assert.NoError(t, err) {
					return
				}
				switch err := Replace(path, old, fmt.Appendf(bytes.Clone(old), "%d\n", w)); {
				case err == nil:
					i++
				case !errors.Is(err, ErrChanged):
					assert.NoError(t, err)
					return
				}
			}
		})
	}
	wg.Wait()
	data := []byte(read(t, path))
	for w := range writers {
		assert.Equal(t, each, bytes.Count(data, fmt.Appendf(nil, "%d\n", w)), "writer %d", w)
	}
	assert.Empty(t, Stale(filepath.Dir(path)))
}

func TestGiveBackLeavesTheNewest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	tmp, err := newTemp(path, "")
	require.NoError(t, err)
	defer tmp.discard()
	// The exchange has taken "theirs" out and put "ours" in; before it is undone, somebody writes "newest".
	require.NoError(t, os.WriteFile(tmp.Name(), []byte("theirs"), 0o600))
	require.NoError(t, os.WriteFile(path, []byte("newest"), 0o600))
	tmp.giveBack(path, []byte("ours"))
	assert.Equal(t, "newest", read(t, path))
}

func TestBinaryInUseIsReplaced(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	program := []byte(read(t, sleep))
	path := filepath.Join(t.TempDir(), "p")
	require.NoError(t, Write(path, program, 0o755))
	cmd := exec.Command(path, "60")
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	before, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, Write(path, program, 0o755))
	require.NoError(t, exec.Command(path, "0").Run())
	exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid))
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, exe), "the running program keeps its inode")
}

func TestStale(t *testing.T) {
	dir := t.TempDir()
	live, err := newTemp(filepath.Join(dir, "10-a.conflist"), "")
	require.NoError(t, err)
	dead, err := newTemp(filepath.Join(dir, "10-b.conflist"), "")
	require.NoError(t, err)
	require.NoError(t, dead.Close())
	assert.Equal(t, []string{dead.Name()}, Stale(dir))
	live.discard()
	assert.NotContains(t, []string{".conf", ".conflist", ".json"}, filepath.Ext(dead.Name()))
}

func TestFullDiskLeavesTheFile(t *testing.T) {
	dir := mount(t, "size=64k")
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	err := Replace(path, []byte("old"), make([]byte, 1<<20))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, Write(path, make([]byte, 1<<20), 0o600), syscall.ENOSPC)
	assert.Equal(t, "old", read(t, path))
	onlyIn(t, dir, "f")
}

func TestReadOnlyLeavesTheFile(t *testing.T) {
	dir := mount(t, "size=64k")
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	require.ErrorIs(t, Replace(path, []byte("old"), []byte("new")), syscall.EROFS)
	require.ErrorIs(t, Delete(path), syscall.EROFS)
	assert.Equal(t, "old", read(t, path))
}

func TestDirectoryInTheWay(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, os.Mkdir(path, 0o755))
	require.Error(t, Write(path, []byte("x"), 0o600))
	require.Error(t, Replace(path, nil, []byte("x")))
	onlyIn(t, dir, "f")
	_, err := os.ReadDir(filepath.Join(dir, "f", "x"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func mount(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	netnstest.Require(t, netnstest.Need{Name: "the right to mount a tmpfs", Check: func() error {
		return unix.Mount("tmpfs", dir, "tmpfs", 0, options)
	}})
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// A run that is killed between its exchange and its undoing of it has somebody else's file under its temporary name.
func TestRemoveTempGivesBack(t *testing.T) {
	cases := map[string]struct {
		left, target string // under the temporary name, and in place
		want         string
	}{
		"killed before the exchange":                {"ours", "old", "old"},
		"killed after a good exchange":              {"old", "ours", "ours"},
		"killed before the undoing":                 {"theirs", "ours", "theirs"},
		"killed before the undoing, and more since": {"theirs", "newest", "newest"},
		"killed while writing":                      {"ou", "old", "old"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "10-net.conflist")
			require.NoError(t, os.WriteFile(path, []byte(tc.target), 0o600))
			tmp, err := newTemp(path, tag([]byte("old"), []byte("ours")))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(tmp.Name(), []byte(tc.left), 0o600))
			assert.Empty(t, Stale(filepath.Dir(path)), "its process lives")
			require.NoError(t, tmp.Close())
			left := Stale(filepath.Dir(path))
			require.Len(t, left, 1)
			require.NoError(t, RemoveTemp(left[0]))
			assert.Equal(t, tc.want, read(t, path))
			assert.Empty(t, Stale(filepath.Dir(path)))
			assert.NoFileExists(t, left[0])
		})
	}
}

// What was reserved while there was room is enough for three writes when there is none, each as atomic as any other.
func TestReserveOnAFullDisk(t *testing.T) {
	dir := mount(t, "size=64k")
	path, other := filepath.Join(dir, "f"), filepath.Join(dir, "g")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o640))
	require.NoError(t, Reserve(dir, "acme"))
	filler, err := os.Create(filepath.Join(dir, "filler"))
	require.NoError(t, err)
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, filler.Close())
	require.NoError(t, Replace(path, []byte("old"), []byte("new")))
	require.NoError(t, Create(other, []byte("list"), path))
	assert.Equal(t, []string{"new", "list"}, []string{read(t, path), read(t, other)})
	info, err := os.Stat(other)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o640), info.Mode())
	require.ErrorIs(t, Replace(path, []byte("new"), make([]byte, reserveSize+1)), syscall.ENOSPC)
	require.NoError(t, Replace(path, []byte("new"), []byte("newer")))
	assert.Equal(t, "newer", read(t, path))
	assert.Empty(t, Stale(dir))
	require.NoError(t, os.Remove(filler.Name()))
	require.NoError(t, Reserve(dir, "acme"))
	for _, p := range ReservePaths(dir, "acme") {
		assert.FileExists(t, p)
	}
}

// TestErrorsRepeat: the error of a write that fails again is the same, so that a log that says each once does so.
func TestErrorsRepeat(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "status.json")
	write := func() string {
		err := WriteFrom(path, iotest.ErrReader(syscall.ENOSPC), 0o600)
		require.ErrorIs(t, err, syscall.ENOSPC)
		return err.Error()
	}
	first := write()
	assert.Equal(t, "writing "+path+": no space left on device", first)
	assert.Equal(t, first, write())
}
