package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeList replaces the network's list in one step.
func writeList(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(confList+".new", []byte(text), 0o644))
	require.NoError(t, os.Rename(confList+".new", confList))
}

// fightOver writes the network's list anew each second, without our entry, until the test or stop ends it.
func fightOver(t *testing.T) (stop func()) {
	t.Helper()
	original := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(original, []byte(primary), 0o644))
	cmd := exec.Command("sh", "-c", `while cp "$1" "$2.new" && mv "$2.new" "$2"; do sleep 1; done`, "-", original, confList)
	require.NoError(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(confList + ".new")
	})
	t.Cleanup(stop)
	return stop
}
