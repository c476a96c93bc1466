package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// TestInitContainer: with an injector's arguments the image's program does as Istio's, in the pod's own namespace: as the init
// container that writes the rules, and as the one that only looks whether they are there.
func TestInitContainer(t *testing.T) {
	netnstest.Require(t, netnstest.Root)
	dir, err := os.MkdirTemp("", "meshcni-node-") // every user can run what is in it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // for other users
	out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", dir, ".", "../meshcni-redirect").CombinedOutput()
	require.NoError(t, err, "%s", out)
	ns := netnstest.New(t)
	run := func(id uint32, more ...string) (code int, said string) {
		args := []string{"istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020", "--log_output_level=default:info"}
		var all bytes.Buffer
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "meshcni-node"), append(args, more...)...)
		cmd.Env, cmd.Stdout, cmd.Stderr = []string{}, &all, &all
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
		if err := ns.Run(cmd); err != nil {
			require.ErrorAs(t, err, new(*exec.ExitError))
		}
		return cmd.ProcessState.ExitCode(), all.String()
	}
	looks := []string{"--run-validation", "--skip-rule-apply"}

	code, said := run(1337, looks...)
	assert.Equal(t, 126, code, said)
	code, said = run(0)
	require.Zero(t, code, said)
	assert.Contains(t, said, "applied: ")
	code, said = run(1337, looks...)
	assert.Zero(t, code, said)
	assert.Contains(t, said, "works    ipv4 inbound: ")
	code, said = run(0, "--frob")
	assert.Equal(t, 2, code, said)

	require.NoError(t, os.Remove(filepath.Join(dir, "meshcni-redirect")))
	code, said = run(0)
	assert.Equal(t, 1, code)
	assert.Contains(t, said, "meshcni-node: run "+dir+"/meshcni-redirect: no such file or directory")
}
