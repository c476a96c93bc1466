package dialects_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect"
)

// TestOf: one constructor has all that a configuration says about pods.
func TestOf(t *testing.T) {
	t.Parallel()
	c, _, err := netconf.Parse([]byte(`{"dialect": ["linkerd", "ambient"], "refuse_net_raw": true, "uncaptured_family": "drop", "ambient": {"dns_capture": false},
		"kubernetes": {"exclude_namespaces": [" shop ", ""], "exclude_namespace_selector": "mesh=off"}}`))
	require.NoError(t, err)
	m, err := dialects.Of(dialects.All(), c)
	require.NoError(t, err)
	assert.Equal(t, []string{"linkerd", "ambient"}, m.Meshes.Names())
	assert.Equal(t, dialects.Names(), m.Known.Names())
	assert.Equal(t, []string{"istio", "kuma", "consul"}, m.Others().Names())
	assert.Equal(t, dialect.Options{UncapturedFamily: redirect.UncapturedDrop, RefuseNetRaw: true}, m.Options)
	for _, l := range []dialect.List{m.Meshes, m.Others()} {
		assert.True(t, l.ExcludesNamespace("shop"))
		assert.True(t, l.MayReadNamespace())
	}
	assert.False(t, m.Everywhere().ExcludesNamespace("shop"))
	assert.Equal(t, m.Meshes.Names(), m.Everywhere().Names())
	r, err := m.Meshes.Named("ambient").Redirect(&corev1.Pod{}, nil, nil)
	require.NoError(t, err)
	assert.False(t, r.Redirect.DNS.Enabled(), "the mesh's own settings count")

	m, err = dialects.Of(dialects.All(), netconf.Config{})
	require.NoError(t, err)
	assert.Equal(t, dialects.Names()[:1], m.Meshes.Names(), "the default")
	m, err = dialects.Of(dialects.All()[:1], netconf.Config{})
	require.NoError(t, err)
	assert.Empty(t, m.Others())
}

// TestOfWrong: all wrong keys are named at once, by their names or by those of the flags.
func TestOfWrong(t *testing.T) {
	t.Parallel()
	c, _, err := netconf.Parse([]byte(`{"dialect": ["osm"], "ambient": {"probe_ipv4": "::1"}}`))
	require.NoError(t, err)
	c.Kubernetes.ExcludeNamespaceSelector = "a in b"
	_, err = dialects.Of(dialects.All(), c)
	for _, want := range []string{`dialect: unknown dialect "osm"`, "kubernetes.exclude_namespace_selector: ", `"::1" is not`} {
		require.ErrorContains(t, err, want)
	}
	var key *dialects.KeyError
	require.ErrorAs(t, err, &key)
	flags := dialects.ByFlag(err, func(flag string, err error) error { return errors.New("--" + flag) })
	for _, want := range []string{"--dialect", "--exclude-namespace-selector", `"::1" is not`} {
		require.ErrorContains(t, flags, want)
	}
	require.NoError(t, dialects.ByFlag(nil, dialects.Flag))
	_, err = dialects.Of(dialect.List{{Name: "odd"}}, c)
	require.ErrorAs(t, err, new(*dialect.InvalidError), "what cannot work is said first")
}
