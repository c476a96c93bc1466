package rulesettest

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// The name has the package's in it, so that it stays out of the way of a flag
// "update" of the tests that import this package; one of those counts too.
var update = flag.Bool("rulesettest.update", false, "write the golden files of rulesettest.Golden")

// Golden compares the program's whole text, comments and policy routing
// included, with a file. Run the tests with -rulesettest.update to write the
// file (or with -update, where the test binary has a flag of that name).
func Golden(tb TB, rs ruleset.Ruleset, path string) {
	tb.Helper()
	got := Text(rs)
	if updating() {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatalf("write golden file: %v", err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			tb.Fatalf("write golden file: %v", err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		tb.Fatalf("golden file %s is not there; make it by running this test with -rulesettest.update", path)
	}
	if err != nil {
		tb.Fatalf("read golden file: %v", err)
	}
	if got != string(want) {
		tb.Errorf("the program differs from %s (- wanted, + got; -rulesettest.update accepts it):\n%s", path, lineDiff(string(want), got))
	}
}

func updating() bool {
	f := flag.Lookup("update")
	return *update || f != nil && f.Value.String() == "true"
}

// Text is what Golden compares: each family's commented text under its name.
func Text(rs ruleset.Ruleset) string {
	var b strings.Builder
	for _, f := range ruleset.Families {
		b.WriteString("# " + f.String() + "\n")
		if p := rs.Program(f); p != nil {
			b.WriteString(p.Commented())
		} else {
			b.WriteString("# no rules\n")
		}
	}
	return b.String()
}

// lineDiff is what differs between two texts, by line, each run of changes
// under the line that it comes after.
func lineDiff(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	// lcs[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	lcs := make([][]int, len(a)+1)
	for i := range lcs {
		lcs[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				lcs[i][j] = lcs[i+1][j+1] + 1
			} else {
				lcs[i][j] = max(lcs[i+1][j], lcs[i][j+1])
			}
		}
	}
	var out strings.Builder
	context := ""
	change := func(line string) {
		if context != "" {
			out.WriteString("  " + context + "\n")
			context = ""
		}
		out.WriteString(line + "\n")
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			context = a[i]
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || lcs[i+1][j] >= lcs[i][j+1]):
			change("- " + a[i])
			i++
		default:
			change("+ " + b[j])
			j++
		}
	}
	return out.String()
}
