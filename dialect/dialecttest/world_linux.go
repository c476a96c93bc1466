package dialecttest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/compare"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Backends are those that each case is tried with.
var Backends = []apply.Name{apply.IptablesNFT, apply.IptablesLegacy, apply.Nftables}

// Fates applies the rules of a case with each backend, in a world with the
// given proxy, and sends the case's probes: they end up where Fates says. When
// the case is Refused, building must fail.
func Fates(t *testing.T, d dialect.Dialect, o netnstest.Options, c Case) {
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
			agree(t, c.Fates, run(t, backend, o, rs, probes))
		})
	}
}

// Equivalent applies the rules of a case with each backend and compares the
// fates of the probes with those under a program of the mesh's own, given for
// each family as iptables-restore takes it. A family without one has no rules.
// It also has package redirect/compare look for a packet whose fate differs.
func Equivalent(t *testing.T, d dialect.Dialect, o netnstest.Options, c Case, own map[ruleset.Family]string, probes []netnstest.Probe) {
	t.Helper()
	w := netnstest.NewWorld(t, o)
	for f, text := range own {
		Restore(t, w.Pod, f, text)
	}
	t.Run("compare", func(t *testing.T) { c.compare(t, d, w.Pod) })
	c.Fates = w.Run(probes)
	Fates(t, d, o, c)
}

// compare traces every kind of packet through the rules that are in a namespace,
// read back as an operator would, and those of the case.
func (c Case) compare(t *testing.T, d dialect.Dialect, ns *netnsexec.NetNS) {
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
	saved, err := compare.Saved(text.String(), rs)
	if err != nil {
		t.Fatalf("read saved rules: %v", err)
	}
	report, err := compare.Compare(saved, rs, compare.Packets(Addrs(), saved, rs))
	if err != nil {
		t.Fatalf("compare: %v", err)
	}
	for i, diff := range report.Differences {
		if i == 5 {
			t.Errorf("… %d of %d packets differ", len(report.Differences), report.Packets)
			break
		}
		t.Errorf("own | ours: %s", diff)
	}
}

// Restore puts rules into a namespace as they are.
func Restore(t testing.TB, ns *netnsexec.NetNS, f ruleset.Family, text string) {
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

func run(t *testing.T, backend apply.Name, o netnstest.Options, rs ruleset.Ruleset, probes []netnstest.Probe) map[string]string {
	t.Helper()
	w := netnstest.NewWorld(t, o)
	b, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: backend, Runner: w.Pod.Sandbox()})
	if err != nil {
		t.Fatalf("choose backend: %v", err)
	}
	if _, err := b.Apply(t.Context(), rs); err != nil {
		t.Fatalf("apply: %v", err)
	}
	return w.Run(probes)
}

func agree(t *testing.T, want, got map[string]string) {
	t.Helper()
	for probe, fate := range want {
		if got[probe] != fate {
			t.Errorf("%s\n\tends at %s\n\twant    %s", probe, got[probe], fate)
		}
	}
}
