package dialects_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/dialects"
)

// TestAllAreValid: this module's own dialects pass what others' have to.
func TestAllAreValid(t *testing.T) { require.NoError(t, dialects.All().Validate()) }

func BenchmarkValidate(b *testing.B) {
	all := dialects.All()
	for b.Loop() {
		if err := all.Validate(); err != nil {
			b.Fatal(err)
		}
	}
}
