package main

import (
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/rulesettest"
)

// Where packets go, without root.
func TestEgress(t *testing.T) {
	var inside redirect.PrefixSet
	require.NoError(t, inside.UnmarshalJSON([]byte(`["10.0.0.0/8", "fd00::/8"]`)))
	rules, err := egress(config{Inside: inside, Port: 3129}).Ruleset()
	require.NoError(t, err)
	rulesettest.New(t, rules, "10.244.1.5", "fd00:10:244::5").Table(`
		out tcp uid 1000 -> 198.51.100.10:443      => redirect 3129
		out tcp uid 1000 -> [2001:db8::10]:443     => redirect 3129
		out tcp uid 1000 -> 10.96.5.5:80           => pass
		out tcp uid 3128 -> 198.51.100.10:443      => pass
		in  tcp from 192.0.2.1 -> 10.244.1.5:8080  => pass
	`)
}

// One ADD, and where the pod's packets then go.
func TestAdd(t *testing.T) {
	w := netnstest.NewWorld(t, netnstest.Options{ProxyUID: 3128, ProxyGID: 3128, ProxyTCP: []uint16{3129}, ProxyUDP: []uint16{}})
	args := &skel.CmdArgs{ContainerID: "c1", Netns: w.Pod.Path(), IfName: "eth0", StdinData: []byte(`{"cniVersion": "1.0.0", "name": "pods", "type": "egress",
		"inside": ["10.0.0.0/8", "fd00::/8"], "port": 3129,
		"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.5/24"}]}}`)}
	assert.Error(t, check(args), "the rules are not there yet")
	require.NoError(t, add(args))
	require.NoError(t, check(args))
	for name, want := range map[string]string{
		"pod tcp 1000/1000 -> 172.16.3.3:443": "proxy:3129 orig=172.16.3.3:443",
		"pod tcp 3128/3128 -> 172.16.3.3:443": "out:443 orig=172.16.3.3:443",
		"pod tcp 1000/1000 -> 10.96.5.5:80":   "out:80 orig=10.96.5.5:80",
		"out tcp 0/0 -> 10.244.1.5:8080":      "app:8080 orig=10.244.1.5:8080",
	} {
		probe, err := netnstest.ParseProbe(name)
		require.NoError(t, err)
		assert.Equal(t, want, w.Run([]netnstest.Probe{probe})[name], name)
	}
	args.Netns = "/proc/self/ns/net"
	assert.Error(t, add(args), "the host's namespace is refused")
}
