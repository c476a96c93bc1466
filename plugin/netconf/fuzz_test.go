package netconf_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// FuzzParse: a configuration that is accepted has allowed values and survives Marshal.
func FuzzParse(f *testing.F) {
	f.Add([]byte(entry))
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"n","type":"meshcni","log_level":"DEBUG","backend":"nftables","uncaptured_family":"drop","prevResult":{}}`))
	f.Add([]byte(`{"add_deadline":"1h","backend":"","dialect":null,"kubernetes":{"exclude_namespaces":["\u2028<&"]}}`))
	f.Add([]byte(`{"ambient":{"dns_capture":true,"ipv6":null,"enablement_selectors":[{"podSelector":{"matchLabels":{"a":"b"}}},{}],"probe_ipv6":"::ffff:1.2.3.4"}}`))
	f.Add([]byte(`{"ambient":{"enablement_selectors":[{"namespaceSelector":{"matchLabels":{},"matchExpressions":[{"key":"a","operator":"In","values":[]}]}}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, _, err := netconf.Parse(text, meshcni.Identity{})
		require.Positive(t, c.AddDeadline)
		require.NotEmpty(t, c.RunDir)
		if err != nil {
			return
		}
		again, _, err := netconf.Parse(c.Marshal(), meshcni.Identity{})
		require.NoError(t, err)
		c.Annotations, c.PrevResult = nil, nil // the runtime's
		if c.Type == "" {
			c.Type = "meshcni"
		}
		if c.Kubernetes.ExcludeNamespaces == nil {
			c.Kubernetes.ExcludeNamespaces = []string{}
		}
		require.JSONEq(t, string(c.Marshal()), string(again.Marshal()))
		c.Meshes, again.Meshes = nil, nil // have other spaces
		require.Equal(t, c, again)
	})
}
