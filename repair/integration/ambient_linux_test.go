package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/hostroottest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/waittest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// ambientHost is a host of its own for an agent with --ambient: its first process, with mounts and a network namespace of its own,
// and the directory in it that the agent's container mounts.
type ambientHost struct {
	init  int
	netns *netnsexec.NetNS
	nodeDirs
	zds string
}

// newAmbientHost starts a host with a variant of iptables.
func newAmbientHost(t testing.TB, d nodeDirs, variant string) ambientHost {
	t.Helper()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("unshare"))
	programs := map[string]string{"cat": "cat"}
	if variant != "none" {
		for name, file := range hostroottest.Iptables(variant) {
			programs[name] = file
		}
	}
	h := ambientHost{nodeDirs: d, netns: netnstest.New(t), zds: t.TempDir()}
	const script = `mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount -t tmpfs run "$0/run" && mkdir -p "$0/var" "$0/run/meshcni" &&
		ln -sfn /run "$0/var/run" && mount --bind "$1" "$0/run/meshcni" && mount -t tmpfs dev "$0/dev" && mknod -m 666 "$0/dev/null" c 1 3 &&
		mount --make-rshared "$0" && exec chroot "$0" /usr/sbin/cat`
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", //nolint:gosec // a test's
		"sh", "-c", script, hostroottest.New(t, programs), d.run)
	stdin, err := cmd.StdinPipe() // cat ends when nobody has the other end
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, h.netns.Do(cmd.Start))
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	_, err = io.WriteString(stdin, "x")
	require.NoError(t, err)
	_, err = stdout.Read(make([]byte, 1)) // it is cat now
	require.NoError(t, err)
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
	require.NoError(t, err)
	for _, file := range children {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			h.init = pid
		}
	}
	require.NotZero(t, h.init)
	return h
}

// startNodeProxy runs a proxy for the pods of the node until the test ends.
func startNodeProxy(t testing.TB, program string, h ambientHost) {
	t.Helper()
	cmd := exec.Command(program, "ztunnel", filepath.Join(h.zds, "ztunnel.sock")) //nolint:gosec // a test's
	cmd.Dir = t.TempDir()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// inAmbient is a pod that the runtime is starting.
func inAmbient(t testing.TB, w *world) (*netnsexec.NetNS, agentsock.Attachment) {
	t.Helper()
	pod := podFrom(t, "passed", w.ns, "starts", w.node)
	pod.Labels["istio.io/dataplane-mode"] = "ambient"
	pod.Annotations = nil
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	pod = w.Create(t, pod)
	ns := netnstest.New(t)
	for line := range strings.Lines("link set lo up\nlink add eth0 type veth peer name outside\nlink set eth0 up\nlink set outside up\naddr add 10.244.1.5/24 dev eth0\naddr add fd00:10:244::5/64 dev eth0 nodad") {
		cmd := exec.Command("ip", strings.Fields(line)...) //nolint:gosec // the lines above
		require.NoError(t, ns.Run(cmd), line)
	}
	waittest.Addrs(t, ns)
	return ns, agentsock.Attachment{
		ID:  attachment.ID{Network: "net", ContainerID: "c0ffee", IfName: "eth0"},
		Pod: status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}, Dialect: "ambient", NetNS: ns.Path(),
		Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")},
	}
}

// rulesIn are what a namespace has of rules and routes. A table of iptables-legacy that was once used stays until the namespace is gone,
// with its own chains and no rule; it is as good as none.
func rulesIn(t testing.TB, ns *netnsexec.NetNS) string {
	t.Helper()
	var all strings.Builder
	for _, line := range []string{"nft list ruleset", "iptables-legacy-save", "ip6tables-legacy-save", "ip rule show", "ip -6 rule show", "ip route show table 100", "ip -6 route show table 100"} {
		cmd := exec.Command(strings.Fields(line)[0], strings.Fields(line)[1:]...) //nolint:gosec // the lines above
		out, err := func() ([]byte, error) {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			cmd.Stdout = w
			err = ns.Run(cmd)
			_ = w.Close()
			text, _ := io.ReadAll(r)
			return text, err
		}()
		_ = err // a table that was never made
		for text := range strings.Lines(string(out)) {
			if !strings.HasSuffix(strings.Fields(line)[0], "-save") || strings.HasPrefix(text, "-") || strings.Contains(text, " - [") {
				all.WriteString(text)
			}
		}
	}
	return all.String()
}

// TestAmbientCapabilities has the agent capture a pod from its container, and release it: with just the capabilities that this takes,
// and with each of them missing. What fails then says why, and the pod's namespace is as it was. Nothing else of the host is
// needed than what the chart mounts.
func TestAmbientCapabilities(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, kubetest.Servers, netnstest.Binary("ip"), netnstest.Binary("nft"))
	program, proxy := buildProgram(t, "meshcni-node"), filepath.Join(t.TempDir(), "podtool")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", proxy, "github.com/meshcni/meshcni/e2e/cmd/podtool").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for variant, needed := range map[string][]string{
		"none":   {"NET_ADMIN", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"}, // the host's mounts keep pods' namespaces
		"nft":    hosts["nft"],
		"legacy": hosts["legacy"], // no SYS_MODULE: the kernel loads a table's module itself, for whom has NET_ADMIN
	} {
		attach := func(t *testing.T, caps []string) (p *process, h ambientHost, ns *netnsexec.NetNS, before string, err error) {
			w := newWorld(t)
			h = newAmbientHost(t, newNodeDirs(t, w.s, kubetest.AdminToken), variant)
			startNodeProxy(t, proxy, h)
			ns, a := inAmbient(t, w)
			before = rulesIn(t, ns)
			c := agentContainer(t, w.s, h.nodeDirs, program, "--ambient", "--node-name="+w.node)
			c.mounts = append(c.mounts, mount{h.zds, "/var/run/ztunnel", false})
			c.env = append(c.env, "MESHCNI_REPAIR_HOST_ROOT=/proc/1/root")
			c.init, c.caps = h.init, caps
			p = c.start(t)
			agent := agentsock.Client{Path: filepath.Join(h.run, agentsock.Name)}
			eventually(t, "the agent has an answer", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // as long as it says nothing, it is not its turn
				defer cancel()
				_, err = agent.Attach(ctx, a, ns)
				for says := range strings.Lines(p.get(t, "/readyz")) { // warnings are about pods
					if err != nil && strings.HasPrefix(says, "ambient-failed: ") {
						err = errors.New(says) // it could not even begin
						return true
					}
				}
				var step *agentsock.StepError
				return err == nil || errors.As(err, &step) && !strings.Contains(err.Error(), "no proxy is connected")
			})
			return p, h, ns, before, err
		}
		journal := func(h ambientHost) []string {
			entries, _ := filepath.Glob(filepath.Join(h.run, "netns", "*"))
			return entries
		}
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			p, h, ns, before, err := attach(t, needed)
			require.NoError(t, err)
			assert.NotEqual(t, before, rulesIn(t, ns))
			assert.NotEmpty(t, journal(h), "its namespace outlives the container")
			assert.Contains(t, rulesIn(t, h.netns), "169.254.7.127", "the source of the host's probes")
			left, err := agentsock.Client{Path: filepath.Join(h.run, agentsock.Name)}.Release(t.Context(), agentsock.ReleaseOptions{})
			require.NoError(t, err)
			assert.Empty(t, left)
			assert.Equal(t, before, rulesIn(t, ns))
			assert.NotContains(t, p.log.String(), "permitted")
		})
		for _, lost := range needed {
			t.Run(variant+" without "+lost, func(t *testing.T) {
				t.Parallel()
				p, h, ns, before, err := attach(t, without(needed, lost))
				if variant == "none" && lost == "SYS_CHROOT" {
					require.NoError(t, err, "only a restart has more to do")
					assert.Empty(t, journal(h))
					assert.Contains(t, p.log.String(), "a restart will have to find network namespaces anew")
					return
				}
				if lost == "NET_RAW" {
					require.NoError(t, err, "what iptables-legacy is refused, nftables is not")
					assert.NotEqual(t, before, rulesIn(t, ns))
					return
				}
				require.Error(t, err)
				assert.Regexp(t, "(?i)permi", err.Error(), "it says why")
				assert.Equal(t, before, rulesIn(t, ns))
			})
		}
	}
}
