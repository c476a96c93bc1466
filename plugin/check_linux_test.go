//go:build linux

package plugin_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

var allBackends = append([]string{"nftables"}, variants...)

// in runs programs in the namespace, each as a line.
func in(t testing.TB, ns *netnsexec.NetNS, lines ...string) {
	t.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		var output bytes.Buffer
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Stdout, cmd.Stderr = &output, &output
		require.NoError(t, ns.Run(cmd), "%s: %s", line, &output)
	}
}

// checks runs CHECK and returns the code and the record of its decision.
func checks(t testing.TB, a binarytest.Attachment) (code int, message string, decision object) {
	t.Helper()
	out := a.Run(t, "CHECK")
	assert.Equal(t, out.Exit == 0, len(out.Stdout) == 0, string(out.Stdout))
	for line := range bytes.Lines(out.Stderr) {
		var r object
		if json.Unmarshal(line, &r) == nil && r["msg"] == "decision" {
			require.Nil(t, decision, "one record of a decision")
			decision = r
		}
	}
	code, message = out.Failure()
	return code, message, decision
}

func passes(t testing.TB, a binarytest.Attachment, outcome string, detail ...string) {
	t.Helper()
	code, message, decision := checks(t, a)
	require.Zero(t, code, message)
	require.NotNil(t, decision)
	assert.Equal(t, outcome, decision["outcome"], decision)
	assert.Equal(t, "INFO", decision["level"])
	assert.EqualValues(t, 0, decision["api_calls"])
	assert.NotEmpty(t, decision["reason"])
	for _, d := range detail {
		assert.Contains(t, decision["detail"], d)
	}
}

func differs(t testing.TB, a binarytest.Attachment, names ...string) {
	t.Helper()
	code, message, decision := checks(t, a)
	require.Equal(t, 100, code, message)
	assert.Equal(t, "failed", decision["outcome"])
	for _, n := range names {
		assert.Contains(t, message, n)
	}
}

// TestCheckNeedsNobody: CHECK answers when the API server, its credentials, the pod as it was and the dialect's name are
// all gone, without a request.
func TestCheckNeedsNobody(t *testing.T) {
	for _, backend := range allBackends {
		t.Run(backend, func(t *testing.T) {
			n := newNode(t, backend)
			pod := caseOf(t, "tproxy-dual")
			a := n.attach(pod, netnstest.New(t))
			add(t, a)
			requests := len(n.server.Requests())
			passes(t, a, "checked", "by ADD")

			pod.Annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "nonsense"
			pod.Spec.Containers = nil
			n.server.SetPod(pod)
			passes(t, a, "checked")
			n.server.DeletePod(pod.Namespace, pod.Name)
			passes(t, a, "checked")
			assert.Len(t, n.server.Requests(), requests, "none by CHECK")
			n.server.Close()
			require.NoError(t, os.Remove(n.kubeconfig))
			passes(t, a, "checked")

			config := a.Config.(object)
			a.Config = set(config, "dialect", "kuma", "uncaptured_family", "drop", "backend", "auto")
			passes(t, a, "checked")
			a.Config = set(config, "dialect", "of tomorrow", "backend", "of tomorrow", "add_deadline", 7)
			passes(t, a, "checked")
			a.Config = set(config, "cniVersion", "0.3.1", "prevResult", nil)
			code, message := a.Run(t, "CHECK").Failure()
			assert.Equal(t, 1, code, message)

			a.Config = config
			a.NetNS = fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
			code, message, _ = checks(t, a)
			assert.Equal(t, 8, code, message)
		})
	}
}

// TestCheckSeesWhatIsOutOfForce: each way in which redirection may be lost on the kernel, and those that lose nothing.
func TestCheckSeesWhatIsOutOfForce(t *testing.T) {
	netnstest.Require(t, netnstest.Binary("nft"), netnstest.Binary("ip"))
	iptables := func(variant string) map[string][]string {
		four := strings.Replace(variant, "iptables-", "iptables-", 1) + " "
		six := strings.Replace(variant, "iptables", "ip6tables", 1) + " "
		return map[string][]string{
			"our chains flushed":   {four + "-t mangle -F ISTIO_INBOUND"},
			"one rule taken out":   {six + "-t nat -D ISTIO_OUTPUT 1"},
			"the jump removed":     {four + "-t nat -D OUTPUT -j ISTIO_OUTPUT"},
			"its IPv6 jump":        {six + "-t mangle -D PREROUTING -j ISTIO_PREROUTING"},
			"all of it flushed":    {four + "-t nat -F", four + "-t mangle -F"},
			"the policy rule gone": {"ip rule del lookup 133"},
			"the IPv6 route gone":  {"ip -6 route flush table 133"},
		}
	}
	damages := map[string]map[string][]string{
		"iptables-nft":    iptables("iptables-nft"),
		"iptables-legacy": iptables("iptables-legacy"),
		"nftables": {
			"a chain flushed":      {"nft flush chain inet istio nat/ISTIO_OUTPUT"},
			"the table flushed":    {"nft flush table inet istio"},
			"the table dropped":    {"nft delete table inet istio"},
			"made dormant":         {"nft add table inet istio { flags dormant ; }"},
			"the policy rule gone": {"ip rule del lookup 133"},
			"the IPv6 route gone":  {"ip -6 route flush table 133"},
		},
	}
	damages["iptables-nft"]["the tables dropped"] = []string{"nft flush ruleset"}
	harmless := map[string][]string{
		"iptables-nft": {
			"iptables-nft -t nat -I OUTPUT -p udp --dport 1 -j ACCEPT", "iptables-nft -t nat -N OTHERS", "ip6tables-nft -t filter -A INPUT -j ACCEPT",
			"nft add table inet others", "ip rule add fwmark 7 lookup 77", "ip addr add 192.0.2.1/32 dev lo",
		},
		"iptables-legacy": {"iptables-legacy -t nat -I OUTPUT -p udp --dport 1 -j RETURN", "iptables-legacy -t nat -N OTHERS", "nft add table inet others"},
		"nftables":        {"nft add table inet others", "nft add table ip nat", "nft add chain ip nat OUTPUT { type nat hook output priority -100 ; }"},
	}
	for backend, all := range damages {
		t.Run(backend, func(t *testing.T) {
			n := newNode(t, backend)
			ns := netnstest.New(t)
			a := n.attach(caseOf(t, "tproxy-dual"), ns)
			add(t, a)
			in(t, ns, harmless[backend]...)
			passes(t, a, "checked")
			for name, damage := range all {
				t.Run(name, func(t *testing.T) {
					in(t, ns, damage...)
					differs(t, a, "missing")
					add(t, a)
					passes(t, a, "checked")
				})
			}
		})
	}
}

// TestCheckSeesWhatIsBefore: all of the rules are there, and somebody else's are before them. CHECK fails if packets do not come to ours, and
// says so if that cannot be told; ADD refuses such a namespace.
func TestCheckSeesWhatIsBefore(t *testing.T) {
	netnstest.Require(t, netnstest.Binary("nft"), netnstest.Binary("iptables-nft"), netnstest.Binary("iptables-legacy"))
	first := map[string]string{"iptables-nft": "iptables-nft -t nat -I OUTPUT 1", "iptables-legacy": "iptables-legacy -t nat -I OUTPUT 1", "nftables": "iptables-nft -t raw -I OUTPUT 1"}
	past := map[string]string{"iptables-nft": "-j ACCEPT", "iptables-legacy": "-j RETURN", "nftables": "-j CT --notrack"}
	for _, backend := range allBackends {
		t.Run(backend, func(t *testing.T) {
			n := newNode(t, backend)
			ns := netnstest.New(t)
			a := n.attach(caseOf(t, "fam-dual"), ns)
			add(t, a)
			rule := "-p tcp --dport 443 " + past[backend]
			in(t, ns, first[backend]+" "+rule)
			differs(t, a, "ipv4 outbound: out tcp uid 1000", "wanted: redirect 15001")
			code, message := a.Run(t, "ADD").Failure()
			assert.Equal(t, 101, code)
			assert.Contains(t, message, "packets do not come to them")
			in(t, ns, strings.Replace(first[backend], "-I OUTPUT 1", "-D OUTPUT", 1)+" "+rule)
			add(t, a)
			passes(t, a, "checked")

			in(t, ns, first[backend]+" -p tcp -m statistic --mode nth --every 100000 --packet 99999 "+past[backend])
			passes(t, a, "unknown", "cannot be told", "--mode nth")
			_, _, d := checks(t, a)
			assert.Contains(t, fmt.Sprint(d["warnings"]), "cannot tell")
			out := a.Run(t, "ADD")
			require.Zero(t, out.Exit, string(out.Stdout))
			assert.Contains(t, string(out.Stderr), "cannot tell")
		})
	}
}

// TestCheckOfWhatCouldNotBe: what ADD could not set up, since IPv6 was switched off, is not lost when it is switched on, nor
// is anything by what there is besides. What is then lost is.
func TestCheckOfWhatCouldNotBe(t *testing.T) {
	for _, backend := range allBackends {
		t.Run(backend, func(t *testing.T) {
			n := newNode(t, backend)
			ns := netnstest.New(t)
			a := n.attach(caseOf(t, "tproxy-dual"), ns)
			disableIPv6(t, ns, "1")
			add(t, a)
			passes(t, a, "checked")
			disableIPv6(t, ns, "0")
			passes(t, a, "checked")
			in(t, ns, "ip -6 rule del lookup 133")
			differs(t, a, "missing")

			add(t, a) // which now takes what it can have
			passes(t, a, "checked")
			in(t, ns, "ip -6 route flush table 133")
			differs(t, a, "missing")

			add(t, a)
			passes(t, a, "checked")
			in(t, ns, "ip -6 addr del ::6/128 dev lo") // as when IPv6 is switched off and on
			_, _, d := checks(t, a)
			assert.Equal(t, "checked", d["outcome"])
			assert.Contains(t, d["warnings"].([]any)[0], "::6/128")

			other := n.attach(caseOf(t, "fam-v4-default"), netnstest.New(t))
			other.ContainerID = "other"
			add(t, other)
			path, err := netnsexec.Open(other.NetNS)
			require.NoError(t, err)
			defer func() { _ = path.Close() }()
			in(t, path, "ip rule add fwmark 1337 lookup 133", "ip route add local 0.0.0.0/0 dev lo table 133", "ip -6 addr add ::6/128 dev lo")
			passes(t, other, "checked")
		})
	}
}

// TestCheckOfWhatIsLeft: the rules of a second interface's ADD are the namespace's, also when that interface goes again.
func TestCheckOfWhatIsLeft(t *testing.T) {
	first, second := newNode(t, "nftables"), newNode(t, "iptables-legacy")
	ns := netnstest.New(t)
	a, b := first.attach(caseOf(t, "fam-dual"), ns), second.attach(caseOf(t, "tproxy-dual"), ns)
	b.IfName, b.Config = "net1", set(b.Config.(object), "run_dir", first.runDir)
	add(t, a)
	add(t, b)
	passes(t, a, "checked")
	del := b.Run(t, "DEL")
	require.Zero(t, del.Exit, string(del.Stdout))
	passes(t, b, "unknown")
	passes(t, a, "checked")
	in(t, ns, "iptables-legacy -t mangle -F ISTIO_INBOUND")
	differs(t, a, "mangle/ISTIO_INBOUND")
}

// TestCheckCannotTell: no record, one that cannot be read, and one of a sandbox before this one say nothing.
func TestCheckCannotTell(t *testing.T) {
	n := newNode(t, "nftables")
	ns := netnstest.New(t)
	a := n.attach(caseOf(t, "fam-dual"), ns)
	add(t, a)
	path := filepath.Join(n.runDir, "attachments", "k8s@plugintest@eth0.json")
	good, err := os.ReadFile(path)
	require.NoError(t, err)

	elsewhere := a
	elsewhere.NetNS = netnstest.New(t).Path()
	passes(t, elsewhere, "unknown", "another network namespace")
	never := a
	never.ContainerID = "another"
	passes(t, never, "unknown", "no record")
	never = a
	never.IfName = "net1"
	passes(t, never, "unknown", "no record")

	in(t, ns, "nft flush ruleset")
	differs(t, a)
	for name, bad := range map[string]string{
		"cut": string(good[:len(good)/2]), "empty": "", "of tomorrow": strings.Replace(string(good), `"version":1`, `"version":77`, 1),
		"of no backend": strings.Replace(string(good), `"backend":"nftables"`, `"backend":"of tomorrow"`, 1),
		"of no rule":    strings.Replace(string(good), "-m tcp", "-m teapot", 1),
	} {
		t.Run(name, func(t *testing.T) {
			require.NotEqual(t, string(good), bad)
			require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
			passes(t, a, "unknown")
		})
	}
	require.NoError(t, os.Remove(path))
	passes(t, a, "unknown", "no record")
	require.NoError(t, os.RemoveAll(n.runDir))
	passes(t, a, "unknown", "no record")

	gone := a
	gone.NetNS = filepath.Join(t.TempDir(), "gone")
	code, message, _ := checks(t, gone)
	assert.Equal(t, 8, code, message)
}

// TestCheckOfPacketsThatAreHandedOn: rules that are all there count for nothing if an interface of the pod hands its packets on before them.
func TestCheckOfPacketsThatAreHandedOn(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.Binary("ip"), netnstest.Binary("tc"))
	n := newNode(t, "nftables")
	ns := netnstest.New(t)
	a := n.attach(caseOf(t, "fam-dual"), ns)
	in(t, ns, "ip link add eth0 type veth peer name peer0", "ip link set eth0 up", "ip link set peer0 up",
		"ip addr add 10.244.1.5/24 dev eth0", "ip addr add fd00:10:244::5/64 dev eth0 nodad", "ip tuntap add tap0 mode tap")
	add(t, a)
	passes(t, a, "checked")

	in(t, ns, "tc qdisc add dev eth0 clsact")
	require.NoError(t, ns.Run(exec.CommandContext(t.Context(), "tc", "filter", "add", "dev", "eth0", "ingress", "prio", "2", "bpf", "bytecode", "1,6 0 0 1,")))
	passes(t, a, "unknown", "interface eth0, cannot tell", "a program of tc's ingress")
	in(t, ns, "tc filter add dev eth0 ingress protocol all prio 1 u32 match u8 0 0 action mirred egress redirect dev tap0")
	code, message, decision := checks(t, a)
	assert.Equal(t, 100, code)
	assert.Contains(t, message, `what arrives at its interface "eth0" is handed on to "tap0, by tc"`)
	assert.Equal(t, []any{"sandboxed"}, decision["bypasses"])
	a.Config.(object)["allow_sandboxed"] = true
	_, _, decision = checks(t, a)
	assert.Equal(t, "unknown", decision["outcome"])
	assert.Equal(t, []any{"sandboxed"}, decision["bypasses"], "who allows it is told")

	in(t, ns, "tc qdisc del dev eth0 clsact")
	passes(t, a, "checked")
}

// TestCheckWithoutTheBackend: what set the rules up is not on the host any more, and another must not be asked instead.
func TestCheckWithoutTheBackend(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft-restore"))
	ns := netnstest.New(t)
	c := newCall()
	c.config["backend"] = "iptables-nft"
	with := func(o apply.Options) {
		c.plugin.OpenNetNS = func(string) (plugin.NetNS, error) { return realNetNS{ns, o}, nil }
	}
	with(apply.Options{Runner: ns.Sandbox()})
	require.Zero(t, c.run(t).exit)
	c.env["CNI_COMMAND"], c.config["backend"] = "CHECK", "auto"
	with(apply.Options{Path: t.TempDir()})
	d := c.run(t).record(t, "decision")
	assert.Equal(t, "unknown", d["outcome"])
	assert.Contains(t, d["detail"], "no usable firewall backend")
	assert.Equal(t, "selected", d["reason"])
}

// TestCheckOfOtherRules: the record counts, and not what this version of the plugin, or this dialect, would render.
func TestCheckOfOtherRules(t *testing.T) {
	for _, backend := range allBackends {
		t.Run(backend, func(t *testing.T) {
			n := newNode(t, backend)
			ns := netnstest.New(t)
			a := n.attach(caseOf(t, "fam-dual"), ns)
			r := redirect.Default()
			r.Names.ChainPrefix = "TOMORROW_"
			r.Inbound.ExcludePorts = redirect.Ports(7, 8)
			rules, err := r.Ruleset()
			require.NoError(t, err)
			b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.Backend(backend), Runner: ns.Sandbox()})
			require.NoError(t, err)
			_, err = b.Apply(t.Context(), rules)
			require.NoError(t, err)
			record := attachment.Record{
				ID:    attachment.ID{Network: "k8s", ContainerID: "plugintest", IfName: "eth0"},
				NetNS: attachment.NetNS{Path: ns.Path(), Dev: ns.ID().Dev, Ino: ns.ID().Ino},
				Pod:   status.ID{Namespace: "shop", Name: "cart-0"}, Selected: true, Reason: "of-tomorrow", Dialect: "of tomorrow",
				By: "ADD", Program: "v99", Time: time.Now(),
			}
			record.Applied(ruleset.Backend(backend), rules, nil)
			require.NoError(t, attachment.Open(n.runDir).Write(record))
			passes(t, a, "checked")
			require.NoError(t, b.Remove(t.Context(), rules.Owner()))
			differs(t, a, "TOMORROW_")
		})
	}
}

// TestCheckOfEachDialect: what each mesh's rules need, addresses of lo among it, is in the record.
func TestCheckOfEachDialect(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00::5")}
	for _, name := range builtin.Names() {
		for _, backend := range allBackends {
			t.Run(name+"/"+backend, func(t *testing.T) {
				netnstest.Require(t, netnstest.Root, netnstest.IPv6)
				mesh := dialect.SetOf(builtin.All()...).Lookup(name)
				pod := caseOf(t, "fam-dual")
				pod.Annotations[consul.DualStack], pod.Annotations[consul.RedirectTrafficConfig] = "true", `{"ProxyUserID": "5995", "ProxyInboundPort": 20000}`
				built, err := mesh.Build(dialect.Input{Pod: pod, Namespace: &corev1.Namespace{}, Addrs: addrs})
				require.NoError(t, err)
				rules, err := built.Redirect.Ruleset()
				require.NoError(t, err)
				ns := netnstest.New(t)
				choose := func() plugin.Backend {
					b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.Backend(backend), Runner: ns.Sandbox()})
					require.NoError(t, err)
					return b
				}
				_, err = choose().Apply(t.Context(), rules)
				require.NoError(t, err)
				store := attachment.Open(t.TempDir())
				r := attachment.Record{ID: attachment.ID{Network: "k8s", ContainerID: "c", IfName: "eth0"}, Selected: true, By: "ADD"}
				r.Applied(ruleset.Backend(backend), rules, nil)
				require.NoError(t, store.Write(r))
				r, err = store.Read(r.ID)
				require.NoError(t, err)
				diffs, err := choose().Check(t.Context(), r.InForce())
				require.NoError(t, err)
				assert.Empty(t, diffs)
			})
		}
	}
}
