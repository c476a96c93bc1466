package demo

import (
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/kernel/podnetns/podproctest"
	"github.com/meshcni/meshcni/internal/testing/apiservertest"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

const podFile = "examples/pod.yaml"

// The cluster's network: a plugin that gives the pod its address, and the conflist before the agent changes it.
const (
	addrPlugin = `#!/bin/sh
[ "$CNI_COMMAND" = ADD ] || exit 0
nsenter --net="$CNI_NETNS" sh -c 'ip addr replace 10.244.1.5/24 dev eth0 && ip route replace default via 10.244.1.1' >&2 &&
echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "'"$CNI_NETNS"'"}],
	"ips": [{"interface": 0, "address": "10.244.1.5/24", "gateway": "10.244.1.1"}]}'
`
	conflist = `{
  "cniVersion": "1.0.0",
  "name": "demo",
  "plugins": [
    { "type": "demo-addr" }
  ]
}
`
)

// questions are packets of interest, by the form of netnstest.ParseProbe.
var questions = []struct{ what, probe string }{
	{"application to a service", "pod tcp 1000/1000 -> 10.96.5.5:80"},
	{"application to the internet", "pod tcp 1000/1000 -> 172.16.3.3:80"},
	{"application to an excluded range", "pod tcp 1000/1000 -> 198.51.100.10:443"},
	{"application to an excluded port", "pod tcp 1000/1000 -> 10.96.5.5:3306"},
	{"application's DNS query", "pod udp 1000/1000 -> 10.96.0.10:53"},
	{"application to itself", "pod tcp 1000/1000 -> 127.0.0.1:8080"},
	{"proxy to a service", "pod tcp 1337/1337 -> 10.96.5.5:80"},
	{"proxy to its own pod's service", "pod tcp 1337/1337 -> 10.244.1.5:8080"},
	{"client to the application", "out tcp 0/0 -> 10.244.1.5:8080"},
	{"client to an excluded port", "out tcp 0/0 -> 10.244.1.5:22"},
	{"client to the proxy's health port", "out tcp 0/0 -> 10.244.1.5:15021"},
}

// demo is what surrounds the plugin.
type demo struct {
	*testing.T
	world *netnstest.World
	api   *apiservertest.APIServer
	pod   *corev1.Pod
	node  installer.Config
	file  string // the conflist's path
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
	rt    *libcni.RuntimeConf
}

// TestDemo makes a pod-like network namespace and one outside, installs the plugin like the node agent, has the CNI
// library run it, sends packets, and prints where each ended up and why. Then two running pods join a node's proxy, and leave it.
func TestDemo(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("ip"), netnstest.Binary("iptables"), podproctest.Cgroups)
	d := newDemo(t)
	d.install()
	d.add()
	d.packets()
	d.again()
	d.tamper()
	d.refuse()
	d.uninstall()
	d.joins()
	d.say("\nNothing is left on this machine.")
}

// TestMain runs the node's proxy too, which is a process of this program.
func TestMain(m *testing.M) {
	nodeproxytest.RunIfChild()
	os.Exit(apart(m.Run))
}

func newDemo(t *testing.T) *demo {
	d := &demo{T: t, api: apiservertest.NewAPIServer(t)}
	text, err := os.ReadFile(filepath.Join(proctest.Root(), podFile))
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &d.pod))
	d.api.SetPod(d.pod)
	server, err := url.Parse(d.api.URL())
	require.NoError(t, err)

	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	d.node = installer.Default(meshcni.Identity{})
	d.node.BinSourceDir, d.node.CNIBinDirs = filepath.Join(dir, "image"), []string{bin}
	d.node.CNIConfDir, d.node.CNICacheDir = filepath.Join(dir, "net.d"), filepath.Join(dir, "cache")
	d.node.RunDir, d.node.ServiceAccountDir = filepath.Join(dir, "run"), filepath.Join(dir, "serviceaccount")
	d.node.KubernetesHost, d.node.KubernetesPort, d.node.Plugin.LogLevel = server.Hostname(), server.Port(), "error"
	d.file = filepath.Join(d.node.CNIConfDir, "10-demo.conflist")
	for path, text := range map[string]string{
		d.file:                          conflist,
		filepath.Join(bin, "demo-addr"): addrPlugin,
		filepath.Join(d.node.ServiceAccountDir, "token"):  d.api.Token(),
		filepath.Join(d.node.ServiceAccountDir, "ca.crt"): string(d.api.CA()),
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o700)) //nolint:gosec // one is a program
	}
	_, err = binarytest.Build(d.node.BinSourceDir, binarytest.Command)
	require.NoError(t, err)

	d.world = netnstest.NewWorld(t, netnstest.Options{Patience: 2 * time.Second})
	d.inPod("ip", "addr", "flush", "dev", "eth0") // the network's plugin gives the address
	d.cni = libcni.NewCNIConfigWithCacheDir(d.node.CNIBinDirs, d.node.CNICacheDir, nil)
	d.rt = &libcni.RuntimeConf{ContainerID: "demo", NetNS: d.world.Pod.Path(), IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", d.pod.Namespace}, {"K8S_POD_NAME", d.pod.Name}, {"K8S_POD_UID", string(d.pod.UID)},
	}}
	return d
}

func (d *demo) inPod(name string, args ...string) string {
	d.Helper()
	cmd := exec.Command(name, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(d, d.world.Pod.Run(cmd), "%s: %s", cmd, &out)
	return out.String()
}

func (d *demo) say(format string, args ...any)     { fmt.Printf(format+"\n", args...) }
func (d *demo) heading(format string, args ...any) { d.say("\n== "+format, args...) }

func (d *demo) install() {
	d.heading("The node agent puts the plugin on the node: binary, kubeconfig, then one entry in the network's conflist")
	steps, err := installer.Install(d.Context(), d.node, slog.New(slog.DiscardHandler))
	require.NoError(d, err)
	d.list, err = libcni.NetworkConfFromFile(d.file)
	require.NoError(d, err)
	text, err := os.ReadFile(d.file)
	require.NoError(d, err)
	d.say("%s, with our entry in it:", filepath.Base(steps.Target))
	for line := range strings.Lines(string(text)) {
		mark := " "
		if strings.Contains(line, `"`+d.node.Plugin.Type+`"`) {
			mark = "+"
		}
		fmt.Printf(" %s %s", mark, line)
	}
}

func (d *demo) add() {
	d.heading("Pod %s/%s of %s starts: the runtime's library adds it to the network", d.pod.Namespace, d.pod.Name, podFile)
	for _, p := range d.list.Plugins {
		d.say("   plugin %s", p.Network.Type)
	}
	start := time.Now()
	result, err := d.cni.AddNetworkList(d.Context(), d.list, d.rt)
	require.NoError(d, err)
	d.say("\nADD took %s for both plugins, and %d GET of the API server; %d rules are in the pod's namespace.",
		time.Since(start).Round(time.Millisecond), len(d.api.Requests()), len(d.rules()))
	d.say("The result, which is the first plugin's, unchanged:")
	require.NoError(d, result.PrintTo(os.Stdout))
	d.say("")
}

// rules are the pod's, without their counters.
func (d *demo) rules() (rules []string) {
	d.Helper()
	for line := range strings.Lines(d.inPod("iptables-save")) {
		if strings.HasPrefix(line, "-A ") {
			rules = append(rules, line)
		}
	}
	return rules
}

func (d *demo) packets() {
	d.heading("Packets, sent by real sockets, and what answered them")
	addr := netip.MustParseAddr("10.244.1.5")
	plan, err := istio.New().Plan(dialect.Subject{Pod: d.pod, Addrs: []netip.Addr{addr}}, dialect.Options{})
	require.NoError(d, err)
	var probes []netnstest.Probe
	for _, q := range questions {
		p, err := netnstest.ParseProbe(q.probe)
		require.NoError(d, err)
		probes = append(probes, p)
	}
	fates := d.world.Run(probes)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHO AND WHERE TO\tUSER\tDESTINATION\tANSWERED BY\tTHE PLUGIN'S RULES\tBECAUSE")
	for i, p := range probes {
		r, err := trace.Trace(plan.Ruleset, packet(p, addr))
		require.NoError(d, err)
		verdict := string(r.Verdict)
		answer, _, _ := strings.Cut(fates[p.String()], " orig=")
		if r.Verdict == trace.Redirect {
			verdict += fmt.Sprintf(" to %d", r.ToPort)
			assert.Equal(d, fmt.Sprintf("proxy:%d orig=%s", r.ToPort, p.Dst), fates[p.String()], p)
		} else {
			assert.Equal(d, trace.Pass, r.Verdict, p)
			assert.Regexp(d, fmt.Sprintf("^(app|proxy|out):%d(/udp)?$", p.Dst.Port()), answer, p)
		}
		reason, _, _ := strings.Cut(r.Reason, ": ")
		fmt.Fprintf(w, "%s\t%d\t%s %s\t%s\t%s\t%s\n", questions[i].what, p.UID, p.Proto, p.Dst, answer, verdict, reason)
	}
	require.NoError(d, w.Flush())
	if !d.Failed() {
		d.say("\nEach packet went where the tracer, which asks no kernel, predicted.")
	}
}

// packet is a probe as the tracer takes it.
func packet(p netnstest.Probe, pod netip.Addr) trace.Packet {
	packet := trace.Packet{Direction: trace.Out, Proto: ruleset.TCP, Dst: p.Dst, UID: p.UID, GID: p.GID, PodAddrs: []netip.Addr{pod}}
	if p.Proto == "udp" {
		packet.Proto = ruleset.UDP
	}
	if p.From != "pod" {
		packet.Direction, packet.Src = trace.In, netip.MustParseAddrPort("10.244.1.1:0")
	}
	return packet
}

func (d *demo) again() {
	d.heading("A second ADD, and CHECK")
	before := d.rules()
	_, err := d.cni.AddNetworkList(d.Context(), d.list, d.rt)
	require.NoError(d, err)
	assert.Equal(d, before, d.rules())
	require.NoError(d, d.cni.CheckNetworkList(d.Context(), d.list, d.rt))
	d.say("The second ADD left the same rules. CHECK finds them as wanted.")
}

func (d *demo) tamper() {
	d.heading("Somebody removes a rule: iptables -t nat -D ISTIO_OUTPUT 1")
	d.inPod("iptables", "-t", "nat", "-D", "ISTIO_OUTPUT", "1")
	err := d.cni.CheckNetworkList(d.Context(), d.list, d.rt)
	require.ErrorContains(d, err, "nat/ISTIO_OUTPUT:1 missing")
	d.say("CHECK says: %v", err)
}

func (d *demo) refuse() {
	const key = "traffic.sidecar.istio.io/excludeInboundPorts"
	d.heading("The same pod with %s: \"22,ssh\"", key)
	bad := d.pod.DeepCopy()
	bad.Annotations[key] = "22,ssh"
	d.api.SetPod(bad)
	_, err := d.cni.AddNetworkList(d.Context(), d.list, d.rt)
	require.ErrorContains(d, err, key)
	d.say("ADD refuses it, and the kubelet would show: %v", err)
	require.NoError(d, d.cni.DelNetworkList(d.Context(), d.list, d.rt))
	d.say("DEL ran.")
}

func (d *demo) uninstall() {
	d.heading("The node agent takes the plugin away")
	_, err := installer.Uninstall(d.Context(), d.node, slog.New(slog.DiscardHandler))
	require.NoError(d, err)
	text, err := os.ReadFile(d.file)
	require.NoError(d, err)
	require.Equal(d, conflist, string(text))
	require.NoFileExists(d, filepath.Join(d.node.CNIBinDirs[0], d.node.Plugin.Type))
	d.say("The network's conflist is, byte for byte, what it was; the plugin and its kubeconfig are gone.")
}
