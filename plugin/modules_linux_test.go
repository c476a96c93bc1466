//go:build linux

package plugin_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/kernel/backends"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// TestHostWithoutModules: on a host whose iptables is there and takes no rules of pods, ADD goes on to nftables, at once where the agent has said
// so, and STATUS says what works. With iptables asked for both fail, with the remedy.
func TestHostWithoutModules(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.Binary("unshare"), netnstest.Binary("bash"), netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"))
	dir := t.TempDir()
	program := func(name string) string {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		path, err = filepath.EvalSymlinks(path)
		require.NoError(t, err)
		return path
	}
	stub, calls := filepath.Join(dir, "stub"), filepath.Join(dir, "calls")
	require.NoError(t, os.WriteFile(stub, []byte("#!/bin/bash\necho \"$0\" >>"+calls+`
case $0 in *-save) exit 0 ;; esac
while IFS= read -r line; do
  if [[ $line =~ (-m owner|-j REDIRECT) ]]; then
    echo "iptables-restore v1.8.11 (nf_tables): line 7: RULE_APPEND failed (No such file or directory): rule in chain ISTIO_OUTPUT" >&2; exit 4
  fi
done
`), 0o755)) //nolint:gosec // a program
	wrap := []string{
		"unshare", "--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" "$1" && mount --bind /dev/null "$2" && shift 2 && exec "$@"`,
		stub, program("iptables-nft-restore"), program("iptables-legacy-restore"),
	}
	for _, backend := range []string{"auto", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			n := newNode(t, backend)
			ns := netnstest.New(t)
			a := n.attach(caseOf(t, "fam-dual"), ns)
			a.Wrap = wrap
			status := a
			status.NetNS = ""
			out := a.Run(t, "ADD")
			if backend == "iptables" {
				code, says := out.Failure()
				assert.Equal(t, 101, code)
				assert.Contains(t, says, "RULE_APPEND failed")
				assert.Contains(t, says, "backend: nftables")
				code, says = status.Run(t, "STATUS").Failure()
				assert.Equal(t, 50, code)
				assert.Contains(t, says, "set backend: nftables, which works here")
				return
			}
			require.Zero(t, out.Exit, "%s", out.Stdout)
			assert.Contains(t, string(out.Stderr), "another backend applied the rules")
			recorded := 0
			for record, err := range attachment.Open(n.runDir).All() {
				require.NoError(t, err)
				assert.Equal(t, ruleset.BackendNftables, record.Backend)
				recorded++
			}
			assert.Equal(t, 1, recorded)
			require.Zero(t, a.Run(t, "CHECK").Exit)
			out = status.Run(t, "STATUS")
			require.Zero(t, out.Exit, "%s", out.Stdout)

			found := backends.Found{{Backend: ruleset.BackendIptablesNFT, Useless: true, Why: "it refuses"}, {Backend: ruleset.BackendNftables}}
			require.NoError(t, found.Write(n.runDir, ruleset.BackendAuto))
			require.NoError(t, os.Remove(calls))
			a.NetNS = netnstest.New(t).Path()
			out = a.Run(t, "ADD")
			require.Zero(t, out.Exit, "%s", out.Stdout)
			assert.NotContains(t, string(out.Stderr), "another backend applied the rules")
			require.Zero(t, status.Run(t, "STATUS").Exit)
			require.NoFileExists(t, calls, "nothing is tried that is known")
			found[1] = backends.Finding{Backend: ruleset.BackendNftables, Useless: true, Why: "no nf_tables"}
			require.NoError(t, found.Write(n.runDir, ruleset.BackendAuto))
			code, says := status.Run(t, "STATUS").Failure()
			assert.Equal(t, 50, code)
			assert.Contains(t, says, "no nf_tables")
		})
	}
}
