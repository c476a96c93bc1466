package files_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/release/internal/files"
)

func tree(t *testing.T) []files.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, []byte("on disk"), 0o600))
	return []files.File{
		{Name: "usr/bin/b", Mode: 0o755, Path: path},
		{Name: "usr/bin/a", Mode: 0o644, Data: []byte("in memory")},
		{Name: "etc", Mode: 0o600},
		{Name: "usr/bin/c", Link: "b"},
	}
}

func TestWriteTar(t *testing.T) {
	list := tree(t)
	var a, b bytes.Buffer
	require.NoError(t, files.WriteTar(&a, list, time.Unix(5, 0)))
	slices.Reverse(list)
	require.NoError(t, files.WriteTar(&b, list, time.Unix(5, 0)))
	assert.Equal(t, a.Bytes(), b.Bytes(), "in whatever order they are given")

	var got []string
	for tr := tar.NewReader(&a); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		data, err := io.ReadAll(tr)
		require.NoError(t, err)
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+string(data)+h.Linkname)
		assert.Equal(t, int64(5), h.ModTime.Unix())
		assert.Zero(t, h.Uid+h.Gid)
	}
	assert.Equal(t, []string{
		"-rw------- etc ",
		"drwxr-xr-x usr/ ",
		"drwxr-xr-x usr/bin/ ",
		"-rw-r--r-- usr/bin/a in memory",
		"-rwxr-xr-x usr/bin/b on disk",
		"Lrwxrwxrwx usr/bin/c b",
	}, got)
}

func TestWriteTarRefuses(t *testing.T) {
	for name, list := range map[string][]files.File{
		"twice":              {{Name: "a"}, {Name: "a"}},
		"file and directory": {{Name: "a/b"}, {Name: "a"}},
		"directory and file": {{Name: "a"}, {Name: "a/b"}},
		"a name between":     {{Name: "a"}, {Name: "a-b"}, {Name: "a/b"}},
		"outside":            {{Name: "../a"}},
		"absolute":           {{Name: "/a"}},
		"empty":              {{Name: ""}},
		"gone":               {{Name: "a", Path: "/nonexistent"}},
	} {
		assert.Error(t, files.WriteTar(io.Discard, list, time.Unix(5, 0)), name)
	}
}

func TestWriteDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	require.NoError(t, files.WriteDir(dir, tree(t)))
	require.NoError(t, files.WriteDir(dir, tree(t)), "again")
	for name, mode := range map[string]os.FileMode{"usr": 0o755, "usr/bin": 0o755, "usr/bin/b": 0o755, "usr/bin/a": 0o644, "etc": 0o600} {
		st, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, mode, st.Mode().Perm(), name)
	}
	target, err := os.Readlink(filepath.Join(dir, "usr/bin/c"))
	require.NoError(t, err)
	assert.Equal(t, "b", target)
	list, err := files.Dir(dir)
	require.NoError(t, err)
	var names []string
	for _, f := range list {
		names = append(names, f.Name)
	}
	assert.Equal(t, []string{"etc", "usr/bin/a", "usr/bin/b", "usr/bin/c"}, names)
	assert.Error(t, files.WriteDir(dir, []files.File{{Name: "../a"}}))
}

func TestBelow(t *testing.T) {
	list := []files.File{{Name: "a"}}
	assert.Equal(t, "x/y/a", files.Below("x/y", list)[0].Name)
	assert.Equal(t, "a", list[0].Name, "the list given stays")
}
