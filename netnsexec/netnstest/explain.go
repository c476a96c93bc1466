package netnstest

import (
	"fmt"
	"strings"
	"testing"
)

// explainLines and explainBytes bound each part of what is said of a failure.
const explainLines, explainBytes = 80, 8 << 10

// onFailure registers a cleanup that logs what tell returns if the test has failed by then. It runs before the cleanups that were
// registered earlier.
func onFailure(tb testing.TB, tell func() string) {
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s", tell())
		}
	})
}

// head returns the first lines of a text, and says how many it left out.
func head(text string) string {
	lines := strings.SplitAfter(strings.TrimSpace(text), "\n")
	kept, size := 0, 0
	for kept < min(len(lines), explainLines) && size+len(lines[kept]) <= explainBytes {
		size += len(lines[kept])
		kept++
	}
	said := strings.Join(lines[:kept], "")
	if more := len(lines) - kept; more > 0 {
		said += fmt.Sprintf("… %d more lines", more)
	}
	return said
}
