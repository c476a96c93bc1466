package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// build makes the program, where every user can run it.
func build(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "meshcni-redirect-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // for other users
	binary := filepath.Join(dir, "meshcni-redirect")
	out, err := exec.Command("go", "build", "-ldflags", "-s -w -X github.com/meshcni/meshcni/internal/program/version.version=v9", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

type ran struct {
	code        int
	out, errOut string
}

// as runs the program in the namespace as a user without any capability.
func as(t *testing.T, ns *netnsexec.NetNS, id uint32, binary string, args ...string) ran {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if id != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	}
	err := ns.Run(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// TestProgram is the program as an init container has it: built, started in the
// pod's own namespace, as root to apply, then as the proxy's user to validate.
func TestProgram(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("iptables-nft-restore"))
	binary := build(t)
	t.Run("version", func(t *testing.T) {
		t.Parallel()
		out, err := exec.Command(binary, "--version").Output()
		require.NoError(t, err)
		assert.Regexp(t, `^meshcni-redirect v9 \(.*\)\n$`, string(out))
	})
	t.Run("by another name", func(t *testing.T) {
		t.Parallel()
		// An init container's arguments begin with the name, and its command may be the name.
		calls := map[string][]string{"istio-iptables": nil, "pilot-agent": {"istio-iptables"}}
		text, err := os.ReadFile(binary)
		require.NoError(t, err)
		copied := filepath.Join(t.TempDir(), "istio-iptables")
		require.NoError(t, os.WriteFile(copied, text, 0o755)) //nolint:gosec // it is run
		for name, args := range calls {
			link := filepath.Join(filepath.Dir(binary), name)
			require.NoError(t, os.Symlink(filepath.Base(binary), link))
			for _, file := range []string{link, copied} {
				ns := netnstest.New(t)
				got := as(t, ns, 0, file, append(args, "-p", "15001", "-b", "*", "-i", "*", "--run-validation", "--log_output_level=default:info")...)
				assert.Zero(t, got.code, "%+v", got)
				assert.Contains(t, got.out, "works    ipv4 inbound: ")
			}
		}
		got := as(t, netnstest.New(t), 0, filepath.Join(filepath.Dir(binary), "istio-iptables"), "apply")
		assert.Equal(t, 2, got.code, "%+v", got)
	})
	tests := map[string][]string{
		"ipv4":         nil,
		"dual stack":   {"--dual-stack"},
		"dns":          {"--redirect-dns", "--capture-all-dns", "--dual-stack"},
		"tproxy":       {"-m", "TPROXY", "--dual-stack"},
		"another user": {"-u", "2000"},
	}
	for name, flags := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := netnstest.New(t)
			proxy := uint32(1337)
			if name == "another user" {
				proxy = 2000
			}
			do := func(id uint32, command string, more ...string) ran {
				return as(t, ns, id, binary, append(append([]string{command}, flags...), more...)...)
			}

			got := do(proxy, "validate")
			assert.Equal(t, 126, got.code, "%+v", got)
			assert.Contains(t, got.out, "missing  ipv4 inbound: ")
			assert.Contains(t, got.errOut, "redirection is missing: ipv4 inbound")
			assert.NotZero(t, do(proxy, "apply").code, "it takes a capability to apply")

			got = do(0, "apply")
			require.Zero(t, got.code, "%+v", got)
			got = do(proxy, "validate")
			assert.Zero(t, got.code, "%+v", got)
			assert.Contains(t, got.out, "works    ipv4 inbound: ")
			assert.Equal(t, name == "dns", strings.Contains(got.out, "works    ipv4 dns-exemption: "))
			if name == "dns" {
				got = do(1000, "validate")
				assert.Zero(t, got.code, "%+v", got)
				for _, step := range []string{"ipv4 dns-udp", "ipv4 dns-tcp", "ipv6 dns-udp", "ipv6 dns-tcp"} {
					assert.Contains(t, got.out, "works    "+step+": ")
				}
			}
			assert.Zero(t, do(0, "check").code)
			assert.Zero(t, do(0, "cleanup").code)
			assert.Equal(t, 126, do(proxy, "validate").code)
		})
	}
}
