package integration

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/testing/hostroottest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// nodeDirs are a host's directories that the agent's container mounts.
type nodeDirs struct{ bin, conf, cache, run, sa string }

const ptpList = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp"}]}`

func newNodeDirs(t testing.TB, s *kubetest.Server, token string) nodeDirs {
	t.Helper()
	dir := t.TempDir()
	d := nodeDirs{dir + "/bin", dir + "/net.d", dir + "/cache", dir + "/run", dir + "/sa"}
	for _, path := range []string{d.bin, d.conf, d.cache, d.run, d.sa} {
		require.NoError(t, os.Mkdir(path, 0o755))
	}
	ca, err := os.ReadFile(s.CAFile())
	require.NoError(t, err)
	for name, text := range map[string]string{
		d.sa + "/ca.crt": string(ca), d.sa + "/token": token, d.file(): ptpList,
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	require.NoError(t, os.WriteFile(d.bin+"/ptp", []byte("#!/bin/true\n"), 0o755)) //nolint:gosec // a program
	return d
}

// file is the network that the runtime loads.
func (d nodeDirs) file() string { return d.conf + "/10-net.conflist" }

func (d nodeDirs) list(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(d.file())
	require.NoError(t, err)
	return string(text)
}

// agentContainer is the DaemonSet's container.
func agentContainer(t testing.TB, s *kubetest.Server, d nodeDirs, program string, args ...string) container {
	t.Helper()
	plugin := filepath.Join(t.TempDir(), "meshcni")
	require.NoError(t, os.WriteFile(plugin, []byte("no program"), 0o755)) //nolint:gosec // as a program is
	return container{
		files: map[string]string{"/usr/local/bin/meshcni-node": program, "/opt/meshcni/bin/meshcni": plugin},
		mounts: []mount{
			{d.bin, "/host/opt/cni/bin", false}, {d.conf, "/host/etc/cni/net.d", false}, {d.cache, "/host/var/lib/cni", true},
			{d.run, "/var/run/meshcni", false}, {d.sa, "/var/run/secrets/kubernetes.io/serviceaccount", true},
		},
		env: []string{"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=" + strconv.Itoa(int(s.Address().Port()))},
		// Detection needs rights of its own, which most of these agents are not given.
		args: append([]string{"/usr/local/bin/meshcni-node", "run", "--detect=false"}, args...),
	}
}

// installCaps are those that the agent may be given to install.
var installCaps = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER"}

func without(all []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(c string) bool { return c == one })
}

// TestInstallCapabilities: what the agent needs to install and to uninstall is the owner's right to the directories,
// which user 0 has without any capability where they are root's.
func TestInstallCapabilities(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, kubetest.Servers)
	s := kubetest.Shared(t)
	program := buildProgram(t, "meshcni-node")
	const stranger = 1000
	for name, c := range map[string]struct {
		prepare func(d nodeDirs) error
		needs   string // besides what user 0 has: the agent says so
	}{
		"root's":        {func(nodeDirs) error { return nil }, ""},
		"root's alone":  {func(d nodeDirs) error { return errors.Join(os.Chmod(d.bin, 0o700), os.Chmod(d.conf, 0o700)) }, ""},
		"old label":     {func(d nodeDirs) error { return unix.Setxattr(d.file(), "security.selinux", []byte("etc_t"), 0) }, ""},
		"unpacked bin":  {func(d nodeDirs) error { return os.Chown(d.bin, stranger, stranger) }, "DAC_OVERRIDE"},
		"another's dir": {func(d nodeDirs) error { return os.Chown(d.conf, stranger, stranger) }, "DAC_OVERRIDE"},
		"another's file": {func(d nodeDirs) error {
			return errors.Join(os.Chown(d.file(), stranger, stranger), os.Chmod(d.file(), 0o644)) //nolint:gosec // as they are
		}, "CHOWN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newNodeDirs(t, s, kubetest.AdminToken)
			require.NoError(t, c.prepare(d))
			container := agentContainer(t, s, d, program, "--uninstall-on-exit")
			if c.needs != "" {
				container.caps = without(installCaps, c.needs)
				p := container.start(t)
				eventually(t, "it says what it needs", func() bool { return strings.Contains(p.get(t, "/readyz"), "CAP_"+c.needs) })
				assert.Equal(t, ptpList, d.list(t))
				require.NoError(t, p.cmd.Process.Signal(unix.SIGTERM))
				_ = p.wait()
				container.caps = []string{c.needs}
			}
			var before, after unix.Stat_t
			require.NoError(t, unix.Stat(d.file(), &before))
			p := container.start(t)
			eventually(t, "ready", func() bool { return p.get(t, "/readyz") == "ok\n" })
			assert.Contains(t, d.list(t), `"meshcni"`)
			require.NoError(t, unix.Stat(d.file(), &after))
			assert.Equal(t, []uint32{before.Uid, before.Gid, before.Mode}, []uint32{after.Uid, after.Gid, after.Mode})
			require.NoError(t, p.cmd.Process.Signal(unix.SIGTERM))
			require.NoError(t, p.wait())
			assert.Equal(t, ptpList, d.list(t))
			left, err := os.ReadDir(d.bin)
			require.NoError(t, err)
			assert.Len(t, left, 1, "the network's own plugin")
		})
	}
}

// hosts are what a host has of iptables, and what repair needs there besides installCaps. The raw socket is that of
// iptables-legacy.
var hosts = map[string][]string{
	"nft":    {"NET_ADMIN", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"},
	"legacy": {"NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"},
	"none":   {"NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE"},
}

// missed are those of them whose lack is tried: each once, with the tag long on each host.
func missed(variant string) []string {
	once := map[string][]string{"nft": hosts["nft"], "legacy": {"NET_RAW"}}
	rest := slices.DeleteFunc(slices.Clone(hosts[variant]), func(c string) bool { return slices.Contains(once[variant], c) })
	return longtest.Of(once[variant], rest...)
}

// newHost is the root of a host with a variant of iptables.
func newHost(t testing.TB, variant string) (root string) {
	t.Helper()
	programs := map[string]string{"cat": "cat"}
	if variant != "none" {
		maps.Copy(programs, hostroottest.Iptables(variant))
	}
	return hostroottest.Process(t, hostroottest.New(t, programs))
}

// TestRepairCapabilities repairs a pod from the agent's container, in which is no iptables, with that of the host: with
// just the capabilities that it takes, and with each of them missing.
func TestRepairCapabilities(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, podproctest.Cgroups)
	program := buildProgram(t, "meshcni-node")
	for variant, needed := range hosts {
		root := newHost(t, variant)
		repair := func(t *testing.T, caps []string) (p *process, fates func() map[string]string) {
			w := newWorld(t)
			pod := live(t, w, "crash-loop", "broken")
			c := agentContainer(t, w.s, newNodeDirs(t, w.s, kubetest.AdminToken), program, "--repair=repair", "--node-name="+w.node)
			c.env = append(c.env, "MESHCNI_REPAIR_HOST_ROOT="+root)
			c.caps = caps
			return c.start(t), func() map[string]string { return pod.fates(t) }
		}
		count := func(t *testing.T, p *process, outcome, reason string) float64 {
			return p.metric(t, fmt.Sprintf(`meshcni_repair_outcomes_total{action="repair",outcome=%q,reason=%q}`, outcome, reason))
		}
		repaired := func(t *testing.T, p *process) {
			// On a busy machine an attempt may be ended after a second, with the rules in the kernel and nobody told: the next one finds them.
			eventually(t, "it is repaired", func() bool { return count(t, p, "repaired", "check-failed")+count(t, p, "intact", "check-failed") > 0 })
		}
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			p, fates := repair(t, needed)
			repaired(t, p)
			assert.Equal(t, captured, fates())
		})
		for _, lost := range missed(variant) {
			t.Run(variant+" without "+lost, func(t *testing.T) {
				t.Parallel()
				p, fates := repair(t, without(needed, lost))
				if lost == "NET_RAW" { // what iptables-legacy is refused, nftables is not
					repaired(t, p)
					assert.Equal(t, captured, fates())
					return
				}
				eventually(t, "it fails", func() bool { return count(t, p, "failed", "error") > 0 })
				assert.Equal(t, bypassing, fates())
			})
		}
	}
}

// TestVerifyInAContainer: rules that the plugin has made with the host's iptables are read with it. Without the host's
// root the agent says that it cannot.
func TestVerifyInAContainer(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, podproctest.Cgroups)
	program := buildProgram(t, "meshcni-node")
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			pod := live(t, w, "recovered", "web-0")
			putRules(t, ruleset.Backend("iptables-"+variant), pod)
			w.Remove(t, w.ns, "well-0") // it has no process to verify
			defer w.make(t, "passed", "well-0")
			for _, root := range []string{newHost(t, variant), ""} {
				c := agentContainer(t, w.s, newNodeDirs(t, w.s, kubetest.AdminToken), program, "--node-name="+w.node)
				c.env = append(c.env, "MESHCNI_REPAIR_HOST_ROOT="+root, "MESHCNI_REPAIR_VERIFY_INTERVAL=100ms")
				c.caps = hosts[variant]
				p := c.start(t)
				result := func(what string) float64 {
					return p.metric(t, fmt.Sprintf("meshcni_verifications_total{result=%q}", what))
				}
				if root == "" {
					eventually(t, "it cannot tell", func() bool { return result("variant") > 0 })
					continue
				}
				eventually(t, "intact", func() bool { return result("intact") >= 2 })
				assert.Zero(t, result("variant")+result("drifted")+result("failed"))
				now, peak := rss(t, p.cmd.Process.Pid)
				t.Logf("RSS %.1f MB, %.1f MB at most", now, peak)
			}
		})
	}
}
