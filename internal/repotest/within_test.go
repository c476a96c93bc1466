package repotest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestWithin: a step that hangs is ended with what it has started, and the log says which it was; any other goes on as without.
func TestWithin(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Binary("timeout"))
	within := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		cmd := exec.Command(filepath.Join(root, ".ci", "within"), args...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return exit.ExitCode(), out.String(), errs.String()
		}
		require.NoError(t, err)
		return 0, out.String(), errs.String()
	}
	code, out, errs := within("1m", "greet", "sh", "-c", `echo "$1"; exit 3`, "sh", "two words")
	assert.Equal(t, []any{3, "two words\n", ""}, []any{code, out, errs})

	// The output is a pipe, which the grandchild has too: this returns once that has ended. What it would have done is not done.
	mark := filepath.Join(t.TempDir(), "mark")
	code, _, errs = within("1s", "browser tests", "sh", "-c", `sh -c 'sleep 3000; touch "$1"' sh "$1"; touch "$1"`, "sh", mark)
	assert.Equal(t, 124, code)
	assert.Equal(t, ".ci/within: browser tests: not done within 1s\n", strings.TrimPrefix(errs, "Terminated\n"))
	_, err := os.Stat(mark)
	assert.ErrorIs(t, err, os.ErrNotExist)
}
