package ambient_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// others are rules of somebody else in the pod, with one before and one after those of the mesh. The second is like one that
// a sidecar's init container makes.
const others = "*nat\n-I OUTPUT 1 -d 9.9.9.9/32 -j ACCEPT\n-A OUTPUT -p udp -m udp --dport 53 -j REDIRECT --to-ports 15054\nCOMMIT\n"

// TestTakeOver: what Istio's node agent has set in a running pod becomes ours, and goes back, by each of its backends and
// ours; each takes part once on either side, and with the tag long all meet. Meanwhile connections are made in both directions and families, and none is missed; what is open stays open.
func TestTakeOver(t *testing.T) {
	for i, theirs := range dialecttest.Backends {
		next := (i + 1) % len(dialecttest.Backends)
		for _, ours := range longtest.Of(dialecttest.Backends[next:next+1], slices.Delete(slices.Clone(dialecttest.Backends), next, next+1)...) {
			t.Run(fmt.Sprintf("%s to %s", theirs, ours), func(t *testing.T) {
				t.Parallel()
				s := settings{virtual: true, dns: true}
				pod := labelled("ambient", map[string]string{"istio.io/reroute-virtual-interfaces": "virt0"})
				plan, err := ambient.New(ambient.Options{}).Plan(dialect.Subject{Pod: pod, Addrs: dialecttest.Addrs()}, dialect.Options{})
				require.NoError(t, err)
				rs := plan.Ruleset

				w := netnstest.NewWorld(t, netnstest.Options{})
				variant := theirs
				if theirs == ruleset.BackendNftables {
					variant = ruleset.BackendIptablesNFT
				}
				enrol(t, w.Pod, theirs, s)
				restore(t, w.Pod, variant, ruleset.IPv4, others)
				before := agentRulesIn(t, w.Pod, theirs)
				open := establish(t, w)

				b, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: ours})
				require.NoError(t, err)
				diffs, err := b.Check(t.Context(), rs)
				require.NoError(t, err)
				assert.NotEmpty(t, diffs)
				meanwhile(t, w, func() {
					for range 3 {
						result, err := b.Apply(t.Context(), rs)
						require.NoError(t, err)
						assert.True(t, result.Changed)
						open(t)

						diffs, err := b.Check(t.Context(), rs)
						require.NoError(t, err)
						for _, d := range ruleset.Certain(diffs) { // what others' rules, which come first, take from ours
							assert.Equal(t, ruleset.KindFate, d.Kind)
							assert.Regexp(t, `-> (9\.9\.9\.9:(443|53): pass|10\.96\.5\.5:53: redirect 15054),`, d.Rule)
						}
						now := saved(t, w.Pod)
						assert.NotContains(t, now, "ISTIO_PRERT")
						assert.NotContains(t, now, "istio-ambient")
						assert.Contains(t, now, "-d 9.9.9.9/32 -j ACCEPT")
						assert.Contains(t, now, "--to-ports 15054")
						assert.Equal(t, 2, strings.Count(now, "fwmark 0x111/0xfff lookup 100"), now)

						result, err = giveBack(t.Context(), w.Pod, plan, theirs)
						require.NoError(t, err)
						assert.True(t, result.Changed)
						open(t)
					}
				})
				after := agentRulesIn(t, w.Pod, theirs)
				if theirs == ours && theirs != ruleset.BackendNftables {
					assert.Equal(t, before, after, "also the order of others' rules and its")
				}
				assert.ElementsMatch(t, before, after)
				assert.NotContains(t, saved(t, w.Pod), "ISTIO_IN_REDIRECT", "nothing of ours is left")
			})
		}
	}
}

// giveBack gives a pod to Istio's agent.
func giveBack(ctx context.Context, ns apply.Namespace, plan dialect.Plan, backend ruleset.Backend) (apply.Result, error) {
	rules := ambient.AgentRuleset(plan.Redirect)
	return apply.HandOver(ctx, ns, rules, ambient.AgentLayout(), apply.Options{Backend: backend})
}

// agentRulesIn lists the rules of one backend without counters, and what they need besides.
func agentRulesIn(t *testing.T, ns *netnsexec.NetNS, by ruleset.Backend) (rules []string) {
	t.Helper()
	var listing string
	if by == ruleset.BackendNftables {
		for _, table := range ambient.AgentLayout().Tables {
			listing += tool(t, ns, "", "nft", "-s", "list", "table", "inet", table)
		}
	} else {
		listing = tool(t, ns, "", string(by)+"-save") + tool(t, ns, "", strings.Replace(string(by), "ip", "ip6", 1)+"-save")
	}
	for line := range strings.Lines(listing) {
		switch {
		case by == ruleset.BackendNftables: // the order of matches says nothing, nor do counters, nor which of the bits that are set are cleared first
			words := strings.Fields(strings.NewReplacer("0xfffff111", "0xfffff000", " counter ", " ").Replace(line))
			slices.Sort(words)
			rules = append(rules, strings.Join(words, " "))
		case strings.HasPrefix(line, "-A "):
			rules = append(rules, strings.TrimSpace(line))
		}
	}
	for _, family := range []string{"-4", "-6"} {
		rules = append(rules, strings.Split(show(t, ns, family, "rule")+show(t, ns, family, "route", "show", "table", "100"), "\n")...)
	}
	return rules
}

// meanwhile makes connections while fn runs, and at least one of each kind. Each must reach the proxy.
func meanwhile(t *testing.T, w *netnstest.World, fn func()) {
	t.Helper()
	done := make(chan struct{})
	var wait sync.WaitGroup
	for _, c := range []struct {
		from     *netnsexec.NetNS
		to, want string
	}{
		{w.Pod, "10.96.5.5:80", "proxy:15001"}, {w.Pod, "[fd00:96::5]:80", "proxy:15001"},
		{w.Out, "10.244.1.5:8080", "proxy:15006"}, {w.Out, "[fd00:10:244::5]:8080", "proxy:15006"},
	} {
		wait.Go(func() {
			for last := false; ; {
				if answer := ask(t, c.from, "", c.to, 0); !strings.HasPrefix(answer, c.want) {
					t.Errorf("a connection to %s got %q", c.to, answer)
					return
				}
				if last {
					return
				}
				select {
				case <-done:
					last = true
				default:
				}
			}
		})
	}
	defer wait.Wait()
	defer close(done)
	fn()
}

// establish opens a connection of each family from the proxy to the application, from its client's address, and returns a
// function that uses them. Each of their packets needs the marks and the routing.
func establish(t *testing.T, w *netnstest.World) func(*testing.T) {
	t.Helper()
	var open [][2]net.Conn
	for _, c := range []struct {
		listen, from, to string
		mark             uint32
	}{
		{"10.244.1.5:7000", "198.51.100.10", "10.244.1.5:7000", ambient.ProxyMark},
		{"[fd00:10:244::5]:7000", "2001:db8::10", "[fd00:10:244::5]:7000", ambient.ProxyMark},
	} {
		accepted := make(chan net.Conn, 1)
		require.NoError(t, w.Pod.Do(func() error {
			var lc net.ListenConfig
			l, err := lc.Listen(t.Context(), "tcp", c.listen)
			if err != nil {
				return err
			}
			go func() {
				conn, err := l.Accept()
				_ = l.Close()
				if err == nil {
					accepted <- conn
				}
			}()
			dialer := net.Dialer{Timeout: netnstest.Patience, Control: marking(c.mark, true), LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.from)}}
			conn, err := dialer.DialContext(context.WithoutCancel(t.Context()), "tcp", c.to)
			if err != nil {
				_ = l.Close()
				return err
			}
			open = append(open, [2]net.Conn{conn, <-accepted})
			return nil
		}))
	}
	t.Cleanup(func() {
		for _, pair := range open {
			_ = pair[0].Close()
			_ = pair[1].Close()
		}
	})
	return func(t *testing.T) {
		t.Helper()
		for _, pair := range open {
			for i, from := range pair {
				require.NoError(t, from.SetDeadline(time.Now().Add(netnstest.Patience)))
				require.NoError(t, pair[1-i].SetDeadline(time.Now().Add(netnstest.Patience)))
				_, err := from.Write([]byte("still there"))
				require.NoError(t, err)
				buffer := make([]byte, 64)
				n, err := pair[1-i].Read(buffer)
				require.NoError(t, err)
				assert.Equal(t, "still there", string(buffer[:n]))
			}
		}
	}
}
