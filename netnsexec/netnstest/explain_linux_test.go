package netnstest_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/failtest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// failEnv says how a child of [TestFailureIsExplained] ends.
const failEnv = "NETNSTEST_CHILD"

// TestChild fails if the environment asks for it.
func TestChild(t *testing.T) {
	how := os.Getenv(failEnv)
	if how == "" {
		return
	}
	netnstest.Require(t, netnstest.Root, netnstest.Binary("nft"), netnstest.Binary("ip"))
	log := filepath.Join(t.TempDir(), "plugin.log")
	failtest.Tail(t, log)
	failtest.Tail(t, filepath.Join(t.TempDir(), "none.log"))
	ns := netnstest.New(t)
	for _, command := range [][]string{
		{"ip", "address", "add", "192.0.2.7/32", "dev", "lo"},
		{"ip", "route", "add", "198.51.100.0/24", "dev", "lo"},
		{"ip", "rule", "add", "fwmark", "0x539", "lookup", "133"},
		{"nft", "add table ip t; add chain ip t out { type nat hook output priority -100; }; add rule ip t out tcp dport 8080 counter redirect to :15001"},
	} {
		out, err := exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + ns.Path(), "--"}, command...)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	require.NoError(t, ns.Do(func() error {
		l, err := net.Listen("tcp4", "127.0.0.1:15001")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		conn, err := net.Dial("tcp4", "192.0.2.7:8080")
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
		return err
	}))
	var lines strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&lines, "record %d\n", i)
	}
	require.NoError(t, os.WriteFile(log, []byte(lines.String()), 0o600))
	if how == "fail" {
		t.Error("this is what went wrong")
	}
}

// TestFailureIsExplained runs a test that fails, and one that does not, and reads what they print.
func TestFailureIsExplained(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.Binary("nft"), netnstest.Binary("ip"), netnstest.Binary("nsenter"))
	for _, how := range []string{"fail", "pass"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChild$", "-test.v")
		cmd.Env = append(os.Environ(), failEnv+"="+how)
		text, err := cmd.CombinedOutput()
		out := string(text)
		if how == "pass" {
			require.NoError(t, err, out)
			assert.NotContains(t, out, "network namespace", "what passes is not explained")
			assert.NotContains(t, out, "record ")
			continue
		}
		require.Error(t, err, out)
		for _, want := range []string{
			"this is what went wrong", "network namespace netns:", "192.0.2.7/32", "198.51.100.0/24 dev lo", "lookup 133",
			"tcp dport 8080 counter packets 1", "redirect to :15001", "none.log: no such file or directory",
		} {
			assert.Contains(t, out, want)
		}
		assert.Regexp(t, `tcp.*src=192\.0\.2\.7 dst=192\.0\.2\.7 sport=\d+ dport=8080.*src=127\.0\.0\.1`, out, "the tracked connection")
		assert.Regexp(t, `plugin\.log:\n\s+… record`, out)
		assert.Contains(t, out, "record 999\n")
		assert.NotContains(t, out, "record 800\n", "of a long log only the end is told")
	}
}
