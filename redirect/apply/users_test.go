//go:build linux

package apply_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// ofUserNS is a network namespace that a user namespace owns, as those of pods with hostUsers: false are.
func ofUserNS(t testing.TB) *netnsexec.NetNS {
	t.Helper()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("unshare"))
	cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "--net", "cat")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	_, err = stdin.Write([]byte("x"))
	require.NoError(t, err)
	_, err = stdout.Read(make([]byte, 1)) // it is cat now
	require.NoError(t, err)
	ns, err := netnsexec.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	require.NoError(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// TestUserNamespace: iptables' owner match is refused there, so auto takes nftables.
func TestUserNamespace(t *testing.T) {
	ns := ofUserNS(t)
	rs := dual().MustRuleset()
	b, err := apply.Choose(t.Context(), ns, apply.Options{Runner: ns.Sandbox()})
	require.NoError(t, err)
	assert.Equal(t, ruleset.BackendNftables, b.Name())
	mustApply(t, b, rs)
	diffs, err := b.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, diffs)

	b, err = apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendIptables, Runner: ns.Sandbox()})
	require.NoError(t, err)
	assert.Equal(t, ruleset.BackendIptablesNFT, b.Name(), "who asks for it gets it")
	_, err = b.Apply(t.Context(), rs)
	require.ErrorContains(t, err, "hostUsers: false", "the day the kernel takes it there, auto may be as elsewhere")
}
