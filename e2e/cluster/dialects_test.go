package cluster_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// otherMeshes are those that the other tests are not about, with port 9090 excluded both ways as each mesh does it; Linkerd's
// inbound port is its namespace's to exclude.
func otherMeshes() []mesh {
	return []mesh{
		{"linkerd", "linkerd-proxy", 2102, 4140, 4143, map[string]string{"config.linkerd.io/skip-outbound-ports": "9090"}},
		{"kuma", "kuma-sidecar", 5678, 15001, 15006, map[string]string{
			"kuma.io/sidecar-injected":              "true",
			"traffic.kuma.io/exclude-inbound-ports": "9090", "traffic.kuma.io/exclude-outbound-ports": "9090",
		}},
		{"consul", "consul-dataplane", 5995, 15001, 20000, map[string]string{
			"consul.hashicorp.com/connect-inject-status":    "injected",
			"consul.hashicorp.com/transparent-proxy-status": "enabled",
			"consul.hashicorp.com/dual-stack":               "false",
			"consul.hashicorp.com/redirect-traffic-config": `{"ProxyUserID":"5995","ProxyInboundPort":20000,` +
				`"ExcludeInboundPorts":["9090"],"ExcludeOutboundPorts":["9090"]}`,
		}},
	}
}

// TestDialectsTogether: one configuration for pods of several meshes that run side by side, each captured by its own rules.
func TestDialectsTogether(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "together")
	s.kubectl(t, "annotate", "namespace", s.namespace, "config.linkerd.io/skip-inbound-ports=9090")
	s.create(t, pod{name: "client", outside: true})
	install(t, c, "--set", "dialect={consul,linkerd,kuma}")
	assert.Contains(t, strings.Join(strings.Fields(fileText(t, confList)), ""), `"dialect":["consul","linkerd","kuma"]`)
	s.ready(t, "client")
	all := otherMeshes()
	for _, m := range all {
		shop{c, s.namespace, m}.create(t, pod{name: m.dialect})
	}
	for _, m := range all {
		step(t, c, m.dialect, func(t *testing.T) {
			s := shop{c, s.namespace, m}
			s.ready(t, m.dialect)
			s.assertCaptured(t, m.dialect, "client")
			ip, client := s.ip(t, m.dialect), s.ip(t, "client")
			assert.Equal(t, "9090 for "+client+":9090", s.dial(t, m.dialect, client+":9090"), "excluded outbound")
			assert.Equal(t, "9090 for "+ip+":9090", s.dial(t, "client", ip+":9090"), "excluded inbound")
		})
	}
	s.leave(t)
}
