package main

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
)

// nestedModules are the published modules beside the root's, by their directories. Between releases they require the root at v0.0.0
// and replace it by its directory, which the go command refuses in what it installs by version.
var nestedModules = []string{"cmd", "migrate"}

// prepare makes the checkout's modules those of a version: the nested ones require the root at the version, and replace nothing. It
// returns the git tags of that commit, one for each published module.
func (s source) prepare() (tags []string, err error) {
	tags = []string{s.version}
	for _, dir := range nestedModules {
		if err := s.require(filepath.Join(s.root, dir, "go.mod")); err != nil {
			return nil, fmt.Errorf("prepare module %s for %s: %w", dir, s.version, err)
		}
		tags = append(tags, dir+"/"+s.version)
	}
	return tags, nil
}

func (s source) require(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	mod, err := modfile.Parse(file, text, nil)
	if err != nil {
		return err
	}
	for _, r := range mod.Require {
		if moduleOf(r.Mod.Path) == ourModule {
			if err := mod.AddRequire(r.Mod.Path, s.version); err != nil {
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
