// Package tag prepares the repository's modules for a version's tags. In between, the nested modules require the root at
// v0.0.0 and replace it by its directory, which the go command refuses in what it installs by version.
package tag

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/meshcni/meshcni/release/internal/source"
)

// Modules are the published modules beside the root's, by their directories.
var Modules = []string{"cmd"}

// Tags returns the git tags of a version: one for each published module.
func Tags(version string) []string {
	tags := []string{version}
	for _, dir := range Modules {
		tags = append(tags, dir+"/"+version)
	}
	return tags
}

// Prepare writes the nested modules' go.mod files below root: they require the root at the version, and replace
// nothing.
func Prepare(root, version string) error {
	for _, dir := range Modules {
		if err := prepare(filepath.Join(root, dir, "go.mod"), version); err != nil {
			return fmt.Errorf("prepare module %s for %s: %w", dir, version, err)
		}
	}
	return nil
}

func prepare(file, version string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(file, text, nil)
	if err != nil {
		return err
	}
	for _, r := range mod.Require {
		if Ours(r.Mod.Path) {
			if err := mod.AddRequire(r.Mod.Path, version); err != nil {
				return err
			}
		}
	}
	for _, r := range mod.Replace {
		if err := mod.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	mod.Cleanup()
	if text, err = mod.Format(); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// Ours reports whether a module is one of this repository.
func Ours(path string) bool {
	return path == source.Module || strings.HasPrefix(path, source.Module+"/")
}
