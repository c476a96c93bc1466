// Package socktest is what tests of Unix sockets need.
package socktest

import (
	"os"
	"path/filepath"
	"testing"
)

// Path returns a path for a socket, in a directory of its own that goes when the test ends. A test's TempDir has the test's name in it,
// and a socket's path has its limit.
func Path(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		tb.Fatalf("make a directory for a socket: %v", err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove a socket's directory: %v", err)
		}
	})
	return filepath.Join(dir, "a.sock")
}

// OpenFiles counts the files that this process has open: what peers sent must not stay open.
func OpenFiles(tb testing.TB) int {
	tb.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatalf("count open files: %v", err)
	}
	return len(files)
}
