package dist

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	sumOfA = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
	sumOfB = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"
)

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  string // of the error; empty: none
	}{
		"all as listed": {
			files: map[string]string{"a": "a", "b": "b", Checksums: sumOfA + "  a\n" + sumOfB + "  b\n"},
		},
		"tampered with": {
			files: map[string]string{"a": "A", "b": "b", Checksums: sumOfA + "  a\n" + sumOfB + "  b\n"},
			want:  "a is not what was released: its SHA-256 is 559aead08264d5795d3909718cdd05abd49572e84fe55590eef31a88a08fdffd, not " + sumOfA,
		},
		"missing": {
			files: map[string]string{"a": "a", Checksums: sumOfA + "  a\n" + sumOfB + "  b\n"},
			want:  "b is missing",
		},
		"one more": {
			files: map[string]string{"a": "a", "b": "b", Checksums: sumOfA + "  a\n"},
			want:  "b is not a file that checksums.txt lists",
		},
		"a directory": {
			files: map[string]string{"a/b": "a", Checksums: sumOfA + "  a\n"},
			want:  "a is not a file that checksums.txt lists",
		},
		"leads elsewhere": {
			files: map[string]string{Checksums: sumOfA + "  ../a\n"},
			want:  "is not a checksum and the name of one more file",
		},
		"listed twice": {
			files: map[string]string{"a": "a", Checksums: sumOfA + "  a\n" + sumOfA + "  a\n"},
			want:  "is not a checksum and the name of one more file",
		},
		"cut off": {
			files: map[string]string{"a": "a", Checksums: sumOfA[1:] + "  a\n"},
			want:  "is not a checksum and the name of one more file",
		},
		"no list": {files: map[string]string{"a": "a"}, want: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
			}
			sums, err := Check(dir)
			if tt.want != "" {
				assert.ErrorContains(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, map[string]string{"a": sumOfA, "b": sumOfB}, sums)
		})
	}
}

// TestSame: each difference between two builds is named.
func TestSame(t *testing.T) {
	second := map[string]string{"a": sumOfA, "b": sumOfB}
	require.NoError(t, same(map[string]string{"a": sumOfA, "b": sumOfB}, second))
	err := same(map[string]string{"a": sumOfB, "c": sumOfA}, second)
	assert.ErrorContains(t, err, "a: was "+sumOfB+", is "+sumOfA)
	assert.ErrorContains(t, err, "b: was , is "+sumOfB)
	assert.ErrorContains(t, err, "c: a second build has no such file")
}

// TestClear: of what is in the output directory, an earlier release's files go, and nothing else.
func TestClear(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a": "a", "notes": "mine", "meshcni_0.0.1_image_oci.tar": "old", "kubectl-meshcni_0.0.1_linux_amd64.tar.gz": "old", Krew: "old", Checksums: sumOfA + "  a\n" + sumOfB + "  b\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	r := &Release{out: dir}
	require.NoError(t, r.clear())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	assert.Equal(t, "notes", entries[0].Name())
	require.NoError(t, r.clear(), "nothing to do")
}
