package main

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
)

func someFiles(t *testing.T) []file {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, []byte("on disk"), 0o600))
	return []file{
		{name: "usr/bin/b", mode: 0o755, path: path},
		{name: "usr/bin/a", mode: 0o644, data: []byte("in memory")},
		{name: "etc", mode: 0o600},
		{name: "usr/bin/c", link: "b"},
	}
}

func TestWriteTar(t *testing.T) {
	list := someFiles(t)
	var a, b bytes.Buffer
	require.NoError(t, writeTar(&a, list, time.Unix(5, 0)))
	slices.Reverse(list)
	require.NoError(t, writeTar(&b, list, time.Unix(5, 0)))
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
	for name, list := range map[string][]file{
		"twice":              {{name: "a"}, {name: "a"}},
		"file and directory": {{name: "a/b"}, {name: "a"}},
		"directory and file": {{name: "a"}, {name: "a/b"}},
		"a name between":     {{name: "a"}, {name: "a-b"}, {name: "a/b"}},
		"outside":            {{name: "../a"}},
		"absolute":           {{name: "/a"}},
		"empty":              {{name: ""}},
		"gone":               {{name: "a", path: "/nonexistent"}},
	} {
		assert.Error(t, writeTar(io.Discard, list, time.Unix(5, 0)), name)
	}
}

func TestBelow(t *testing.T) {
	list := []file{{name: "a"}}
	assert.Equal(t, "x/y/a", below("x/y", list)[0].name)
	assert.Equal(t, "a", list[0].name, "the list given stays")
}
