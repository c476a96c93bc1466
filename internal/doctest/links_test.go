package doctest

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
)

var (
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*\s*$`)
	anchor  = regexp.MustCompile(`<a (?:id|name)="([^"]+)">`)
	inline  = regexp.MustCompile("`[^`]*`")
)

// prose is a file's text less its blocks, so that line numbers stay.
func prose(t *testing.T, file string) []string {
	lines := strings.Split(read(t, file), "\n")
	fenced := ""
	for i, line := range lines {
		m := fence.FindStringSubmatch(line)
		switch {
		case fenced == "" && m != nil:
			fenced = m[2]
		case fenced != "" && strings.TrimSpace(line) == fenced:
			fenced = ""
		case fenced == "":
			continue
		}
		lines[i] = ""
	}
	return lines
}

// slug is the anchor that a heading gets: lower case, letters, digits, '-' and '_' stay, a space becomes '-'.
func slug(title string) string {
	title = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(title, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

// anchors are what a link into the file may name.
func anchors(t *testing.T, file string) map[string]bool {
	all, seen := map[string]bool{}, map[string]int{}
	for _, line := range prose(t, file) {
		for _, m := range anchor.FindAllStringSubmatch(line, -1) {
			all[m[1]] = true
		}
		if m := heading.FindStringSubmatch(line); m != nil {
			s := slug(m[1])
			if n := seen[s]; n > 0 {
				all[fmt.Sprintf("%s-%d", s, n)] = true
			}
			seen[s]++
			all[s] = true
		}
	}
	return all
}

// TestLinks: what a file leads to is there.
func TestLinks(t *testing.T) {
	for _, file := range files(t, ".md") {
		for i, line := range prose(t, file) {
			for _, m := range link.FindAllStringSubmatch(inline.ReplaceAllString(line, "``"), -1) {
				if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
					continue
				}
				to, fragment, _ := strings.Cut(m[1], "#")
				target := file
				if to != "" {
					target = path.Join(path.Dir(file), to)
				}
				info, err := os.Stat(filepath.Join(root(t), target))
				if !assert.NoError(t, err, "%s:%d: %s leads nowhere", file, i+1, m[1]) || fragment == "" {
					continue
				}
				if assert.False(t, info.IsDir(), "%s:%d: %s is a folder", file, i+1, m[1]) && strings.HasSuffix(target, ".md") {
					assert.True(t, anchors(t, target)[fragment], "%s:%d: %s has no heading %q", file, i+1, target, fragment)
				}
			}
		}
	}
}

// TestLinksFromCode: alert rules, dashboards, charts and messages lead into the documentation too.
func TestLinksFromCode(t *testing.T) {
	into := regexp.MustCompile("(?:^|[\\s\"'`(]|meshcni/meshcni/blob/main/)(docs/[\\w/.-]+\\.md)(?:#([\\w-]+))?")
	for _, ending := range []string{".yaml", ".json", ".tpl", ".txt", ".go", "Makefile", ".md"} {
		for _, file := range files(t, ending) {
			if strings.HasPrefix(file, "internal/doctest/") {
				continue
			}
			for _, m := range into.FindAllStringSubmatch(read(t, file), -1) {
				_, err := os.Stat(filepath.Join(root(t), m[1]))
				if assert.NoError(t, err, "%s leads to %s", file, m[0]) && m[2] != "" {
					assert.True(t, anchors(t, m[1])[m[2]], "%s leads to %s, which has no such heading", file, m[0])
				}
			}
		}
	}
}

func TestSlug(t *testing.T) {
	for title, want := range map[string]string{
		"Install & drift":                 "install--drift",
		"The node is not ready":           "the-node-is-not-ready",
		"`--own-file` or [chained](x.md)": "--own-file-or-chained",
		"The proxy's user":                "the-proxys-user",
	} {
		assert.Equal(t, want, slug(title))
	}
}

// exported is a name of a Go package behind its path.
var exported = regexp.MustCompile(`\.[A-Z]\w*$`)

// TestPathsExist: a path of the repository that documentation names, in its text or in a command, is there.
func TestPathsExist(t *testing.T) {
	named := regexp.MustCompile("(?:^|[\\s`(=])((?:deploy|docs|e2e|examples|internal|release|testdata|cmd|\\.ci|dialect|installer|netnsexec|plugin|redirect|repair)/[\\w./-]*\\w)")
	for _, file := range files(t, ".md", documented...) {
		lines := prose(t, file)
		for _, b := range blocksOf(t, file) {
			if b.Lang == "sh" {
				copy(lines[b.Line:], strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n"))
			}
		}
		for i, line := range lines {
			for _, m := range named.FindAllStringSubmatch(link.ReplaceAllString(line, "]"), -1) {
				path := exported.ReplaceAllString(m[1], "")
				if path == "testdata/fuzz" || strings.HasSuffix(path, "/NAME") || strings.HasSuffix(path, "/v1.2.3") { // in some package; of some mesh; a tag
					continue
				}
				_, err := os.Stat(filepath.Join(root(t), path))
				assert.NoError(t, err, "%s:%d: there is no %s", file, i+1, path)
			}
		}
	}
}
