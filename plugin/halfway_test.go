//go:build linux

package plugin_test

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// realNetNS is the kernel's, with options of the test's own for what programs it.
type realNetNS struct {
	*netnsexec.NetNS
	options apply.Options
}

func (r realNetNS) Backend(ctx context.Context, name ruleset.Backend) (plugin.Backend, error) {
	o := r.options
	o.Backend = name
	return apply.Choose(ctx, r.NetNS, o)
}

func (r realNetNS) Kernel() (redirect.Kernel, error) { return apply.Kernel(r.NetNS) }
func (realNetNS) Addrs(string) ([]netip.Addr, error) { return nil, nil }
func (realNetNS) Close() error                       { return nil }
func (r realNetNS) Bypasses(addrs []netip.Addr) ([]dialect.Bypass, error) {
	return bypass.Live(r.NetNS, addrs)
}

// failingIPv6 is a host whose ip6tables-restore fails.
type failingIPv6 struct{ apply.Runner }

func (f failingIPv6) Run(cmd *exec.Cmd) error {
	if strings.Contains(cmd.Path, "ip6tables") && strings.Contains(cmd.Path, "restore") {
		return errors.New("exit status 2")
	}
	return f.Runner.Run(cmd)
}

func TestAllRulesOrNone(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft-restore"), netnstest.Binary("iptables-legacy-restore"))
	empty := t.TempDir()
	for _, backend := range append([]string{"iptables"}, variants...) {
		t.Run(backend, func(t *testing.T) {
			ns := netnstest.New(t)
			c := newCall()
			c.config["backend"] = backend
			c.config["prevResult"] = object{"ips": []object{{"address": "10.244.1.5/24"}, {"address": "fd00::5/64"}}}
			pod(c, func(p *corev1.Pod) {
				p.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "ISTIO_DUAL_STACK", Value: "true"}}
			})
			with := func(o apply.Options) {
				c.plugin.OpenNetNS = func(string) (plugin.NetNS, error) { return realNetNS{ns, o}, nil }
			}
			before := onlyRules(rules(t, ns))

			with(apply.Options{Path: empty})
			c.run(t).fails(t, 50, "no usable firewall backend")
			assert.Equal(t, before, onlyRules(rules(t, ns)), "no iptables")

			with(apply.Options{Runner: failingIPv6{ns.Sandbox()}})
			c.run(t).fails(t, 101, "ipv6", "exit status 2")
			assert.Equal(t, before, onlyRules(rules(t, ns)), "the second family fails")

			with(apply.Options{Runner: ns.Sandbox()})
			out := c.run(t)
			require.Zero(t, out.exit, out.stdout)
			assert.Contains(t, rules(t, ns), "ISTIO_OUTPUT")
		})
	}
}

func TestAddressesOfTheNamespace(t *testing.T) {
	w := netnstest.NewWorld(t, netnstest.Options{})
	c := newCall()
	c.plugin.OpenNetNS = nil // the kernel's
	c.env["CNI_NETNS"], c.env["CNI_IFNAME"] = w.Pod.Path(), "net1"
	c.config["backend"] = "iptables-nft"
	delete(c.config, "prevResult")
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.JSONEq(t, `{"cniVersion":"1.0.0"}`, out.stdout)
	d := out.record(t, "decision")
	assert.Equal(t, []any{"ipv4"}, d["families"], "net1's first address is IPv4")
	assert.Contains(t, d["warnings"].([]any)[0], "ipv6 bypasses the mesh")
	assert.Equal(t, "iptables-nft", d["backend"])
}

// TestFakeIsLikeTheKernel runs one table through plugintest.NetNS and the kernel's namespace: outcome, code and record
// of each step are the same.
func TestFakeIsLikeTheKernel(t *testing.T) {
	netnstest.Require(t, netnstest.Root, netnstest.Binary("iptables-nft-restore"))
	ns := netnstest.New(t)
	fake, real := newCall(), newCall()
	real.plugin.OpenNetNS = func(string) (plugin.NetNS, error) {
		return realNetNS{ns, apply.Options{Runner: ns.Sandbox()}}, nil
	}
	annotate := func(key, value string) func(*call) {
		return func(c *call) { pod(c, func(p *corev1.Pod) { p.Annotations[key] = value }) }
	}
	same := func(*call) {}
	flush := func(c *call) error {
		if c == fake {
			c.netns.Live = ruleset.Ruleset{}
			return nil
		}
		b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendIptablesNFT, Runner: ns.Sandbox()})
		if err != nil {
			return err
		}
		return b.Remove(t.Context(), ruleset.Ownership{Prefix: "ISTIO_"})
	}
	for i, step := range []struct {
		verb    string
		change  func(*call)
		code    int
		outcome string
	}{
		{"CHECK", same, 0, "unknown"},
		{"ADD", same, 0, "redirected"},
		{"ADD", same, 0, "same"},
		{"CHECK", same, 0, "checked"},
		{"CHECK", annotate("traffic.sidecar.istio.io/excludeOutboundPorts", "9090"), 0, "checked"},
		{"CHECK", func(c *call) { require.NoError(t, flush(c)) }, 100, "failed"},
		{"ADD", same, 0, "redirected"},
		{"CHECK", same, 0, "checked"},
		{"ADD", annotate("traffic.sidecar.istio.io/excludeOutboundPorts", "x"), 7, "failed"},
		{"ADD", annotate("sidecar.istio.io/interceptionMode", "TPROXY"), 0, "redirected"},
		{"CHECK", same, 0, "checked"},
		{"ADD", annotate("sidecar.istio.io/inject", "false"), 0, "passed"},
		{"CHECK", func(c *call) { require.NoError(t, flush(c)) }, 0, "passed"},
	} {
		for kind, c := range map[string]*call{"fake": fake, "real": real} {
			step.change(c)
			c.config["backend"] = "iptables-nft"
			c.env["CNI_COMMAND"] = step.verb
			out := c.run(t)
			if step.code != 0 {
				out.fails(t, step.code)
			} else {
				assert.Zero(t, out.exit, out.stdout)
			}
			assert.Equal(t, step.outcome, out.record(t, "decision")["outcome"], "step %d, %s: %s", i, kind, out.stdout)
		}
	}
}
