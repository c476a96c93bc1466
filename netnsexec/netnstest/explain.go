package netnstest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// teller is what a TB has besides if it can be asked whether the test failed, as a testing.TB can. What fails with another one is not
// explained.
type teller interface {
	Failed() bool
	Logf(format string, args ...any)
}

// explainLines and explainBytes bound each part of what is said of a failure.
const explainLines, explainBytes = 80, 8 << 10

// onFailure registers a cleanup that logs what tell returns if the test has failed by then. It runs before the cleanups that were
// registered earlier.
func onFailure(tb TB, tell func() string) {
	t, ok := tb.(teller)
	if !ok {
		return
	}
	tb.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", tell())
		}
	})
}

// LogOnFailure logs the end of a file, such as a plugin's log, when the test has failed. A file that is not there then is not a failure.
// A tb without Failed and Logf, which a testing.TB has, is told nothing.
func LogOnFailure(tb TB, path string) {
	tb.Helper()
	onFailure(tb, func() string {
		text, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		lines := bytes.SplitAfter(text, []byte("\n"))
		cut := len(lines) - min(len(lines), explainLines)
		said := bytes.Join(lines[cut:], nil)
		more := ""
		if cut > 0 || len(said) > explainBytes {
			said, more = said[max(0, len(said)-explainBytes):], "… "
		}
		return fmt.Sprintf("%s:\n%s%s", path, more, said)
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
