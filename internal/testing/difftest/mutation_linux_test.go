package difftest_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// scenario is a redirection, conversations that all succeed under it, and rules that they need: a connection whose first
// packet arrives all the same fails without them.
type scenario struct {
	redirect redirect.Redirect
	// steps are held one after the other, each with all its probes at once.
	steps [][]string
	// needed are parts of rules' texts.
	needed []string
}

const policyRoute = "policy route"

func scenarios() map[string]scenario {
	withDNS := func() redirect.Redirect {
		r := redirect.Default()
		r.Proxy.PassSources = []netip.Addr{netip.MustParseAddr("127.0.0.6")}
		r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
		return r
	}
	tproxy := withDNS()
	tproxy.Mode = redirect.ModeTProxy
	node := withDNS()
	node.Proxy.UIDs, node.Proxy.PassSources = nil, nil
	node.Proxy.Mark = redirect.Mark{Value: 0x539, Mask: 0xfff}
	node.Names.InboundMark, node.Names.MarkMask = 0x111, 0xfff
	sidecar := withDNS()
	sidecar.VirtualNetworks = []redirect.VirtualNetwork{{Interface: "virt0", Local: netip.MustParsePrefix("10.99.0.0/24")}}
	refused := withDNS()
	refused.IPv4, refused.IPv6 = redirect.FamilyDrop, redirect.FamilyDrop
	refused.Inbound.ExcludePorts = redirect.Ports(9090)
	return map[string]scenario{
		"a proxy that keeps its clients' addresses": {tproxy, [][]string{{
			"out tcp 0/0 -> 10.244.1.5:8080", "out tcp 0/0 -> [fd00:10:244::5]:8080", "pod tcp 1000/1000 -> 10.96.5.5:80",
			"pod tcp 0/0 -> 10.244.1.5:8080 from 198.51.100.10 mark 0x539",
			"pod tcp 0/0 -> [fd00:10:244::5]:8080 from 2001:db8::10 mark 0x539",
			"pod udp 1000/1000 -> 10.96.0.10:53", "pod udp 1000/1000 -> [fd00:96::10]:53",
		}}, []string{"--save-mark", "--restore-mark", "-j TPROXY", "-p udp -m udp --dport 53 -j CT", policyRoute}},
		"a node's proxy": {node, [][]string{{
			"out tcp 0/0 -> 10.244.1.5:8080", "pod tcp 1000/1000 -> 10.96.5.5:80", "pod tcp 0/0 -> 10.96.5.5:80 from 10.244.1.5 mark 0x539",
			"pod tcp 0/0 -> 10.244.1.5:8080 from 198.51.100.10 mark 0x539",
			"pod tcp 0/0 -> [fd00:10:244::5]:8080 from 2001:db8::10 mark 0x539", "pod udp 1000/1000 -> 10.96.0.10:53",
		}}, []string{"--set-xmark 0x111/0xfff", "--restore-mark", policyRoute}},
		"look-ups": {sidecar, [][]string{
			{
				"pod udp 1000/1000 -> 10.96.0.10:53 from 10.244.1.5 port 5300", "pod udp 1000/1000 -> [fd00:96::10]:53 from fd00:10:244::5 port 5300",
				"pod tcp 1000/1000 -> 10.96.0.10:53", "vm udp 0/0 -> 10.96.0.10:53", "out tcp 0/0 -> 10.244.1.5:8080",
			},
			// The proxy's own question has the addresses and ports of the application's.
			{
				"pod udp 1337/1337 -> 10.96.0.10:53 from 10.244.1.5 port 5300", "pod udp 1337/1337 -> [fd00:96::10]:53 from fd00:10:244::5 port 5300",
				"pod udp 1337/1000 -> 198.51.100.10:53",
			},
		}, []string{
			"-p udp -m udp --dport 53 -j CT", "-p udp -m udp --dport 53 -m owner --uid-owner 1337 -j RETURN",
			"-p udp -m udp --sport 15053 -m owner --uid-owner 1337 -j CT", "-i virt0 -p udp -m udp --dport 53 -j CT",
		}},
		"a family that is refused": {refused, [][]string{{
			"pod tcp 1337/1337 -> 10.96.5.5:80", "pod tcp 1337/1337 -> [fd00:96::5]:80", "out tcp 0/0 -> 10.244.1.5:9090", "pod tcp 1000/1000 -> 127.0.0.1:8080",
		}}, []string{"--ctstate RELATED,ESTABLISHED -j RETURN"}},
	}
}

// mutant is a ruleset that lacks one thing.
type mutant struct {
	lost  string
	rules ruleset.Ruleset
}

// mutants takes each rule of the tables that only mark and tell zones out of a ruleset, and the policy routes.
func mutants(rs ruleset.Ruleset) []mutant {
	var list []mutant
	for _, f := range ruleset.Families {
		p := rs.Family(f)
		less := func(lost string, change func(*ruleset.FamilyRuleset)) {
			changed := *p
			changed.Chains = slices.Clone(p.Chains)
			change(&changed)
			m := mutant{f.String() + " " + lost, rs}
			m.rules.Set(&changed)
			list = append(list, m)
		}
		for i, c := range p.Chains {
			if c.Table != ruleset.Raw && c.Table != ruleset.Mangle {
				continue
			}
			for j := range c.Rules {
				less(fmt.Sprintf("%s/%s:%d %s", c.Table, c.Name, j+1, c.Rules[j].Text(f)), func(p *ruleset.FamilyRuleset) {
					if len(c.Rules) == 1 && !strings.HasPrefix(c.Name, p.Owner.Prefix) {
						p.Chains = slices.Delete(p.Chains, i, i+1) // a chain of the kernel's that has nothing of ours
						return
					}
					p.Chains[i].Rules = slices.Delete(slices.Clone(c.Rules), j, j+1)
				})
			}
		}
		if p.Routing != nil {
			less(policyRoute, func(p *ruleset.FamilyRuleset) { p.Routing = nil })
		}
	}
	return list
}

// predict is what the tracer says of a scenario's probes. Those with a port of their own meet each other's connections.
func (s scenario) predict(rs ruleset.Ruleset) (Fates, error) {
	m := model(Case{Redirect: s.redirect}.Options())
	pod := &trace.Tracker{Rules: rs}
	fates := Fates{}
	for _, p := range slices.Concat(s.probes()...) {
		tracker := pod
		if p.Port == 0 {
			tracker = &trace.Tracker{Rules: rs}
		}
		fate, _, err := m.next(tracker, rs, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		fates[p.String()] = fate
	}
	return fates, nil
}

func (s scenario) probes() [][]netnstest.Probe {
	steps := make([][]netnstest.Probe, len(s.steps))
	for i, step := range s.steps {
		for _, name := range step {
			p, err := netnstest.ParseProbe(name)
			if err != nil {
				panic(err)
			}
			steps[i] = append(steps[i], p)
		}
	}
	return steps
}

// observe is what the kernel does with them.
func (s scenario) observe(rs ruleset.Ruleset, backend ruleset.Backend, patience time.Duration) (Fates, error) {
	fates := Fates{}
	err := inWorld(Case{Redirect: s.redirect}, patience, func(w *netnstest.World) error {
		b, err := apply.Choose(context.Background(), w.Pod, apply.Options{Backend: backend, Runner: w.Pod.Sandbox()})
		if err != nil {
			return err
		}
		if _, err := b.Apply(context.Background(), rs); err != nil {
			return err
		}
		for _, step := range s.probes() {
			for probe, fate := range w.Run(step) {
				fates[probe] = fate
			}
		}
		return nil
	})
	return fates, err
}

// TestLostRules takes out each rule that marks, keeps or restores a mark, or chooses a zone, and the policy routes. The
// tracer and the kernel agree on which conversations then fail, and those that need the rule do.
func TestLostRules(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.IPv6, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"))
	for name, s := range scenarios() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rs := s.redirect.MustRuleset()
			whole, err := s.predict(rs)
			require.NoError(t, err)
			for probe, fate := range whole {
				require.NotContains(t, []string{"timeout", "refused", "reset"}, fate, probe)
			}
			list := append([]mutant{{"nothing", rs}}, mutants(rs)...)
			var broken []string
			for i, m := range list {
				want, err := s.predict(m.rules)
				require.NoError(t, err, m.lost)
				backend := backends[i%len(backends)]
				got, err := s.observe(m.rules, backend, short)
				if err == nil && !assert.ObjectsAreEqual(want, got) {
					got, err = s.observe(m.rules, backend, long) // a busy machine is slow
				}
				require.NoError(t, err, m.lost)
				assert.Empty(t, Disagreements(map[string]Fates{"tracer": want, string(backend): got}), "without %s", m.lost)
				if !assert.ObjectsAreEqual(whole, got) {
					broken = append(broken, m.lost)
				}
			}
			for _, needed := range s.needed {
				for _, family := range families(list, needed) {
					assert.True(t, slices.ContainsFunc(broken, func(lost string) bool {
						return strings.HasPrefix(lost, family) && strings.Contains(lost, needed)
					}), "nothing fails without %s %s:\n%s", family, needed, strings.Join(broken, "\n"))
				}
			}
			t.Logf("%d conversations, without each of %d rules: some fail without\n%s", len(whole), len(list)-1, strings.Join(broken, "\n"))
		})
	}
}

// families are those in which a needed rule is; at least one.
func families(list []mutant, needed string) []string {
	found := map[string]bool{"ipv4": true}
	for _, m := range list {
		if family, rest, _ := strings.Cut(m.lost, " "); strings.Contains(rest, needed) && !strings.Contains(rest, "virt0") {
			found[family] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
