//go:build linux

package apply_test

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// crowd gives a namespace a table of somebody else's with so many rules, and a small one before and after it.
func crowd(t testing.TB, ns *netnsexec.NetNS, rules int) {
	t.Helper()
	var b strings.Builder
	for _, table := range []string{"inet before", "inet theirs", "ip zlast"} {
		fmt.Fprintf(&b, "table %s {\nset s {\ntype inet_service\nelements = { 80, 443 }\n}\nchain out {\ntype filter hook output priority 0;\ntcp dport @s accept\n", table)
		for i := range rules {
			if table == "inet theirs" {
				fmt.Fprintf(&b, "ip daddr 10.%d.%d.%d tcp dport %d accept\n", i>>16&255, i>>8&255, i&255, 1000+i%60000)
			}
		}
		b.WriteString("}\n}\n")
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(b.String())
	require.NoError(t, ns.Run(cmd))
}

// TestLiveOfACrowd: of others' rules so many are read as are worth a look; ours whole, and what was left out is said where it may be.
func TestLiveOfACrowd(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("nft"))
	ns := netnstest.New(t)
	r := redirect.Default()
	var ports []uint16
	for i := range 500 {
		ports = append(ports, uint16(1000+2*i)) //nolint:gosec // small
	}
	r.Inbound.ExcludePorts = redirect.Ports(ports...)
	rs := r.MustRuleset()
	b := choose(t, ns, ruleset.BackendNftables)
	_, err := b.Apply(t.Context(), rs)
	require.NoError(t, err)
	crowd(t, ns, 49_000)
	live, err := apply.Live(t.Context(), ns, apply.Options{}, rs)
	require.NoError(t, err)
	unread := map[string]int{}
	read := map[string]int{}
	for _, l := range live {
		switch {
		case l.Unread:
			assert.Equal(t, "not read: others' rules are too many", l.Foreign)
			assert.Empty(t, l.Rules)
			assert.False(t, l.Ours)
			assert.Equal(t, read[l.Table]+1, l.Position)
			unread[l.Table]++
		case l.Ours:
			assert.NotEmpty(t, l.Rules, l.Text)
			read["ours"]++
		default:
			read[l.Table]++
		}
	}
	assert.Equal(t, map[string]int{"inet theirs": 1, "ip zlast": 1}, unread)
	assert.Equal(t, 1, read["inet before"])
	assert.Less(t, read["inet theirs"], 2_000)
	assert.NotZero(t, read["inet theirs"])
	diffs, err := b.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, ruleset.Certain(diffs))
	assert.NotEmpty(t, diffs, "what the rules that were not read do to packets is not known")
}

// TestLiveOfManyChains: of others' chains, of which a pod may make any number, no more are listed than are worth a look. What is at our hooks is named
// as not read, and ours is read whole.
func TestLiveOfManyChains(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.Binary("nft"))
	ns := netnstest.New(t)
	rs := redirect.Default().MustRuleset()
	b := choose(t, ns, ruleset.BackendNftables)
	_, err := b.Apply(t.Context(), rs)
	require.NoError(t, err)
	var text strings.Builder
	text.WriteString("table inet theirs {\nchain out {\ntype filter hook output priority -400\n}\n")
	for i := range 5_000 {
		fmt.Fprintf(&text, "chain c%d {\ntcp dport 1 accept\n}\n", i)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text.String() + "}\n")
	require.NoError(t, ns.Run(cmd))
	live, err := apply.Live(t.Context(), ns, apply.Options{}, rs)
	require.NoError(t, err)
	ours := 0
	var theirs []string
	for _, l := range live {
		if l.Ours {
			ours++
			continue
		}
		theirs = append(theirs, l.Chain)
		assert.True(t, l.Unread, l.Chain)
	}
	assert.Equal(t, []string{"out"}, theirs)
	assert.NotZero(t, ours)
	diffs, err := b.Check(t.Context(), rs)
	require.NoError(t, err)
	assert.Empty(t, ruleset.Certain(diffs))
	assert.NotEmpty(t, diffs, "what the rules that were not read do to packets is not known")
}

// TestLiveOfACrowdOfIptables: no program is asked for tables in which others have too many rules.
func TestLiveOfACrowdOfIptables(t *testing.T) {
	t.Parallel()
	for _, variant := range []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy} {
		t.Run(string(variant), func(t *testing.T) {
			t.Parallel()
			netnstest.Require(t, netnstest.Root, netnstest.Binary(string(variant)), netnstest.Binary("nft"))
			ns := netnstest.New(t)
			rs := redirect.Default().MustRuleset()
			_, err := choose(t, ns, variant).Apply(t.Context(), rs)
			require.NoError(t, err)
			add := func(from, to int) {
				var b strings.Builder
				b.WriteString("*filter\n:THEIRS - [0:0]\n")
				for i := from; i < to; i++ {
					fmt.Fprintf(&b, "-A THEIRS -d 10.%d.%d.%d -p tcp --dport %d -j ACCEPT\n", i>>16&255, i>>8&255, i&255, 1000+i%60000)
				}
				b.WriteString("COMMIT\n")
				cmd := exec.Command(string(variant)+"-restore", "-n")
				cmd.Stdin = strings.NewReader(b.String())
				require.NoError(t, ns.Run(cmd))
			}
			look := func() (ours, others, unread int) {
				live, err := apply.Live(t.Context(), ns, apply.Options{}, rs)
				require.NoError(t, err)
				for _, l := range live {
					switch {
					case l.Family != ruleset.IPv4:
					case l.Unread:
						assert.Equal(t, variant, l.Backend)
						unread++
					case l.Ours:
						ours++
					default:
						others++
					}
				}
				return ours, others, unread
			}
			add(0, 900)
			ours, others, unread := look()
			assert.NotZero(t, ours)
			assert.Equal(t, 900, others)
			assert.Zero(t, unread)
			add(900, 20_000)
			ours, others, unread = look()
			assert.Zero(t, ours+others)
			assert.NotZero(t, unread)
			assert.LessOrEqual(t, unread, 100)

			// Nor is one for a comparison, also by a backend that has its own rules elsewhere.
			ran := &counted{Runner: ns.Sandbox()}
			b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: variant, Runner: ran})
			require.NoError(t, err)
			diffs, err := b.Check(t.Context(), rs)
			require.NoError(t, err)
			require.Len(t, diffs, 1)
			assert.Empty(t, ruleset.Certain(diffs))
			assert.Contains(t, diffs[0].String(), "cannot tell: others have more than 1000")
			native, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendNftables, Runner: ran})
			require.NoError(t, err)
			_, err = native.Check(t.Context(), rs)
			require.NoError(t, err)
			assert.NotContains(t, ran.list(), "/iptables-", "IPv6 has no others")
			if variant == ruleset.BackendIptablesNFT { // the kernel counts them by chains
				chain := rs.Owner().Prefix + "OUTPUT"
				require.NoError(t, ns.Run(exec.Command("nft", "flush chain ip nat "+chain)))
				diffs, err = b.Check(t.Context(), rs)
				require.NoError(t, err)
				assert.Len(t, ruleset.Certain(diffs), len(rs.IPv4.Chain(ruleset.NAT, chain).Rules))
			}
		})
	}
}

// counted runs programs and remembers them.
type counted struct {
	apply.Runner

	mu  sync.Mutex
	ran string
}

func (c *counted) Run(cmd *exec.Cmd) error {
	c.mu.Lock()
	c.ran += cmd.Path + " "
	c.mu.Unlock()
	return c.Runner.Run(cmd)
}

func (c *counted) list() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ran
}

// BenchmarkLiveCrowd is a look into a pod that has made 49,000 rules.
func BenchmarkLiveCrowd(b *testing.B) {
	netnstest.Require(b, netnstest.Root, netnstest.Binary("nft"))
	ns := netnstest.New(b)
	crowd(b, ns, 49_000)
	owner := redirect.Default().Names.Owner().EmptyRuleset()
	cpu := func() time.Duration {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := cpu()
	for b.Loop() {
		_, err := apply.Live(b.Context(), ns, apply.Options{}, owner)
		require.NoError(b, err)
	}
	b.ReportMetric(float64((cpu()-began).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}
