package explain_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/facts"
)

// BenchmarkManifests checks 500 manifests as a repository of services has them.
func BenchmarkManifests(b *testing.B) {
	one, err := os.ReadFile("testdata/web.yaml")
	require.NoError(b, err)
	files := map[string][]byte{}
	for i := range 500 {
		files[fmt.Sprintf("%d.yaml", i)] = []byte(strings.ReplaceAll(string(one), "web", fmt.Sprintf("web-%d", i)))
	}
	for b.Loop() {
		r := explain.CheckManifests(dialect.SetOf(istio.New()), explain.ManifestCheck{Files: files, AsInjected: true, Each: explain.Input{Facts: facts.All()}})
		require.Len(b, r.Pods, 500)
		require.Empty(b, r.Failing("refused", "outside"))
	}
}
