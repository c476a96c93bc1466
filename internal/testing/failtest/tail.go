// Package failtest logs what explains why a test failed.
package failtest

import (
	"bytes"
	"fmt"
	"os"
	"testing"
)

// maxLines and maxBytes bound what is said of a file.
const maxLines, maxBytes = 80, 8 << 10

// Tail logs the end of a file, such as a plugin's log, when the test has failed. A file that is not there then is not a failure.
func Tail(tb testing.TB, path string) {
	tb.Helper()
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s", tail(path))
		}
	})
}

func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	cut := len(lines) - min(len(lines), maxLines)
	said := bytes.Join(lines[cut:], nil)
	more := ""
	if cut > 0 || len(said) > maxBytes {
		said, more = said[max(0, len(said)-maxBytes):], "… "
	}
	return fmt.Sprintf("%s:\n%s%s", path, more, said)
}
