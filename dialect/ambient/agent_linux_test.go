package ambient_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// settings are what changes the rules of Istio's node agent in a pod.
type settings struct {
	virtual, dns, bypass bool
	// probe is the one port that is exempt of the probes' source; 0: all are, as by the agent itself.
	probe int
}

var replaceV6 = strings.NewReplacer(
	"127.0.0.1/32", "::1/128", "169.254.7.127/32", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128",
	"ip daddr", "ip6 daddr", "ip saddr", "ip6 saddr", "169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
)

// agentText is the program of Istio's node agent as iptables-restore takes it, written by hand from its documentation.
func agentText(f ruleset.Family, s settings) string {
	jumps := func(table string) string {
		return "*" + table + "\n:ISTIO_PRERT - [0:0]\n:ISTIO_OUTPUT - [0:0]\n-A PREROUTING -j ISTIO_PRERT\n-A OUTPUT -j ISTIO_OUTPUT\n"
	}
	var b strings.Builder
	if s.dns {
		b.WriteString(jumps("raw") + "-A ISTIO_OUTPUT -p udp -m mark --mark 0x539/0xfff --dport 53 -j CT --zone 1\n" +
			"-A ISTIO_PRERT -p udp -m mark ! --mark 0x539/0xfff --sport 53 -j CT --zone 1\nCOMMIT\n")
	}
	b.WriteString(jumps("mangle") +
		"-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff\n" +
		"-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff\nCOMMIT\n")
	b.WriteString(jumps("nat"))
	if s.virtual {
		b.WriteString("-A ISTIO_PRERT -i virt0 -p tcp -j REDIRECT --to-ports 15001\n-A ISTIO_PRERT -i virt0 -p tcp -j RETURN\n")
	}
	if !s.bypass {
		exempt := "-p tcp"
		if s.probe != 0 {
			exempt = fmt.Sprint("-p tcp --dport ", s.probe)
		}
		b.WriteString("-A ISTIO_PRERT -s 169.254.7.127/32 " + exempt + " -j ACCEPT\n" +
			"-A ISTIO_PRERT ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15006\n")
	}
	b.WriteString("-A ISTIO_OUTPUT -d 169.254.7.127/32 -p tcp -j ACCEPT\n")
	if s.dns {
		b.WriteString("-A ISTIO_OUTPUT ! -o lo -p udp -m mark ! --mark 0x539/0xfff --dport 53 -j REDIRECT --to-ports 15053\n" +
			"-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp --dport 53 -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15053\n")
	}
	b.WriteString("-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT\n" +
		"-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -o lo -j ACCEPT\n" +
		"-A ISTIO_OUTPUT ! -d 127.0.0.1/32 -p tcp -m mark ! --mark 0x539/0xfff -j REDIRECT --to-ports 15001\nCOMMIT\n")
	if f == ruleset.IPv4 {
		return b.String()
	}
	return replaceV6.Replace(b.String())
}

// agentNFT is the same program as nft takes it, for both families.
func agentNFT(s settings) string {
	both := func(rule string) string { return rule + "\n" + replaceV6.Replace(rule) + "\n" }
	chains := func(kinds [2]string, prerouting, output string, priority string) string {
		return "chain prerouting { type " + kinds[0] + " hook prerouting priority " + priority + "; jump istio-prerouting; }\n" +
			"chain output { type " + kinds[1] + " hook output priority " + priority + "; jump istio-output; }\n" +
			"chain istio-prerouting {\n" + prerouting + "}\nchain istio-output {\n" + output + "}\n"
	}
	var b strings.Builder
	if s.dns {
		b.WriteString("table inet istio-ambient-raw {\n" + chains([2]string{"filter", "filter"},
			"udp sport 53 meta mark and 0xfff != 0x539 counter ct zone set 1\n", "udp dport 53 meta mark and 0xfff == 0x539 counter ct zone set 1\n", "-300") + "}\n")
	}
	b.WriteString("table inet istio-ambient-mangle {\n" + chains([2]string{"filter", "route"},
		"meta mark and 0xfff == 0x539 counter ct mark set ct mark and 0xfffff000 or 0x111\n", "ct mark and 0xfff == 0x111 counter meta mark set ct mark\n", "-150") + "}\n")
	prerouting, output := "", ""
	if s.virtual {
		prerouting += "iifname virt0 meta l4proto tcp counter redirect to :15001\niifname virt0 meta l4proto tcp counter return\n"
	}
	if !s.bypass {
		prerouting += both("meta l4proto tcp ip saddr 169.254.7.127 counter accept") +
			both("ip daddr != 127.0.0.1/32 tcp dport != 15008 meta mark and 0xfff != 0x539 counter redirect to :15006")
	}
	output += both("meta l4proto tcp ip daddr 169.254.7.127 counter accept")
	if s.dns {
		output += "oifname != \"lo\" meta mark and 0xfff != 0x539 udp dport 53 counter redirect to :15053\n" +
			both("ip daddr != 127.0.0.1/32 tcp dport 53 meta mark and 0xfff != 0x539 counter redirect to :15053")
	}
	output += "meta l4proto tcp meta mark and 0xfff == 0x111 counter accept\n" +
		both("oifname \"lo\" ip daddr != 127.0.0.1/32 counter accept") +
		both("meta l4proto tcp ip daddr != 127.0.0.1/32 meta mark and 0xfff != 0x539 counter redirect to :15001")
	b.WriteString("table inet istio-ambient-nat {\n" + chains([2]string{"nat", "nat"}, prerouting, output, "-100") + "}\n")
	return b.String()
}

// enrol puts the program of Istio's node agent, with its routing, into a namespace.
func enrol(t *testing.T, ns *netnsexec.NetNS, by ruleset.Backend, s settings) {
	t.Helper()
	for _, family := range []string{"-4", "-6"} {
		show(t, ns, family, "route", "add", "local", "default", "dev", "lo", "table", "100")
		show(t, ns, family, "rule", "add", "fwmark", "0x111/0xfff", "pref", "32764", "lookup", "100")
	}
	if by == ruleset.BackendNftables {
		tool(t, ns, agentNFT(s), "nft", "-f", "-")
		return
	}
	restore(t, ns, by, ruleset.IPv4, agentText(ruleset.IPv4, s))
	restore(t, ns, by, ruleset.IPv6, agentText(ruleset.IPv6, s))
}

// restore gives rules to a variant of iptables.
func restore(t *testing.T, ns *netnsexec.NetNS, by ruleset.Backend, f ruleset.Family, text string) {
	t.Helper()
	program := string(by) + "-restore"
	if f == ruleset.IPv6 {
		program = strings.Replace(program, "ip", "ip6", 1)
	}
	tool(t, ns, text, program, "--noflush")
}

// saved lists all rules of all backends, and the policy routing, without counters.
func saved(t *testing.T, ns *netnsexec.NetNS) string {
	t.Helper()
	var b strings.Builder
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		b.WriteString(tool(t, ns, "", program))
	}
	b.WriteString(tool(t, ns, "", "nft", "list", "ruleset"))
	for _, family := range []string{"-4", "-6"} {
		b.WriteString(show(t, ns, family, "rule") + show(t, ns, family, "route", "show", "table", "100"))
	}
	return b.String()
}

// tool runs a program in a namespace, and returns what it writes.
func tool(t *testing.T, ns *netnsexec.NetNS, input, name string, args ...string) string {
	t.Helper()
	netnstest.Require(t, netnstest.Binary(name))
	cmd := exec.Command(name, args...)
	var out, failure strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &failure
	require.NoError(t, ns.Run(cmd), "%s: %s", name, &failure)
	return out.String()
}
