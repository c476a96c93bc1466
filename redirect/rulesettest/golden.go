package rulesettest

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshcni/meshcni/internal/text/lcs"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// The flag has the package's name, so that it does not clash with a flag "update" of the
// tests that import this package. Such a flag counts too.
var update = flag.Bool("rulesettest.update", false, "write the golden files of rulesettest.Golden")

// Golden compares the program's whole text, comments and policy routing included, with a file. Run the tests with
// -rulesettest.update to write the file (or with -update, where the test binary has a flag of that name).
func Golden(tb testing.TB, rs ruleset.Ruleset, path string) {
	tb.Helper()
	got := text(rs)
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

// text is what Golden compares: each family's commented text under its name.
func text(rs ruleset.Ruleset) string {
	var b strings.Builder
	for _, f := range ruleset.Families {
		b.WriteString("# " + f.String() + "\n")
		if p := rs.Family(f); p != nil {
			b.WriteString(p.Commented())
		} else {
			b.WriteString("# no rules\n")
		}
	}
	return b.String()
}

// lineDiff returns the lines that differ between two texts, each run of changes under the line that it follows.
func lineDiff(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	var out strings.Builder
	i, j := 0, 0
	for _, p := range append(lcs.Strings(a, b).Pairs(), lcs.Pair{I: len(a), J: len(b)}) {
		if i > 0 && (i < p.I || j < p.J) {
			out.WriteString("  " + a[i-1] + "\n")
		}
		for ; i < p.I; i++ {
			out.WriteString("- " + a[i] + "\n")
		}
		for ; j < p.J; j++ {
			out.WriteString("+ " + b[j] + "\n")
		}
		i, j = p.I+1, p.J+1
	}
	return out.String()
}
