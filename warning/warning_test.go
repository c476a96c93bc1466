package warning_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/warning"
)

func TestCodesAreStable(t *testing.T) {
	assert.Equal(t, []warning.Code{
		"invalid-value", "deprecated-key", "unknown-key", "no-effect", "contradiction", "fallback", "family-absent", "family-dropped", "before-proxy",
		"proxy-user",
	}, warning.Codes())
}

func ExampleList() {
	l := warning.List{warning.New(warning.Invalid, "mesh.example/inject", "mesh.example/inject=%q is not on or off, so it counts as not set", "maybe")}
	for _, w := range l {
		fmt.Println(w.Code, w)
	}
	// Output: invalid-value mesh.example/inject="maybe" is not on or off, so it counts as not set
}
