package builtin_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
)

func Example() {
	acme := dialect.Dialect{Name: "acme"}
	fmt.Println(dialect.SetOf(append(builtin.All(), acme)...))
	// Output: istio,ambient,linkerd,kuma,consul,acme
}

// TestAllAreValid: this module's own dialects pass what others' have to.
func TestAllAreValid(t *testing.T) { require.NoError(t, dialect.Validate(builtin.All())) }

func BenchmarkValidate(b *testing.B) {
	all := builtin.All()
	for b.Loop() {
		if err := dialect.Validate(all); err != nil {
			b.Fatal(err)
		}
	}
}
