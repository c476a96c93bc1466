package filememo_test

import (
	"errors"
	"io/fs"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/files/filememo"
)

func TestOnlyWhatChangesIsReadAgain(t *testing.T) {
	at := time.Unix(1000, 0)
	dir := fstest.MapFS{
		"a/1": {Data: []byte("one"), ModTime: at}, "a/2": {Data: []byte("two"), ModTime: at}, "b/3": {Data: []byte("three"), ModTime: at},
		"a/deep/4": {Data: []byte("four"), ModTime: at},
	}
	var m filememo.Memo[string]
	var reads []string
	var wrong error
	refresh := func() (map[string]string, error) {
		reads = nil
		return m.Refresh(dir, []string{"a", "b", "absent"}, func(name string) (string, error) {
			reads = append(reads, name)
			data, err := fs.ReadFile(dir, name)
			return string(data), errors.Join(err, wrong)
		})
	}
	got, err := refresh()
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a/1": "one", "a/2": "two", "b/3": "three"}, got)
	assert.Len(t, reads, 3)

	got, err = refresh()
	require.NoError(t, err)
	assert.Len(t, got, 3)
	assert.Empty(t, reads)

	dir["a/1"] = &fstest.MapFile{Data: []byte("neo"), ModTime: at.Add(1)}
	dir["a/2"] = &fstest.MapFile{Data: []byte("longer"), ModTime: at}
	delete(dir, "b/3")
	got, err = refresh()
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a/1": "neo", "a/2": "longer"}, got)
	assert.Equal(t, []string{"a/1", "a/2"}, reads)

	dir["a/1"] = &fstest.MapFile{Data: []byte("new"), ModTime: at.Add(2)}
	wrong = errors.New("input/output error")
	got, err = refresh()
	require.ErrorIs(t, err, wrong)
	assert.Equal(t, map[string]string{"a/2": "longer"}, got, "the others count")
	wrong = nil
	got, err = refresh()
	require.NoError(t, err)
	assert.Equal(t, "new", got["a/1"], "what could not be read is tried again")
}
