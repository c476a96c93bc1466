package attachment_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/redirect"
)

// BenchmarkWrite is what an ADD pays for its record, and BenchmarkRead what CHECK pays before it looks at the rules.
func BenchmarkWrite(b *testing.B) {
	store := attachment.Open(b.TempDir())
	r := record(b, redirect.Default())
	for b.Loop() {
		require.NoError(b, store.Write(r))
		require.NoError(b, store.Tidy(r.ID))
	}
}

func BenchmarkRead(b *testing.B) {
	store := attachment.Open(b.TempDir())
	require.NoError(b, store.Write(record(b, redirect.Default())))
	for b.Loop() {
		_, err := store.Read(eth0)
		require.NoError(b, err)
	}
}
