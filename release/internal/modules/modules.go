// Package modules says which modules are linked into the programs, under which licences, and what must be handed on with
// them: the texts of those licences.
package modules

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"

	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/programs"
	"github.com/meshcni/meshcni/release/internal/source"
	"github.com/meshcni/meshcni/release/internal/tag"
)

// Std is what the standard library is called here, as in databases of vulnerabilities.
const Std = "stdlib"

// Module is one that is linked.
type Module struct {
	// Path is the module's; [Std] for the standard library.
	Path string
	// Version is as in go.mod; of the standard library Go's, "1.26.8".
	Version string
	// Sum is the line's end in go.sum, "h1:…"; empty for the standard library and the module that is released.
	Sum string
	// License is an SPDX expression.
	License string
	// Texts are its licences and notices, with the names they have in it. Those of packages that are not linked are not
	// among them.
	Texts []files.File
	// Requires are the paths of the modules whose packages its linked packages import, sorted.
	Requires []string
	// Programs are the names of the programs that it is linked into, sorted.
	Programs []string
}

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath string
	Dir, Root  string // Root is GOROOT or the module's directory
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
}

// Linked returns the modules of programs that were built from the tree, sorted by path; the module that is released is
// among them. The programs' own records decide which they are, and the files in the module cache what their licences are.
func Linked(ctx context.Context, t source.Tree, at programs.Platform, built []programs.Program) (all []Module, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("linked modules for %s: %w", at, err)
		}
	}()
	byPath, err := recorded(t, built)
	if err != nil {
		return nil, err
	}
	pkgs, err := list(ctx, t, at, built)
	if err != nil {
		return nil, err
	}
	owner := map[string]string{} // package → module
	for _, p := range pkgs {
		owner[p.ImportPath] = p.module()
	}
	for _, p := range pkgs {
		m := byPath[p.module()]
		if m == nil {
			return nil, fmt.Errorf("package %s is imported, but no program records its module %s", p.ImportPath, p.module())
		}
		switch m.Path {
		case Std: // has one licence
			p.Dir = p.Root
		case source.Module: // all its modules have one
			p.Root = t.Root
		}
		if err := m.addTexts(p.Root, p.Dir); err != nil {
			return nil, err
		}
		for _, i := range p.Imports {
			if to := owner[i]; to != "" && to != m.Path && !slices.Contains(m.Requires, to) {
				m.Requires = append(m.Requires, to)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		m := byPath[path]
		slices.Sort(m.Requires)
		slices.SortFunc(m.Texts, func(a, b files.File) int { return cmp.Compare(a.Name, b.Name) })
		if m.License, err = identify(m.Texts); err != nil {
			return nil, fmt.Errorf("licence of module %s %s: %w", m.Path, m.Version, err)
		}
		all = append(all, *m)
	}
	return all, nil
}

// recorded reads which modules there are from the programs.
func recorded(t source.Tree, built []programs.Program) (map[string]*Module, error) {
	byPath := map[string]*Module{}
	for _, p := range built {
		own := Module{Path: source.Module, Version: t.Version}
		std := Module{Path: Std, Version: strings.TrimPrefix(p.Info.GoVersion, "go")}
		found := []Module{own, std}
		for _, d := range p.Info.Deps {
			if merged(d.Path) == source.Module {
				continue
			}
			if d.Replace != nil {
				return nil, fmt.Errorf("%s is built with a replacement of %s, which nobody else could get", p.Name, d.Path)
			}
			found = append(found, Module{Path: d.Path, Version: d.Version, Sum: d.Sum})
		}
		for _, m := range found {
			if byPath[m.Path] == nil {
				byPath[m.Path] = &m
			}
			byPath[m.Path].Programs = append(byPath[m.Path].Programs, p.Name)
		}
	}
	return byPath, nil
}

func (p listed) module() string {
	if p.Standard || p.Module == nil {
		return Std
	}
	return merged(p.Module.Path)
}

// merged is the module as a release has it: those of this repository are one, since they are released together.
func merged(path string) string {
	if tag.Ours(path) {
		return source.Module
	}
	return path
}

// list returns the packages that the programs are made of.
func list(ctx context.Context, t source.Tree, at programs.Platform, built []programs.Program) (pkgs []listed, err error) {
	args := []string{"list", "-deps", "-json=ImportPath,Dir,Root,Standard,Imports,Module"}
	for _, p := range built {
		args = append(args, "./cmd/"+p.Name)
	}
	cmd := programs.Go(ctx, t, at, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, &stderr)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
	return pkgs, nil
}

// legal are the names of files with licences and what goes with them.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents|unlicense)s?([-._].*)?$`)

// addTexts takes the texts in the directory dir and in those above it, up to the module's root.
func (m *Module) addTexts(root, dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		rel, err := filepath.Rel(root, dir)
		if err != nil || strings.HasPrefix(rel, "..") {
			return fmt.Errorf("%s is not in module %s", dir, m.Path)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := filepath.ToSlash(filepath.Join(rel, e.Name()))
			has := slices.ContainsFunc(m.Texts, func(f files.File) bool { return f.Name == name })
			if e.IsDir() || has || !legal.MatchString(e.Name()) || strings.HasSuffix(name, ".go") {
				continue
			}
			data, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			m.Texts = append(m.Texts, files.File{Name: name, Mode: 0o644, Data: data})
		}
		if rel == "." {
			return nil
		}
	}
}

// identify returns the SPDX expression of all licences in the texts. Notices and grants of patents come beside a licence.
func identify(texts []files.File) (string, error) {
	var ids []string
	for _, f := range texts {
		base := strings.ToLower(filepath.Base(f.Name))
		if strings.HasPrefix(base, "notice") || strings.HasPrefix(base, "patents") {
			continue
		}
		scan := licensecheck.Scan(f.Data)
		if scan.Percent < 50 {
			return "", fmt.Errorf("%s is %.0f %% like a licence that is known; look at it, and decide", f.Name, scan.Percent)
		}
		for _, match := range scan.Match {
			if !slices.Contains(ids, match.ID) {
				ids = append(ids, match.ID)
			}
		}
	}
	if ids == nil {
		return "", errors.New("there is none")
	}
	slices.Sort(ids)
	return strings.Join(ids, " AND "), nil
}

// Texts returns the licences of all the modules as a tree: ours by its name, those of others below third_party and their
// modules' paths.
func Texts(all []Module) []files.File {
	var tree []files.File
	for _, m := range all {
		if m.Path == source.Module {
			tree = append(tree, m.Texts...)
		} else {
			tree = append(tree, files.Below("third_party/"+m.Path, m.Texts)...)
		}
	}
	return tree
}
