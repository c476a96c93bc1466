package cluster_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/cluster"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/doctest"
)

// TestDocs does what the documentation tells a user with a cluster to do, word for word, file by file.
func TestDocs(t *testing.T) {
	c := cluster.Shared(t)
	files := []string{filepath.Join(machine.Root(), "README.md")}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		more, err := filepath.Glob(filepath.Join(machine.Root(), pattern))
		require.NoError(t, err)
		files = append(files, more...)
	}
	ran := 0
	for _, file := range files {
		blocks, err := doctest.Blocks(file, doctest.Cluster)
		require.NoError(t, err)
		if len(blocks) == 0 {
			continue
		}
		name, err := filepath.Rel(machine.Root(), file)
		require.NoError(t, err)
		step(t, c, name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() { // else the page has cleared up itself
					_, _ = c.Try("kubectl", "delete", "pods", "--all", "--timeout=60s")
					_, _ = c.Try("helm", "uninstall", release, "--namespace", system, "--wait", "--ignore-not-found")
				}
			})
			c.ExplainFailure(t)
			for _, b := range blocks {
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
				out, err := b.Run(ctx, machine.Root(), c.Env()...)
				cancel()
				require.NoError(t, err, out)
				ran++
			}
			assertClean(t, c)
		})
	}
	require.NotZero(t, ran, "no page has a block to run")
}
