//go:build linux

package diskfile

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// writes notes how much is written at once.
type writes struct {
	bytes.Buffer
	sizes []int
}

func (w *writes) Write(b []byte) (int, error) {
	w.sizes = append(w.sizes, len(b))
	return w.Buffer.Write(b)
}

// TestPieces: a program is written in large pieces, by which the kernel maps it.
func TestPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	program := bytes.Repeat([]byte("0123456789"), 60_000)
	require.NoError(t, os.WriteFile(path, program, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var w writes
	require.NoError(t, inPieces(&w, f))
	assert.Equal(t, program, w.Bytes())
	assert.Equal(t, []int{piece, piece, len(program) - 2*piece}, w.sizes)
}
