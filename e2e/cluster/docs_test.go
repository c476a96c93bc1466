package cluster_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/doctest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// besides are the other plugins that pages are about, which their readers have.
var besides = map[string]string{"docs/migrating.md": "istio-cni"}

// TestDocs does what the documentation tells a user with a cluster to do, word for word, file by file.
func TestDocs(t *testing.T) {
	c := sharedCluster(t)
	files := []string{filepath.Join(proctest.Root(), "README.md")}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		more, err := filepath.Glob(filepath.Join(proctest.Root(), pattern))
		require.NoError(t, err)
		files = append(files, more...)
	}
	ran := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		blocks, err := doctest.Parse(file, string(text))
		require.NoError(t, err)
		blocks = slices.DeleteFunc(blocks, func(b doctest.Block) bool { return b.Tag != doctest.Cluster })
		if len(blocks) == 0 {
			continue
		}
		name, err := filepath.Rel(proctest.Root(), file)
		require.NoError(t, err)
		step(t, c, name, func(t *testing.T) {
			leave := func() {}
			if plugin := besides[name]; plugin != "" {
				leave = peerOn(t, c, switched{plugin: plugin})
			}
			t.Cleanup(func() {
				if t.Failed() { // else the page has cleared up itself
					_, _ = c.Try("kubectl", "delete", "pods", "--all", "--timeout=5m")
					_, _ = c.Try("helm", "uninstall", release, "--namespace", system, "--wait", "--ignore-not-found")
				}
			})
			c.ExplainFailure(t)
			for _, b := range blocks {
				ctx, cancel := context.WithTimeout(context.Background(), netnstest.Patience)
				out, err := b.Run(ctx, proctest.Root(), c.Env()...)
				cancel()
				require.NoError(t, err, out)
				ran++
			}
			leave()
			assertClean(t, c)
		})
	}
	require.NotZero(t, ran, "no page has a block to run")
}
