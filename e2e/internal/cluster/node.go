package cluster

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// ours are the trees of the node in which everything that is written is watched: what is laid over /etc and /opt, and
// those directories of /run and /var that neither the runtime nor the kubelet has for itself.
var ours = map[string]string{
	"/etc":         filepath.Join(machine.Dir, "over", "etc"),
	"/opt":         filepath.Join(machine.Dir, "over", "opt"),
	"/run/meshcni": "/run/meshcni",
}

// Files is what has been written on the node, by path: the mode, and a sum of the content.
func (c *Cluster) Files(t testing.TB) map[string]string {
	t.Helper()
	files := map[string]string{}
	for path, tree := range ours {
		err := filepath.WalkDir(tree, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				if os.IsNotExist(err) {
					return nil
				}
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			what := info.Mode().String()
			if info.Mode().IsRegular() {
				text, err := os.ReadFile(p)
				if err != nil {
					return err
				}
				what += fmt.Sprintf(" %x", sha256.Sum256(text))
			}
			files[path+strings.TrimPrefix(p, tree)] = what
			return nil
		})
		require.NoError(t, err)
	}
	return files
}
