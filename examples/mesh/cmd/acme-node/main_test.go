package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/conflist"
)

const network = `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {"type": "ptp", "mtu": 1450}
  ]
}
`

// TestConflist: what the agent writes into the node's network, and that an uninstall leaves each byte as it was.
func TestConflist(t *testing.T) {
	c, err := program.Parse([]string{"run", "--exclude-namespaces=kube-system", "--kubernetes-service-host=10.96.0.1"})
	require.NoError(t, err)
	entry, err := c.Entry()
	require.NoError(t, err)
	edited, err := conflist.Insert([]byte(network), entry)
	require.NoError(t, err)
	assert.Equal(t, `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {"type": "ptp", "mtu": 1450},
    {"type": "acme-cni", "dialect": "acme", "backend": "auto", "log_level": "info", "run_dir": "/var/run/acme-cni", "pod_namespace": "acme-system", `+
		`"add_deadline": "30s", "kubernetes": {"kubeconfig": "/var/run/acme-cni/kubeconfig", "exclude_namespaces": ["kube-system"], `+
		`"cni_bin_dir": "/opt/cni/bin"}, "capabilities": {"io.kubernetes.cri.pod-annotations": true}}
  ]
}
`, string(edited))
	back, err := conflist.Remove(edited, "acme-cni")
	require.NoError(t, err)
	assert.Equal(t, network, string(back))
}
