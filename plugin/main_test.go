package plugin_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/binarytest"
)

// programs is where binaries are built, once for all tests.
var programs string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "plugin-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func binary(tb testing.TB) string {
	tb.Helper()
	path, err := binarytest.Installed(programs, binarytest.Command)
	require.NoError(tb, err)
	return path
}
