//go:build linux

package plugin_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// nomad is CNI_ARGS as Nomad passes them, with the configuration.
func nomad(config string, more ...string) string {
	return strings.Join(append([]string{
		"NOMAD_ALLOC_ID=7f3c", "IgnoreUnknown=true", "CONSUL_IPTABLES_CONFIG=" + config, "NOMAD_NAMESPACE=default",
	}, more...), ";")
}

const nomadConfig = `{"ConsulDNSIP":"","ConsulDNSPort":0,"ProxyUserID":"101","ProxyInboundPort":25018,"ProxyOutboundPort":15001,` +
	`"ExcludeInboundPorts":["9002"],"ExcludeOutboundPorts":null,"ExcludeOutboundCIDRs":null,"ExcludeUIDs":null,` +
	`"NetNS":"/var/run/docker/netns/another","IptablesProvider":null}`

// sandboxCall is an ADD on a node without Kubernetes.
func sandboxCall(args string) *call {
	c := newCall()
	c.config["dialect"] = "consul"
	c.env["CNI_ARGS"] = args
	c.plugin.OpenPods = func(string) (plugin.Pods, error) { return plugin.Pods{}, errors.New("there is no Kubernetes here") }
	return c
}

// TestSandboxOfNomad: the configuration in CNI_ARGS makes the rules that it makes in an annotation.
func TestSandboxOfNomad(t *testing.T) {
	t.Parallel()
	with := func(change func(*redirect.Redirect)) ruleset.Ruleset {
		r := consul.DefaultRedirect()
		r.Proxy.UIDs, r.Proxy.InboundPort, r.Inbound.ExcludePorts = []uint32{101}, 25018, redirect.Ports(9002)
		change(&r)
		return r.MustRuleset()
	}
	only4 := with(func(*redirect.Redirect) {})
	both := with(func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyCapture })
	ips := func(list ...string) func(*call) {
		return func(c *call) {
			var all []object
			for _, ip := range list {
				all = append(all, object{"address": ip})
			}
			c.config["prevResult"] = object{"cniVersion": "1.0.0", "ips": all}
		}
	}
	same := func(*call) {}
	tests := map[string]struct {
		args   string
		change func(*call)
		want   ruleset.Ruleset
	}{
		"as Nomad passes it":          {nomad(nomadConfig), same, only4},
		"both families, IPv4 first":   {nomad(nomadConfig), ips("10.0.0.2/24", "fd00::2/64"), only4},
		"both families, IPv6 first":   {nomad(nomadConfig), ips("fd00::2/64", "10.0.0.2/24"), only4},
		"IPv6 alone":                  {nomad(nomadConfig), ips("fd00::2/64"), both},
		"the runtime names IPv6":      {nomad(nomadConfig, "IP=fd00::2"), same, both},
		"the runtime names IPv4":      {nomad(nomadConfig, "IP=10.0.0.2"), ips("fd00::2/64"), only4},
		"with the names of a pod":     {nomad(nomadConfig, "K8S_POD_NAMESPACE=kube-system", "K8S_POD_NAME=dns"), same, only4},
		"with the name of the agent":  {nomad(nomadConfig, "K8S_POD_NAMESPACE=meshcni-system", "K8S_POD_NAME=meshcni-node-x"), same, only4},
		"with annotations that it is": {nomad(nomadConfig), func(c *call) { c.config["runtimeConfig"] = object{netconf.AnnotationsCapability: object{}} }, only4},
		"with a status to write":      {nomad(nomadConfig), func(c *call) { c.config["write_status"] = true }, only4},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := sandboxCall(tt.args)
			tt.change(c)
			out := c.run(t)
			require.Zero(t, out.exit, out.stdout)
			assert.True(t, tt.want.Equal(c.netns.Live), "%s", c.netns.Live.IPv4)
			d := out.record(t, "decision")
			assert.Equal(t, "selected", d["reason"])
			assert.Equal(t, "CNI_ARGS has CONSUL_IPTABLES_CONFIG", d["detail"])
			assert.Equal(t, "redirected", d["outcome"])
			assert.Equal(t, "c0ffee", d["container_id"])
			assert.EqualValues(t, 0, d["api_calls"])
			assert.NotContains(t, out.stderr, "status annotation")

			out = c.run(t)
			require.Zero(t, out.exit, out.stdout)
			assert.Equal(t, "same", out.record(t, "decision")["outcome"])
			c.env["CNI_COMMAND"] = "CHECK"
			assert.Zero(t, c.run(t).exit)
			c.env["CNI_COMMAND"], c.env["CNI_ARGS"] = "DEL", "" // Nomad passes none then
			assert.Zero(t, c.run(t).exit)
		})
	}
}

// TestUncapturedFamilyOfSandbox: what bypasses the mesh is said, and closed where that is asked for.
func TestUncapturedFamilyOfSandbox(t *testing.T) {
	t.Parallel()
	c := sandboxCall(nomad(nomadConfig))
	c.config["prevResult"] = object{"cniVersion": "1.0.0", "ips": []object{{"address": "10.0.0.2/24"}, {"address": "fd00::2/64"}}}
	assert.Equal(t, []any{"ipv6"}, c.run(t).record(t, "decision")["bypasses"])
	c.config["uncaptured_family"] = "drop"
	assert.Equal(t, []any{}, c.run(t).record(t, "decision")["bypasses"])
	assert.NotNil(t, c.netns.Live.IPv6)
}

// TestSandboxRefused: nothing that cannot be done passes, and the error names it.
func TestSandboxRefused(t *testing.T) {
	t.Parallel()
	pair := func(key, value string) string { return strings.Replace(nomadConfig, key, value, 1) }
	tests := map[string]struct {
		dialect, args string
		code          int
		says          []string
	}{
		"no JSON":             {"consul", nomad("{"), 7, []string{"CNI_ARGS CONSUL_IPTABLES_CONFIG", "sandbox/c0ffee"}},
		"no object":           {"consul", nomad("null"), 7, []string{"CONSUL_IPTABLES_CONFIG.ProxyUserID"}},
		"empty":               {"consul", nomad(""), 7, []string{"CONSUL_IPTABLES_CONFIG"}},
		"cut short":           {"consul", nomad(pair(`"9002"`, `"9002;x=\"]`)), 7, []string{"CONSUL_IPTABLES_CONFIG"}},
		"what is no argument": {"consul", nomad(pair(`"9002"`, `"9002;x"`)), 4, []string{"is not KEY=VALUE"}},
		"several wrong values": {"consul", nomad(`{"ProxyUserID":"x","ExcludeInboundPorts":["9002 -j ACCEPT"]}`), 7, []string{
			`CONSUL_IPTABLES_CONFIG.ExcludeInboundPorts="9002 -j ACCEPT"`, `CONSUL_IPTABLES_CONFIG.ProxyUserID="x"`, "CONSUL_IPTABLES_CONFIG.ProxyInboundPort",
		}},
		"root":                  {"consul", nomad(pair(`"101"`, `"0"`)), 7, []string{`CONSUL_IPTABLES_CONFIG.ProxyUserID="0"`}},
		"a resolver over IPv6":  {"consul", nomad(pair(`"ConsulDNSIP":""`, `"ConsulDNSIP":"fd00::53"`)), 7, []string{`CONSUL_IPTABLES_CONFIG.ConsulDNSIP="fd00::53"`}},
		"an address that isn't": {"consul", nomad(nomadConfig, "IP=eth0"), 7, []string{`CNI_ARGS IP="eth0"`}},
		"twice":                 {"consul", nomad(nomadConfig, "CONSUL_IPTABLES_CONFIG={}"), 4, []string{"CONSUL_IPTABLES_CONFIG is there twice"}},
		"another mesh":          {"istio", nomad(nomadConfig), 4, []string{"CONSUL_IPTABLES_CONFIG", "dialect istio"}},
		"another mesh, a pod":   {"linkerd", nomad(nomadConfig, "K8S_POD_NAMESPACE=shop", "K8S_POD_NAME=cart-0"), 4, []string{"CONSUL_IPTABLES_CONFIG", "dialect linkerd"}},
		"another mesh, empty":   {"kuma", nomad(""), 4, []string{"CONSUL_IPTABLES_CONFIG", "dialect kuma"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := sandboxCall(tt.args)
			c.config["dialect"] = tt.dialect
			c.run(t).fails(t, tt.code, tt.says...)
			assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
			assert.Equal(t, c.netns.Opened, c.netns.Closed)
		})
	}
}

// TestPodWithAnEmptyConfiguration: a runtime that says nothing by the key leaves the pod to Kubernetes.
func TestPodWithAnEmptyConfiguration(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.env["CNI_ARGS"] += ";CONSUL_IPTABLES_CONFIG="
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.EqualValues(t, 1, out.record(t, "decision")["api_calls"])
}

// TestFatesOfSandboxes runs the built program for each recorded pod of Consul as Nomad would, with no API server to ask,
// and sends the recorded packets.
func TestFatesOfSandboxes(t *testing.T) {
	var expected map[string]struct {
		Exit  int
		Fates map[string]string
	}
	readJSON(t, fates+"/consul/expected.json", &expected)
	require.Len(t, expected, 3)
	proxy := netnstest.Options{
		ProxyUID: consul.ProxyUID, ProxyGID: consul.ProxyUID,
		ProxyTCP: []uint16{20000, 15001, 8600, 15008, 15020}, ProxyUDP: []uint16{8600},
	}
	for _, backend := range append(variants, "nftables") {
		n := newNode(t, backend)
		n.server.Handle(func(int, http.ResponseWriter, *http.Request) bool {
			t.Error("a request, where there is no Kubernetes")
			return false
		})
		for name, want := range expected {
			t.Run(backend+"/"+name, func(t *testing.T) {
				var pod corev1.Pod
				readJSON(t, fates+"/consul/cases/"+name+".json", &pod)
				var config map[string]any
				require.NoError(t, json.Unmarshal([]byte(pod.Annotations[consul.RedirectTrafficConfig]), &config))
				config["NetNS"] = "/var/run/netns/another"
				text, err := json.Marshal(config)
				require.NoError(t, err)
				args := []string{}
				if pod.Annotations[consul.DualStack] == "true" {
					args = append(args, "IP=fd00:10:244::5")
				}
				w := netnstest.NewWorld(t, proxy)
				a := n.attach(&pod, w.Pod)
				a.Config = set(a.Config.(object), "dialect", "consul", "kubernetes", nil)
				a.Namespace, a.Pod, a.UID = "", "", ""
				a.Env = []string{"CNI_ARGS=" + nomad(string(text), args...)}
				run := func(verb string) binarytest.Outcome { return a.Run(t, verb) }
				out := run("ADD")
				require.Equal(t, want.Exit, out.Exit, "%s\n%s", out.Stdout, out.Stderr)
				probes := make([]netnstest.Probe, 0, len(want.Fates))
				for probe := range want.Fates {
					p, err := netnstest.ParseProbe(probe)
					require.NoError(t, err)
					probes = append(probes, p)
				}
				got := w.Run(probes)
				for probe, fate := range want.Fates {
					assert.Equal(t, fate, got[probe], probe)
				}
				before := rules(t, w.Pod)
				require.Zero(t, run("ADD").Exit)
				assert.Equal(t, before, rules(t, w.Pod), "a second ADD")
				assert.Zero(t, run("CHECK").Exit)
				a.Env = nil
				assert.Zero(t, run("DEL").Exit)
			})
		}
	}
}
