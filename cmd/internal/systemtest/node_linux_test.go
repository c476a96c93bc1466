package systemtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

const (
	inNode      = "MESHCNI_ACCEPTANCE_NODE"
	agentPath   = "github.com/meshcni/meshcni/cmd/meshcni-node"
	redirection = "ambient.istio.io/redirection"
	patience    = netnstest.Patience
)

// One backend of each kind; the variants of iptables take turns.
var (
	withLegacy = longtest.Of([]ruleset.Backend{ruleset.BackendIptablesLegacy, ruleset.BackendNftables}, ruleset.BackendIptablesNFT)
	withNFT    = longtest.Of([]ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendNftables}, ruleset.BackendIptablesLegacy)
)

var programs string // the directory of what was built

func TestMain(m *testing.M) {
	nodeproxytest.RunIfChild()
	os.Exit(main(m))
}

func main(m *testing.M) int {
	switch {
	case os.Geteuid() != 0: // each test says what it needs
	case os.Getenv(inNode) == "":
		return again()
	default:
		if err := enter(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	var err error
	if programs, err = os.MkdirTemp("", "acceptance"); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(programs) }()
	return kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}})
}

// again runs the tests in a node of their own.
func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...) //nolint:gosec // itself
	cmd.Env = append(os.Environ(), inNode+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL,
	}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// enter makes the new namespaces a node.
func enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
}

// node is a node with an agent, an API server, and pods in one namespace.
type node struct {
	*kubetest.Admin

	t        testing.TB
	server   *kubetest.Server
	dir      string
	name, ns string
	backend  ruleset.Backend
	flags    []string // more of the agent's
	agent    *proctest.Process
	health   string
}

func newNode(t testing.TB, backend ruleset.Backend, flags ...string) *node {
	t.Helper()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, podproctest.Cgroups, kubetest.Servers)
	s := kubetest.Shared(t)
	n := &node{t: t, server: s, Admin: s.Admin(t), backend: backend, flags: flags}
	n.ns = n.Namespace(t)
	n.name = "node-of-" + n.ns
	var err error
	n.dir, err = os.MkdirTemp("", "node") // t.TempDir may be too long for a socket's name
	require.NoError(t, err)
	t.Cleanup(func() {
		n.unmount()
		assert.NoError(t, os.RemoveAll(n.dir))
	})
	for _, d := range []string{"src", "bin", "net.d", "sa", "cache"} {
		require.NoError(t, os.Mkdir(n.in(d), 0o755))
	}
	plugin, err := binarytest.Build(programs, binarytest.Command)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(plugin, n.in("src/meshcni")))
	require.NoError(t, os.WriteFile(n.in("bin/ptp"), []byte("#!/bin/true\n"), 0o755)) //nolint:gosec // a program
	ca, err := os.ReadFile(s.CAFile())
	require.NoError(t, err)
	for name, text := range map[string]string{
		"sa/ca.crt": string(ca), "sa/token": kubetest.AdminToken,
		"net.d/10-net.conflist": `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp"}]}`,
	} {
		require.NoError(t, os.WriteFile(n.in(name), []byte(text), 0o600))
	}
	return n
}

func (n *node) in(elem string) string { return filepath.Join(n.dir, elem) }

// unmount unmounts what an agent that was killed left.
func (n *node) unmount() {
	text, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(n.t, err)
	for _, line := range slices.Backward(strings.Split(string(text), "\n")) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], n.dir+"/") {
			assert.NoError(n.t, unix.Unmount(f[4], unix.MNT_DETACH))
		}
	}
}

// args are the agent's flags.
func (n *node) args(command string, more ...string) []string {
	return append(append([]string{
		command, "--bin-source-dir=" + n.in("src"), "--cni-bin-dir=" + n.in("bin"), "--cni-conf-dir=" + n.in("net.d"), "--run-dir=" + n.in("run"),
		"--service-account-dir=" + n.in("sa"), "--cni-cache-dir=" + n.in("cache"), "--plugin-service-account=",
		"--kubernetes-service-host=127.0.0.1", fmt.Sprintf("--kubernetes-service-port=%d", n.server.Address().Port()),
		"--node-name=" + n.name, "--backend=" + string(n.backend), "--add-deadline=20s",
		"--zds-socket=" + n.in("z.sock"), "--ambient-verify-interval=1s", "--exclude-namespaces=kube-system",
	}, n.flags...), more...)
}

// program is the path of the agent.
func (n *node) program() string {
	n.t.Helper()
	path, err := binarytest.Build(programs, agentPath)
	require.NoError(n.t, err)
	return path
}

// start starts an agent beside any that runs, with more flags.
func (n *node) start(more ...string) *proctest.Process {
	n.t.Helper()
	p := n.launch(more...)
	require.NoError(n.t, p.WaitFor(patience, func() error {
		if text := n.get("/readyz"); !strings.HasPrefix(text, "ok\n") {
			return fmt.Errorf("not ready: %s", text)
		}
		return nil
	}))
	return p
}

// launch does not wait until the agent is ready.
func (n *node) launch(more ...string) *proctest.Process {
	n.t.Helper()
	port, err := proctest.FreePort()
	require.NoError(n.t, err)
	n.health = fmt.Sprintf("127.0.0.1:%d", port)
	p, err := proctest.Start(proctest.Options{Dir: n.dir, Name: fmt.Sprint("agent", port)}, n.program(),
		n.args("run", append([]string{"--ambient", "--metrics-address=" + n.health, "--health-address=" + n.health}, more...)...)...)
	require.NoError(n.t, err)
	n.agent = p
	n.t.Cleanup(func() {
		p.Kill()
		if n.t.Failed() {
			n.t.Log(p.Tail(20000))
		}
	})
	return p
}

// get asks the agent's server.
func (n *node) get(path string) string {
	resp, err := http.Get("http://" + n.health + path) //nolint:noctx // a test's
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(n.t, err)
	return string(text)
}

// run runs a command of the agent's program and returns its exit code and output.
func (n *node) run(command string, more ...string) (code int, stdout string) {
	n.t.Helper()
	args := n.args(command, more...)
	if command == "pods" || command == "status" {
		args = append([]string{command, "--run-dir=" + n.in("run")}, more...)
	}
	cmd := exec.Command(n.program(), args...) //nolint:gosec,noctx // our own
	cmd.Stderr = n.t.Output()
	out, err := cmd.Output()
	require.NotNil(n.t, cmd.ProcessState, "%v", err)
	return cmd.ProcessState.ExitCode(), string(out)
}

// proxy starts a proxy, and waits until the agent has it.
func (n *node) proxy(f nodeproxytest.Faults) *nodeproxytest.Proxy {
	n.t.Helper()
	p := nodeproxytest.StartProcess(n.t, n.proxyOptions(f))
	n.until("the proxy is ready", func() bool { return p.State().Connected })
	return p
}

// startProxy runs the same, and does not wait for the agent.
func (n *node) startProxy() *nodeproxytest.Proxy {
	n.t.Helper()
	return nodeproxytest.StartProcess(n.t, n.proxyOptions(nodeproxytest.Faults{}))
}

func (n *node) proxyOptions(f nodeproxytest.Faults) nodeproxytest.Options {
	return nodeproxytest.Options{Socket: n.in("z.sock"), Retry: 100 * time.Millisecond, Faults: f}
}

func (n *node) until(what string, is func() bool) {
	n.t.Helper()
	require.Eventually(n.t, is, patience, 5*time.Millisecond, what)
}

// states is what meshcni-node pods says, by name.
func (n *node) states() map[string]status.Pod {
	n.t.Helper()
	all, err := agentsock.Client{Path: n.in("run/agent.sock")}.Pods(n.t.Context())
	if err != nil {
		return nil
	}
	byName := map[string]status.Pod{}
	for _, p := range all {
		byName[p.Name] = p
	}
	return byName
}

// becomes waits until a pod has a state, and the annotation that goes with it.
func (n *node) becomes(p *pod, state status.State) {
	n.t.Helper()
	annotation := map[status.State]string{status.StateCaptured: "enabled"}[state]
	require.NoError(n.t, proctest.Poll(patience, func() error {
		is, api := n.states()[p.Name], n.Pod(n.t, n.ns, p.Name).Annotations[redirection]
		if is.State != state || api != annotation {
			return fmt.Errorf("%s is to be %s; the agent says %+v, its annotation %q", p.Name, state, is, api)
		}
		return nil
	}))
}

// pod is a pod of the node.
type pod struct {
	*corev1.Pod

	n     *node
	net   *netnsexec.NetNS
	addrs []netip.Addr
}

// pod makes a pod at the API server. A label of value "" is not set.
func (n *node) pod(name string, ns *netnsexec.NetNS, mode string, addrs ...string) *pod {
	n.t.Helper()
	p := &pod{n: n, net: ns, Pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.ns, Name: name, Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: n.name, ServiceAccountName: "cart", Containers: []corev1.Container{{Name: "app", Image: "app"}}},
	}}
	if mode != "" {
		p.Labels[ambient.DataplaneMode] = mode
	}
	for _, a := range addrs {
		p.addrs = append(p.addrs, netip.MustParseAddr(a))
	}
	return p
}

// create makes the pod known to the API server, as one that has not started.
func (p *pod) create() *pod {
	p.n.t.Helper()
	p.Pod = p.n.Create(p.n.t, p.Pod)
	return p
}

// runs gives the pod a process, and says at the API server that it runs.
func (p *pod) runs() *os.Process {
	p.n.t.Helper()
	p.Pod = p.n.Pod(p.n.t, p.n.ns, p.Name)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.addrs[0].String()}
	for _, a := range p.addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	p.Pod = p.n.SetStatus(p.n.t, p.Pod)
	return podproctest.Start(p.n.t, p.net, podproctest.Plain("kubepods/burstable/pod%s/5ad0d8f4c9b1", string(p.UID)))
}

// label patches the labels; nil removes one.
func (n *node) label(path string, labels map[string]any) {
	n.t.Helper()
	n.Do(n.t, http.MethodPatch, path, map[string]any{"metadata": map[string]any{"labels": labels}}, nil)
}

func (n *node) labelNamespace(mode any) {
	n.t.Helper()
	n.label("/api/v1/namespaces/"+n.ns, map[string]any{ambient.DataplaneMode: mode})
}

// attachment is what the runtime says to the plugin, with the configuration that the agent installed.
func (p *pod) attachment() binarytest.Attachment {
	p.n.t.Helper()
	text, err := os.ReadFile(p.n.in("net.d/10-net.conflist"))
	require.NoError(p.n.t, err)
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	require.NoError(p.n.t, json.Unmarshal(text, &list))
	require.Len(p.n.t, list.Plugins, 2)
	config := list.Plugins[1]
	config["cniVersion"], config["name"] = list.CNIVersion, list.Name
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.net.Fd())
	ips := []any{}
	for _, a := range p.addrs {
		bits := map[bool]int{true: 24, false: 64}[a.Is4()]
		ips = append(ips, map[string]any{"address": netip.PrefixFrom(a, bits).String(), "interface": 0})
	}
	config["prevResult"] = map[string]any{"cniVersion": list.CNIVersion, "interfaces": []any{map[string]any{"name": "eth0", "sandbox": path}}, "ips": ips}
	return binarytest.Attachment{
		Binary: p.n.in("bin/meshcni"), ContainerID: "sandbox-of-" + p.Name, NetNS: path,
		Namespace: p.n.ns, Pod: p.Name, UID: string(p.UID), Config: config,
	}
}

// within is the attachment with another deadline for its ADD.
func (p *pod) within(deadline string) binarytest.Attachment {
	p.n.t.Helper()
	a := p.attachment()
	a.Config.(map[string]any)["add_deadline"] = deadline //nolint:forcetypeassert // as made above
	return a
}

// add runs the plugin's ADD, which must succeed.
func (p *pod) add() *pod {
	p.n.t.Helper()
	out := p.attachment().Run(p.n.t, "ADD")
	require.Zero(p.n.t, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
	return p
}

var (
	volatile = regexp.MustCompile(`packets \d+ bytes \d+|\[\d+:\d+\]|Size in memory: \d+`)
	// empty is what is left of a kernel's own tables and chains without rules, which a look at them can make.
	empty = regexp.MustCompile(`^(table ip6? |\s*chain [A-Z]+ \{|\s*type |\s*\}|\s*$|#|\*|COMMIT|:[A-Z]+ ACCEPT|Error: ipv6: FIB|Dump)`)
)

// rules is what the kernel has in a namespace: rules, policy routing and table 100.
func (n *node) rules(ns *netnsexec.NetNS) string {
	n.t.Helper()
	var all []string
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
	for _, line := range []string{
		"nft list ruleset inet", "iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save",
		"ip rule", "ip -6 rule", "ip route show table all type local", "ip -6 route show table 100",
	} {
		out, _ := proctest.Command(path, strings.Fields(line)[0], strings.Fields(line)[1:]...).CombinedOutput()
		for l := range strings.Lines(string(out)) {
			if !empty.MatchString(l) {
				all = append(all, volatile.ReplaceAllString(l, ""))
			}
		}
	}
	slices.Sort(all) // the order of tables is that of their making
	return strings.Join(all, "")
}
