package main

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
)

// stdlib is what the standard library is called here, as in databases of vulnerabilities.
const stdlib = "stdlib"

// linkedModule is a module of which a program has code.
type linkedModule struct {
	path string // stdlib for the standard library
	// version is as in go.mod; of the standard library Go's, "1.26.8".
	version string
	// sum is the line's end in go.sum, "h1:…"; empty for the standard library and the module that is released.
	sum string
	// license is an SPDX expression.
	license string
	// texts are its licences and notices, with the names they have in it, but for those of packages that are not linked.
	texts []file
	// requires are the paths of the modules whose packages its linked packages import, sorted.
	requires []string
	// programs are the names of the programs that it is linked into, sorted.
	programs []string
}

// listed is a package as `go list -json` has it.
type listed struct {
	ImportPath string
	Dir, Root  string // Root is GOROOT or the module's directory
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
}

func (p listed) module() string {
	if p.Standard || p.Module == nil {
		return stdlib
	}
	return moduleOf(p.Module.Path)
}

// linked returns the modules of programs that were built, sorted by path; the module that is released is among them. The
// programs' own records decide which they are, and the files in the module cache what their licences are.
func (s source) linked(ctx context.Context, at platform, built []program) (all []linkedModule, err error) {
	byPath, names := map[string]*linkedModule{}, []string{}
	for _, p := range built {
		names = append(names, p.name)
		if err := s.record(byPath, p); err != nil {
			return nil, err
		}
	}
	cmd := s.goCommand(ctx, at, append([]string{"list", "-deps", "-json=ImportPath,Dir,Root,Standard,Imports,Module"}, packages(names)...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages for %s: %w", at, err)
	}
	owner := map[string]string{} // package → module
	var pkgs []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p listed
		if err := dec.Decode(&p); err != nil {
			return nil, fmt.Errorf("list the packages for %s: %w", at, err)
		}
		pkgs, owner[p.ImportPath] = append(pkgs, p), p.module()
	}
	for _, p := range pkgs {
		m := byPath[p.module()]
		if m == nil {
			return nil, fmt.Errorf("package %s is imported, but no program for %s records its module %s", p.ImportPath, at, p.module())
		}
		switch m.path {
		case stdlib: // has one licence
			p.Dir = p.Root
		case ourModule: // all its modules have one
			p.Root = s.root
		}
		if err := m.addTexts(p.Root, p.Dir); err != nil {
			return nil, err
		}
		for _, i := range p.Imports {
			if to := owner[i]; to != "" && to != m.path && !slices.Contains(m.requires, to) {
				m.requires = append(m.requires, to)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(byPath)) {
		m := byPath[path]
		slices.Sort(m.requires)
		slices.SortFunc(m.texts, func(a, b file) int { return cmp.Compare(a.name, b.name) })
		if m.license, err = identify(m.texts); err != nil {
			return nil, fmt.Errorf("licence of module %s %s: %w", m.path, m.version, err)
		}
		all = append(all, *m)
	}
	return all, nil
}

// record adds the modules that a program says it has.
func (s source) record(byPath map[string]*linkedModule, p program) error {
	found := []linkedModule{{path: ourModule, version: s.version}, {path: stdlib, version: strings.TrimPrefix(p.info.GoVersion, "go")}}
	for _, d := range p.info.Deps {
		switch {
		case moduleOf(d.Path) == ourModule:
		case d.Replace != nil:
			return fmt.Errorf("%s is built with a replacement of %s, which nobody else could get", p.name, d.Path)
		default:
			found = append(found, linkedModule{path: d.Path, version: d.Version, sum: d.Sum})
		}
	}
	for _, m := range found {
		if byPath[m.path] == nil {
			byPath[m.path] = &m
		}
		byPath[m.path].programs = append(byPath[m.path].programs, p.name)
	}
	return nil
}

// legal are the names of files with licences and what goes with them.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents|unlicense)s?([-._].*)?$`)

// addTexts takes the texts in the directory dir and in those above it, up to the module's root.
func (m *linkedModule) addTexts(root, dir string) error {
	for ; ; dir = filepath.Dir(dir) {
		rel, err := filepath.Rel(root, dir)
		if err != nil || strings.HasPrefix(rel, "..") {
			return fmt.Errorf("%s is not in module %s", dir, m.path)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := filepath.ToSlash(filepath.Join(rel, e.Name()))
			has := slices.ContainsFunc(m.texts, func(f file) bool { return f.name == name })
			if e.IsDir() || has || !legal.MatchString(e.Name()) || strings.HasSuffix(name, ".go") {
				continue
			}
			data, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return err
			}
			m.texts = append(m.texts, file{name: name, mode: 0o644, data: data})
		}
		if rel == "." {
			return nil
		}
	}
}

// identify returns the SPDX expression of all licences in the texts. Notices and grants of patents come beside a licence.
func identify(texts []file) (string, error) {
	var ids []string
	for _, f := range texts {
		base := strings.ToLower(filepath.Base(f.name))
		if strings.HasPrefix(base, "notice") || strings.HasPrefix(base, "patents") {
			continue
		}
		scan := licensecheck.Scan(f.data)
		if scan.Percent < 50 {
			return "", fmt.Errorf("%s is %.0f %% like a licence that is known; look at it, and decide", f.name, scan.Percent)
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

// licences are the texts of all the modules: ours by its name, those of others below third_party and their modules' paths.
func licences(all []linkedModule) (list []file) {
	for _, m := range all {
		if m.path == ourModule {
			list = append(list, m.texts...)
		} else {
			list = append(list, below("third_party/"+m.path, m.texts)...)
		}
	}
	return list
}
