package runtime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/hookfile"
)

// preinstalled is where the agent puts the plugin for the runtime to start it by itself.
var preinstalled = hookfile.In("/opt/nri/plugins", "meshcni")

// preinstalledPid is the process that the runtime has started; 0: there is none.
func preinstalledPid() int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		text, _ := os.ReadFile(path)
		if strings.TrimRight(string(text), "\x00") == preinstalled.Link {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	return 0
}

// preinstalledRuns waits for the process, which is another than that before, and returns it.
func preinstalledRuns(t testing.TB, before int) (pid int) {
	t.Helper()
	eventually(t, "the runtime has started the plugin", func() error {
		if pid = preinstalledPid(); pid == 0 || pid == before {
			return fmt.Errorf("process %d", pid)
		}
		return nil
	})
	return pid
}

// requireNoPreinstalled waits until the process has ended, which no file of it is left to start again.
func requireNoPreinstalled(t testing.TB) {
	t.Helper()
	assert.NoFileExists(t, preinstalled.Link)
	assert.NoDirExists(t, preinstalled.Dir)
	eventually(t, "the process has ended", func() error {
		if pid := preinstalledPid(); pid != 0 {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
}

// testPreinstalled shows the plugin that the runtime starts by itself, as the manifest has it, while the agent is away and the network's list has lost our
// entry: pods of the mesh are captured before their first container, or wait, and nobody else does.
func testPreinstalled(t *testing.T, k kind) {
	n := newNode(t, k, ptp(false))
	a := n.runAgent(t)
	eventually(t, "it is there", func() error { _, err := os.Stat(preinstalled.Link); return err })
	require.NoError(t, a.KillContainer(t.Context(), agentName))
	ns := n.namespace(t)
	if !k.hook { // a runtime that starts no such plugin is as it was
		n.Kill()
		require.NoError(t, n.Boot())
		requireCaptured(t, n.run(t, meshed(ns, "web")))
		assert.Zero(t, preinstalledPid())
		return
	}
	require.NoError(t, os.WriteFile(networkFile, []byte(n.named(ptp(false))), 0o600)) // the entry is lost
	n.Kill()
	require.NoError(t, n.Boot())
	pid := preinstalledRuns(t, 0)
	s := n.run(t, early(ns, "first"))
	assert.Contains(t, firstFate(t, s), proxied, "the first pod after the runtime's start, by what the API server says")
	requireCaptured(t, n.run(t, meshed(ns, "second")))
	requireFree(t, n.run(t, plain(ns, "plain")))
	records, err := filepath.Glob(filepath.Join(runDir, "attachments", "meshcni.nri@"+s.ID+"@*.json"))
	require.NoError(t, err)
	require.Len(t, records, 1)

	// A newer program counts from the runtime's next start.
	text, err := os.ReadFile(preinstalled.Program)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(preinstalled.Program+".new", text, 0o755))
	require.NoError(t, os.Rename(preinstalled.Program+".new", preinstalled.Program))
	assert.Contains(t, firstFate(t, n.run(t, early(ns, "replaced"))), proxied)
	n.Kill()
	eventually(t, "it ends with its runtime, however that does", func() error {
		if pid := preinstalledPid(); pid != 0 {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
	require.NoError(t, n.Boot())
	pid = preinstalledRuns(t, pid)
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	require.NoError(t, err)
	assert.Equal(t, preinstalled.Program, exe)
	n.waitNetworks(t, func(networks string) bool { return strings.Contains(networks, n.network()) })
	assert.Contains(t, firstFate(t, n.run(t, early(ns, "newer"))), proxied)
	own, all := residents(t, pid)
	t.Logf("%d KiB of its own, %d KiB resident with its program", own, all)

	// Killed, it is not started again before the runtime is; the agent is away too.
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "it has ended", func() error {
		if preinstalledPid() == pid {
			return errors.New("it runs")
		}
		return nil
	})
	requireFree(t, n.run(t, meshed(ns, "open")))

	// After a loss of power there are no credentials either: pods of the mesh wait, others do not.
	require.NoError(t, n.RemoveAll(t.Context()))
	n.reboot(t)
	preinstalledRuns(t, pid)
	require.NoFileExists(t, kubeconfig)
	n.waitNetworks(t, func(networks string) bool { return strings.Contains(networks, n.network()) })
	pod := n.create(t, early(ns, "waits"))
	waits, err := n.RunSandbox(t.Context(), pod)
	require.NoError(t, err)
	require.Error(t, waits.StartContainer(t.Context(), &pod.Spec.Containers[0], nil))
	dns := plain("kube-system", "dns")
	dns.UID = "5e0b5f4e-0000-4000-8000-000000000001" // the API server does not have it
	outside, err := n.RunPod(t.Context(), dns, nil)
	require.NoError(t, err, "a pod of an excluded namespace")
	requireFree(t, outside)
	require.ErrorContains(t, waits.StartContainer(t.Context(), &pod.Spec.Containers[0], nil), "kubeconfig")
	require.NoError(t, os.MkdirAll(runDir, 0o755))
	again, err := a.Again(t.Context(), a.volumes)
	require.NoError(t, err, "the agent's own")
	a.sandbox = again // whose log to show
	for i := range pod.Spec.Containers {
		eventually(t, "the same sandbox goes on", func() error { return waits.StartContainer(t.Context(), &pod.Spec.Containers[i], nil) })
	}
	assert.Contains(t, firstFate(t, waits), proxied)

	// An uninstall ends it, and pods start without it at once.
	a.stop(t)
	a.uninstall(t.Context(), t, a.Pod)
	requireNoPreinstalled(t)
	requireFree(t, n.run(t, meshed(ns, "after")))
}

// residents is what a process has of its own, and all that is resident, its program's file among it, in KiB.
func residents(t testing.TB, pid int) (own, all int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		switch words := strings.Fields(line); {
		case len(words) != 3:
		case words[0] == "RssAnon:":
			own, _ = strconv.Atoi(words[1])
		case words[0] == "VmRSS:":
			all, _ = strconv.Atoi(words[1])
		}
	}
	return own, all
}
