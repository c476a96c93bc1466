//go:build linux

package installer

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fill leaves no room on the file system of dir, and gives the file that takes it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	require.NoError(t, err)
	defer f.Close()
	for size := 4096; size > 0; {
		if _, err = f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	return f.Name()
}

func readOnly(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

// codes are the codes of all reasons in an error.
func codes(err error) (out []string) {
	switch err := err.(type) { //nolint:errorlint // what it is, not what it wraps
	case *BlockedError:
		out = append(out, string(err.Code))
	case interface{ Unwrap() []error }:
		for _, e := range err.Unwrap() {
			out = append(out, codes(e)...)
		}
	}
	return out
}

// A new token reaches the kubeconfig, and the entry the list, whatever keeps a new plugin from its directory: a full disk,
// or one that is mounted read-only. The old plugin goes on with both.
func TestTheTokenDoesNotWaitForTheBinary(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks func(t *testing.T, n *node)
		errno  syscall.Errno
	}{
		"full":      {func(t *testing.T, n *node) { fill(t, n.CNIBinDirs[0]) }, syscall.ENOSPC},
		"read-only": {func(t *testing.T, n *node) { readOnly(t, n.CNIBinDirs[0]) }, syscall.EROFS},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			mount(t, n.CNIBinDirs[0], "size=64k")
			n.install()
			n.put(filepath.Join(n.BinSourceDir, pluginName), "#!/bin/false\n"+strings.Repeat("#", 128<<10))
			broken.breaks(t, n)
			a, _ := n.agent(onEvents)
			within(t, patience, "not ready", func() bool { return code(a) == "write-failed" })
			require.ErrorIs(t, a.Ready(), broken.errno)

			n.put(filepath.Join(n.ServiceAccountDir, "token"), "token-2")
			n.put(n.conf("10-calico.conflist"), calicoList)
			within(t, patience, "the new token is there", func() bool { return strings.Contains(n.read(n.kubeconfig()), `"token-2"`) })
			within(t, patience, "captured again", n.captured)
			assert.Equal(t, "#!/bin/true\n", n.read(n.binary()), "the old plugin, whole")
			assert.Equal(t, "write-failed", code(a))
		})
	}
}

// Without any plugin in place nothing may name one; the credentials are kept up all the same.
func TestTheListWaitsForTheBinary(t *testing.T) {
	for name, given := range map[string]func(t *testing.T, n *node) string{
		"full": func(t *testing.T, n *node) string {
			mount(t, n.CNIBinDirs[0], "size=16k")
			n.put(filepath.Join(n.BinSourceDir, pluginName), strings.Repeat("#", 64<<10))
			return "write-failed"
		},
		"read-only": func(t *testing.T, n *node) string {
			mount(t, n.CNIBinDirs[0], "size=16k")
			readOnly(t, n.CNIBinDirs[0])
			return "write-failed"
		},
		"a directory in its place": func(t *testing.T, n *node) string {
			require.NoError(t, os.Mkdir(n.binary(), 0o755))
			return "write-failed"
		},
		"an empty file in its place, and none to install": func(t *testing.T, n *node) string {
			n.write(n.binary(), "", 0o755)
			require.NoError(t, os.RemoveAll(n.BinSourceDir))
			return "no-binary"
		},
		"no such directory": func(t *testing.T, n *node) string {
			require.NoError(t, os.RemoveAll(n.CNIBinDirs[0]))
			return "bin-dir"
		},
		"one of two directories": func(t *testing.T, n *node) string {
			n.CNIBinDirs = append(n.CNIBinDirs, filepath.Join(t.TempDir(), "none"))
			return "bin-dir"
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			want := given(t, n)
			_, err := Install(t.Context(), n.Config, discard)
			assert.Equal(t, []string{want}, codes(err))
			assert.Contains(t, n.read(n.kubeconfig()), `"token-1"`)
			assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
		})
	}
}

// A run directory that takes no kubeconfig keeps the binary from nothing, and the list from naming what cannot work.
func TestTheBinaryDoesNotWaitForTheToken(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	require.NoError(t, os.Mkdir(n.RunDir, 0o755))
	mount(t, n.RunDir, "size=16k")
	readOnly(t, n.RunDir)
	_, err := Install(t.Context(), n.Config, discard)
	require.ErrorIs(t, err, syscall.EROFS)
	assert.FileExists(t, n.binary())
	assert.Equal(t, calicoList, n.read(n.conf("10-calico.conflist")))
}

// Everything that is wrong is said at once: in the error, by readiness, and by the metric.
func TestAllReasonsAreNamed(t *testing.T) {
	n := newNode(t, nil)
	require.NoError(t, os.RemoveAll(n.BinSourceDir))
	require.NoError(t, os.RemoveAll(n.ServiceAccountDir))
	want := []string{"no-binary", "no-credentials", "no-network"}
	_, err := Install(t.Context(), n.Config, discard)
	assert.Equal(t, want, codes(err))
	a, _ := n.agent(onEvents)
	within(t, patience, "looked", func() bool { return code(a) != "starting" })
	assert.Equal(t, want, codes(a.Ready()))
	metrics := scrape(t, a)
	for _, code := range want {
		assert.Contains(t, metrics, "\nmeshcni_blocked{code=\""+code+"\"} 1\n")
	}
	assert.NotContains(t, metrics, `code="starting"`)
}

// What a killed run has left on a file system that is read-only since is in nobody's way.
func TestTemporaryFileThatStays(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	mount(t, n.CNIBinDirs[0], "size=64k")
	n.program("calico")
	n.install()
	n.write(filepath.Join(n.CNIBinDirs[0], ".meshcni.cni-tmp-1"), "x", 0o600)
	readOnly(t, n.CNIBinDirs[0])
	n.put(n.conf("10-calico.conflist"), calicoList)
	n.install()
	assert.True(t, n.captured())
	a, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
}
