package linkerd_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// proxy is how the proxy of the recordings listens.
var proxy = netnstest.Options{
	ProxyUID: 2102, ProxyGID: 2102,
	ProxyTCP: []uint16{4143, 4140, 4190, 4191, 15008, 15020}, ProxyUDP: []uint16{},
}

// TestFates: packets end up where they do under Linkerd's own plugin.
func TestFates(t *testing.T) {
	cases := dialecttest.Recorded(t, "../../testdata/fates/linkerd")
	require.Len(t, cases, 5)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { dialecttest.Fates(t, linkerd.New("kube-system"), proxy, c) })
	}
}

// TestFatesOfOtherPods compares with Linkerd's rules, written by hand from its
// documentation, for settings that no recording has.
func TestFatesOfOtherPods(t *testing.T) {
	annotate := func(kv ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for i := 0; i < len(kv); i += 2 {
				p.Annotations[kv[i]] = kv[i+1]
			}
		}
	}
	const many = "21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,443,3000-4000"
	tests := map[string]struct {
		change          func(*corev1.Pod)
		exempt, out, in string // rules in the places of Linkerd's
	}{
		"subnets of both families": {
			annotate(linkerd.SkipSubnets, "10.244.1.1/32,fd00:10:244::1/128"), "", "", "-A PROXY_INIT_REDIRECT -s 10.244.1.1/32 -j RETURN\n",
		},
		"user and group": {
			annotate(linkerd.ProxyUID, "2000", linkerd.ProxyGID, "1000"), "-A PROXY_INIT_OUTPUT -m owner --gid-owner 1000 -j RETURN\n", "", "",
		},
		"many ports": {
			annotate(linkerd.SkipInboundPorts, many, linkerd.SkipOutboundPorts, many), "",
			"-A PROXY_INIT_OUTPUT -p tcp -m multiport --dports 21:36,443,3000:4000 -j RETURN\n",
			"-A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 21:36,443,3000:4000 -j RETURN\n",
		},
		"control plane": {
			func(p *corev1.Pod) { p.Labels["linkerd.io/control-plane-component"] = "identity" }, "",
			"-A PROXY_INIT_OUTPUT -p tcp -m multiport --dports 443,6443 -j RETURN\n", "",
		},
	}
	plan := netnstest.Plan{ProxyUID: 2102, ProxyGID: 2102, Inbound: []uint16{4143, 4140, 4190, 4191, 15020}}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			uid := "2102"
			if strings.Contains(name, "user") {
				uid = "2000"
			}
			own := `*nat
:PROXY_INIT_OUTPUT - [0:0]
:PROXY_INIT_REDIRECT - [0:0]
-A PREROUTING -j PROXY_INIT_REDIRECT
-A OUTPUT -j PROXY_INIT_OUTPUT
-A PROXY_INIT_OUTPUT -m owner --uid-owner ` + uid + ` -j RETURN
` + tt.exempt + `-A PROXY_INIT_OUTPUT -o lo -j RETURN
` + tt.out + `-A PROXY_INIT_OUTPUT -p tcp -j REDIRECT --to-ports 4140
-A PROXY_INIT_REDIRECT -p tcp -m multiport --dports 4190,4191 -j RETURN
` + tt.in + `-A PROXY_INIT_REDIRECT -p tcp -j REDIRECT --to-ports 4143
COMMIT
`
			programs := map[ruleset.Family]string{
				ruleset.IPv4: own, ruleset.IPv6: strings.ReplaceAll(own, "10.244.1.1/32", "fd00:10:244::1/128"),
			}
			dialecttest.Equivalent(t, linkerd.New(), proxy, dialecttest.Case{Pod: meshed(tt.change)}, programs, netnstest.Probes(plan))
		})
	}
}
