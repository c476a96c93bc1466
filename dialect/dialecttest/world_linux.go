package dialecttest

import (
	"cmp"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Backends are those that each case is tried with.
var Backends = []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy, ruleset.BackendNftables}

// Fates applies the rules of a case with each backend, in a world with the given proxy, and sends the case's probes:
// they must end where Case.Fates says. A case that is Refused must fail to build.
func Fates(t *testing.T, d dialect.Dialect, o netnstest.Options, c Case) {
	t.Helper()
	c.fates(t, d, o, "the case says")
}

// fates is Fates. Expected says where c.Fates comes from, for people.
func (c Case) fates(t *testing.T, d dialect.Dialect, o netnstest.Options, expected string) {
	t.Helper()
	rs, _, err := c.Rules(d)
	switch {
	case c.Refused && err == nil:
		t.Fatalf("the pod is not refused")
	case c.Refused:
		return
	case err != nil:
		t.Fatalf("the pod is refused: %v", err)
	}
	probes := make([]netnstest.Probe, 0, len(c.Fates))
	for name := range c.Fates {
		p, err := netnstest.ParseProbe(name)
		if err != nil {
			t.Fatalf("case: %v", err)
		}
		probes = append(probes, p)
	}
	for _, backend := range Backends {
		t.Run(string(backend), func(t *testing.T) {
			got := run(t, backend, o, rs, probes)
			for probe, fate := range c.Fates {
				if got[probe] != fate {
					t.Errorf("%s\n\tends at %s under the dialect's rules\n\t%s %s", probe, got[probe], expected, fate)
				}
			}
		})
	}
}

// Equivalent compares the rules of a case with the mesh's own, given for each family as iptables-restore takes them; a
// family without has no rules. It has two halves, whose failures say which of them failed: the subtest "traced" looks
// for a packet or a connection whose fate differs by package internal/diagnosis/compare, and the subtest "sent" applies the rules
// with each backend and compares where the probes really end, and whether they can be spoken over both ways.
func Equivalent(t *testing.T, d dialect.Dialect, o netnstest.Options, c Case, own map[ruleset.Family]string, probes []netnstest.Probe) {
	t.Helper()
	o.Echo = true
	w := netnstest.NewWorld(t, o)
	for f, text := range own {
		restore(t, w.Pod, f, text)
	}
	t.Run("traced", func(t *testing.T) { c.compare(t, d, o, w.Pod) })
	t.Run("sent", func(t *testing.T) {
		c.Fates = w.Run(probes)
		c.fates(t, d, o, "under the mesh's own rules it ends at")
	})
}

// listeners are the sockets of the world's pod, as far as rules see them: the proxy's, and all others.
func listeners(o netnstest.Options) []trace.Listener {
	list := []trace.Listener{{UID: 1000, GID: 1000, Transparent: true}}
	for _, port := range slices.Concat(o.ProxyTCP, o.ProxyUDP, []uint16{15001, 15006, 15008, 15053}) {
		list = append(list, trace.Listener{
			Port: port, UID: cmp.Or(o.ProxyUID, 1337), GID: cmp.Or(o.ProxyGID, 1337), Mark: o.ProxyMark, Transparent: true,
		})
	}
	return list
}

// compare traces every kind of packet through the rules in a namespace, read back
// as an operator would, and through those of the case.
func (c Case) compare(t *testing.T, d dialect.Dialect, o netnstest.Options, ns *netnsexec.NetNS) {
	t.Helper()
	rs, _, err := c.Rules(d)
	if err != nil {
		t.Fatalf("the pod is refused: %v", err)
	}
	var text strings.Builder
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save"} {
		netnstest.Require(t, netnstest.Binary(program))
		cmd := exec.Command(program)
		cmd.Stdout = &text
		if err := ns.Run(cmd); err != nil {
			t.Fatalf("save rules: %v", err)
		}
	}
	live, err := compare.Parse(text.String())
	var saved ruleset.Ruleset
	if err == nil {
		saved, err = live.Ruleset(rs)
	}
	if err != nil {
		t.Fatalf("read saved rules: %v", err)
	}
	report, err := compare.Compare(t.Context(), saved, rs, compare.Options{PodAddrs: Addrs(), Listeners: listeners(o)})
	if err != nil {
		t.Fatalf("compare: %v", err)
	}
	// Where the mesh's own rules mix up look-ups of the proxy and the application, those of the dialect may keep them apart.
	report.ConnectionDifferences = slices.DeleteFunc(report.ConnectionDifferences, func(d compare.ConnectionDifference) bool { return d.Better })
	for i, diff := range report.ConnectionDifferences {
		if i == 5 {
			t.Errorf("… %d of %d connections differ", len(report.ConnectionDifferences), report.Connections)
			break
		}
		t.Errorf("%s\n%s\n%s", diff, diff.A.Explain(), diff.B.Explain())
	}
	for i, diff := range report.Differences {
		if i == 5 {
			t.Errorf("… %d of %d packets differ", len(report.Differences), report.Packets)
			break
		}
		t.Errorf("a traced packet ends elsewhere (mesh's own rules | the dialect's): %s", diff)
	}
}

// restore puts rules into a namespace as they are.
func restore(t testing.TB, ns *netnsexec.NetNS, f ruleset.Family, text string) {
	t.Helper()
	program := map[ruleset.Family]string{ruleset.IPv4: "iptables-nft-restore", ruleset.IPv6: "ip6tables-nft-restore"}[f]
	netnstest.Require(t, netnstest.Binary(program))
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(text)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := ns.Run(cmd); err != nil {
		t.Fatalf("restore %s rules: %v\n%s", f, err, stderr.String())
	}
}

func run(t *testing.T, backend ruleset.Backend, o netnstest.Options, rs ruleset.Ruleset, probes []netnstest.Probe) map[string]string {
	t.Helper()
	w := netnstest.NewWorld(t, o)
	b, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: backend, Runner: w.Pod.Sandbox()})
	if err != nil {
		t.Fatalf("choose backend: %v", err)
	}
	if rs != (ruleset.Ruleset{}) { // else the mesh leaves the pod alone
		if _, err := b.Apply(t.Context(), rs); err != nil {
			t.Fatalf("apply: %v", err)
		}
	}
	return w.Run(probes)
}
