package ruleset_test

import (
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// kernel is a network namespace that is programmed by one family's iptables.
type kernel struct {
	t       testing.TB
	ns      *netnsexec.NetNS
	family  ruleset.Family
	variant string // nft or legacy
}

// eachKernel runs a test in a fresh namespace for each variant and family.
func eachKernel(t *testing.T, test func(k kernel)) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, f := range ruleset.Families {
			t.Run(variant+"/"+f.String(), func(t *testing.T) {
				t.Parallel()
				k := kernel{t: t, family: f, variant: variant}
				netnstest.Require(t, netnstest.Root, netnstest.Binary(k.program("restore")))
				k.ns = netnstest.New(t)
				test(k)
			})
		}
	}
}

func (k kernel) program(verb string) string {
	if k.family == ruleset.IPv6 {
		return "ip6tables-" + k.variant + "-" + verb
	}
	return "iptables-" + k.variant + "-" + verb
}

func (k kernel) run(stdin, verb string, args ...string) (string, error) {
	cmd := exec.CommandContext(k.t.Context(), k.program(verb), args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := k.ns.Sandbox().Run(cmd)
	return out.String(), err
}

// restore applies a text; the kernel takes each table of it whole or not at all.
func (k kernel) restore(text string) {
	k.t.Helper()
	out, err := k.run(text, "restore", "--noflush")
	require.NoError(k.t, err, "%s on:\n%s", out, text)
}

// saved reads back what is live.
func (k kernel) saved() ruleset.LiveChains {
	k.t.Helper()
	out, err := k.run("", "save")
	require.NoError(k.t, err, "%s", out)
	saved, err := ruleset.Parse(k.family, out)
	require.NoError(k.t, err, "%s", out)
	return saved
}

// rules is the live rules as text, without chains and counters.
func (k kernel) rules() []string {
	k.t.Helper()
	var lines []string
	for _, c := range k.saved() {
		if !chains.IsBuiltin(c.Name) {
			lines = append(lines, c.Table+" :"+c.Name)
		}
		for _, r := range c.Rules {
			lines = append(lines, c.Table+" "+c.Name+" "+r.Text)
		}
	}
	return lines
}

// become puts the program in the place of whatever of its owner's is there,
// and holds the kernel to it.
func (k kernel) become(p *ruleset.FamilyRuleset) {
	k.t.Helper()
	k.restore(p.Transition(k.saved()))
	live := k.saved()
	assert.Empty(k.t, p.Diff(live), "%s", strings.Join(k.rules(), "\n"))
	assert.Empty(k.t, p.Transition(live), "nothing is left to do")
}

// in puts IPv4 texts into the family's words.
func (k kernel) in(text string) string {
	if k.family == ruleset.IPv6 {
		return strings.NewReplacer("10.0.0.9:80", "[fd00::9]:80").Replace(text)
	}
	return text
}

func programs() map[string]redirect.Redirect {
	plain := redirect.Default()
	full := redirect.Default()
	full.Mode = redirect.ModeTProxy
	full.DropInvalid = true
	full.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	full.Proxy.TunnelPort = 15008
	full.Proxy.PassSources = []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}
	full.ExcludeInterfaces, full.VirtualInterfaces = []string{"net1"}, []string{"virt0"}
	full.VirtualNetworks = []redirect.VirtualNetwork{
		{Interface: "br+", Local: netip.MustParsePrefix("172.18.0.0/16")}, {Interface: "abcdefghijklmn+", Local: netip.MustParsePrefix("fd00:99::/64")},
	}
	full.Inbound.ExcludePorts = redirect.PortRanges(ruleset.Port(22), ruleset.PortRange{First: 8000, Last: 8100})
	full.Outbound.ExcludeOwnerGroups = []uint32{7}
	dropped := redirect.Default()
	dropped.IPv4, dropped.IPv6 = redirect.FamilyDrop, redirect.FamilyDrop
	none := redirect.Default()
	none.Inbound.Ports, none.Outbound.CIDRs = redirect.NoPorts(), redirect.NoPrefixes()
	return map[string]redirect.Redirect{"plain": plain, "full": full, "dropped": dropped, "none": none}
}

// TestTextIsWhatTheKernelSaves: the canonical text and iptables-save's are the
// same, rule for rule.
func TestTextIsWhatTheKernelSaves(t *testing.T) {
	eachKernel(t, func(k kernel) {
		for name, r := range programs() {
			p := r.MustRuleset().Family(k.family)
			k.restore(p.Commented())
			live := k.rules()
			for _, c := range p.Chains {
				for _, rule := range c.Rules {
					assert.Contains(k.t, live, c.Table.String()+" "+c.Name+" "+rule.Text(k.family), "%s", name)
				}
			}
			assert.Empty(k.t, p.Diff(k.saved()), "%s", name)
			k.restore(p.Owner.EmptyRuleset().Family(p.Family).Transition(k.saved()))
			assert.Empty(k.t, k.rules(), "%s: what is left of it", name)
		}
	})
}

// TestFromEachToEach: whatever program was there, the next one replaces it
// whole, others' rules stay where they were, and clean-up leaves only them.
func TestFromEachToEach(t *testing.T) {
	eachKernel(t, func(k kernel) {
		k.restore(k.in(foreign))
		before := k.rules()
		for _, r := range tour(slices.Collect(maps.Values(programs()))) {
			k.become(r.MustRuleset().Family(k.family))
			assert.Subset(k.t, k.rules(), before)
		}
		k.restore(redirect.Default().Names.Owner().EmptyRuleset().Family(k.family).Transition(k.saved()))
		assert.Equal(k.t, before, k.rules())
	})
}

// tour goes from each to each other exactly once.
func tour(programs []redirect.Redirect) (path []redirect.Redirect) {
	for i, a := range programs {
		for _, b := range programs[i+1:] {
			path = append(path, a, b)
		}
	}
	return append(path, programs[0])
}

// TestPredecessorIsReplaced: the program of an init container, which works in
// the built-in chains, goes; rules of others stay. (Not those that the mesh
// itself might have written: an interface's RETURN before the mesh's jump is
// its exclusion, and to leave one would leave the interface outside the mesh.)
func TestPredecessorIsReplaced(t *testing.T) {
	eachKernel(t, func(k kernel) {
		k.restore(k.in(strings.NewReplacer(
			"-A OUTPUT -p udp -m udp --dport 53 -j REDIRECT --to-ports 5353\n", "", "-A PREROUTING -i net9 -j RETURN\n", "",
		).Replace(foreign)))
		before := k.rules()
		k.restore(predecessorNAT)
		k.restore(predecessorRest)
		p := redirect.Default().MustRuleset().Family(k.family)
		assert.NotEmpty(k.t, p.Diff(k.saved()))
		k.become(p)
		k.restore(p.Owner.EmptyRuleset().Family(p.Family).Transition(k.saved()))
		assert.Equal(k.t, before, k.rules())
	})
}

// TestTableIsAllOrNothing: a text that the kernel refuses leaves its table as
// it was, which is what makes a transition safe.
func TestTableIsAllOrNothing(t *testing.T) {
	eachKernel(t, func(k kernel) {
		p := redirect.Default().MustRuleset().Family(k.family)
		k.become(p)
		before := k.rules()
		_, err := k.run("*nat\n:MESH_OUTPUT - [0:0]\n-D OUTPUT -j MESH_OUTPUT\n-A MESH_OUTPUT -j MESH_NOWHERE\nCOMMIT\n", "restore", "--noflush")
		require.Error(k.t, err)
		assert.Equal(k.t, before, k.rules())
	})
}
