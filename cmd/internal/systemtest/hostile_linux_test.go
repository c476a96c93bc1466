package systemtest

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/internal/testing/nfttest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/internal/text/visible/visibletest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestUnreadableProcess: of a process whose control groups cannot be read an agent does not know which pod's it is, and finds all others'.
func TestUnreadableProcess(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	hidden := n.pod("hidden", small(t, "10.244.1.6"), "ambient", "10.244.1.6").create()
	unreadable := hidden.runs()
	deep := n.pod("deep", small(t, "10.244.1.7"), "ambient", "10.244.1.7").create()
	deep.runs()
	podproctest.StartDeep(t, deep.net, podproctest.Plain("kubepods/burstable/pod%s/5ad0d8f4c9b2", string(deep.UID)))
	victim := n.pod("victim", small(t, "10.244.1.5"), "ambient", "10.244.1.5").create()
	victim.runs()

	// On newer kernels no path of groups is too long to be read, so another error stands in: that of the memory at address 0.
	groups := fmt.Sprintf("/proc/%d/cgroup", unreadable.Pid)
	require.NoError(t, unix.Mount(fmt.Sprintf("/proc/%d/mem", unreadable.Pid), groups, "", unix.MS_BIND, ""))
	unhide := func() { _ = unix.Unmount(groups, unix.MNT_DETACH) }
	t.Cleanup(unhide)
	_, err := os.ReadFile(groups)
	require.ErrorIs(t, err, unix.EIO)

	n.start() // which has neither seen the pods start nor remembers them
	n.proxy(nodeproxytest.Faults{})
	n.becomes(victim, status.StateCaptured)
	n.becomes(deep, status.StateCaptured)
	n.until("the hidden pod's own state says why", func() bool {
		s := n.states()["hidden"]
		return s.State == status.StateWaiting && strings.Contains(s.Detail, fmt.Sprintf("look at process %d: ", unreadable.Pid))
	})
	unhide()
	n.becomes(hidden, status.StateCaptured)
}

// TestSilentProxy: the agent ends a connection that says no hello. That of the proxy stays.
func TestSilentProxy(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	proxy := n.proxy(nodeproxytest.Faults{})
	silent, err := net.Dial("unixpacket", n.in("z.sock"))
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	require.NoError(t, silent.SetReadDeadline(time.Now().Add(patience)))
	_, err = silent.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	p := n.pod("cart", small(t, "10.244.1.5"), "ambient", "10.244.1.5").create().add()
	p.runs()
	n.becomes(p, status.StateCaptured)
	assert.Len(t, proxy.State().Pods, 1)
}

// TestForgedLines: what a tenant writes to its pods and their rules makes no line of what the built programs print. JSON has it as it is.
func TestForgedLines(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	n.start()
	n.proxy(nodeproxytest.Faults{})
	hostile := strings.NewReplacer("\x00", "", "\xff", "").Replace(visibletest.Hostile) // which no annotation and no comment can have
	p := n.pod("evil", small(t, "10.244.1.5"), "ambient", "10.244.1.5")
	p.Annotations["ambient.istio.io/dns-capture"] = hostile
	p.create().runs()
	n.until("the pod is refused", func() bool { return strings.Contains(n.states()["evil"].Detail, "FORGED") })
	code, table := n.run("pods")
	assert.Equal(t, 1, code)
	visibletest.Lines(t, "pods", table)
	assert.Equal(t, 2, strings.Count(table, "\n"), table)
	code, said := n.run("status")
	assert.Equal(t, 1, code)
	visibletest.Lines(t, "status", said)
	_, text := n.run("pods", "--output=json")
	var s struct{ Pods []status.Pod }
	require.NoError(t, json.Unmarshal([]byte(text), &s), text)
	require.Len(t, s.Pods, 1)
	assert.Equal(t, n.states()["evil"].Detail, s.Pods[0].Detail)

	require.NoError(t, nfttest.Add(p.net, nfttest.Chain{Family: unix.NFPROTO_INET, Table: "other", Name: hostile, Jumps: []string{""}}))
	at := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.net.Fd())
	for _, line := range [][]string{{"-N", "ISTIO_OUTPUT"}, {"-A", "ISTIO_OUTPUT", "-m", "comment", "--comment", hostile, "-j", "RETURN"}} {
		out, err := proctest.Command(at, "iptables-nft", append([]string{"-t", "nat"}, line...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	program, err := binarytest.Build(programs, "github.com/meshcni/meshcni/cmd/meshcni-redirect")
	require.NoError(t, err)
	show := func(more ...string) string {
		t.Helper()
		cmd := exec.Command(program, append([]string{"show", "--netns=" + at}, more...)...) //nolint:gosec,noctx // our own
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	shown := show()
	visibletest.Lines(t, "show", shown)
	require.Contains(t, shown, `x\nFORGED: all is well\rFORGED\u000bFORGED`)
	var rules []struct{ Chain, Rule string }
	require.NoError(t, json.Unmarshal([]byte(show("--output=json")), &rules))
	chains, comments := 0, 0
	for _, r := range rules {
		if r.Chain == hostile {
			chains++
		}
		if strings.Contains(r.Rule, hostile) {
			comments++
		}
	}
	assert.Equal(t, []int{1, 1}, []int{chains, comments}, "%v", rules)
}
