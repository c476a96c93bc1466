package cluster_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// files is what has been written on the node, by path: the mode, and a sum of the content.
func files() (map[string]string, error) {
	found := map[string]string{}
	for path, tree := range ours {
		err := filepath.WalkDir(tree, func(p string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if err != nil {
				return err
			}
			// The agent cannot remove the directories that are its own volumes; empty they say nothing.
			if slices.Contains([]string{"/run/meshcni", "/opt/nri", "/opt/nri/plugins"}, path+strings.TrimPrefix(p, tree)) {
				return nil
			}
			info, err := d.Info()
			if os.IsNotExist(err) { // the agent writes some of its files anew now and then
				return nil
			}
			if err != nil {
				return err
			}
			what := info.Mode().String()
			if info.Mode().IsRegular() {
				text, err := os.ReadFile(p)
				if os.IsNotExist(err) {
					return nil
				}
				if err != nil {
					return err
				}
				what += fmt.Sprintf(" %x", sha256.Sum256(text))
			}
			found[path+strings.TrimPrefix(p, tree)] = what
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Changes are the files of the node that are not as they were before anything was installed, such as "/opt/cni/bin/meshcni
// new -rwxr-xr-x", in order.
func (c *cluster) Changes(t testing.TB) (changes []string) {
	t.Helper()
	now, err := files()
	require.NoError(t, err)
	for path, what := range now {
		mode, _, _ := strings.Cut(what, " ")
		switch was, ok := c.pristine[path]; {
		case !ok:
			changes = append(changes, path+" new "+mode)
		case was != what:
			changes = append(changes, path+" changed "+mode)
		}
	}
	for path := range c.pristine {
		if _, ok := now[path]; !ok {
			changes = append(changes, path+" gone")
		}
	}
	slices.Sort(changes)
	return changes
}
