package dialects_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/dialects"
)

func TestEveryNameIsADialectOfThatName(t *testing.T) {
	for _, name := range dialects.Names() {
		d, err := dialects.ByName(name, []string{"kube-system"}, nil)
		require.NoError(t, err)
		assert.Equal(t, name, d.Name)
		assert.True(t, d.Policy.ExcludesNamespace("kube-system"))
	}
	d, err := dialects.ByName("", nil, nil)
	require.NoError(t, err)
	assert.Equal(t, "istio", d.Name)
}

func TestUnknownNameListsTheKnown(t *testing.T) {
	_, err := dialects.ByName("Istio", nil, nil)
	assert.EqualError(t, err, `unknown dialect "Istio": known is istio, ambient, linkerd, kuma, consul`)
}

// What one dialect reads of CNI_ARGS, the others refuse.
func TestSandboxKeys(t *testing.T) {
	var keys []string
	for _, name := range dialects.Names() {
		d, err := dialects.ByName(name, nil, nil)
		require.NoError(t, err)
		if d.Sandboxes != nil {
			keys = append(keys, d.Sandboxes.Key)
		}
	}
	assert.ElementsMatch(t, keys, dialects.SandboxKeys())
}

// TestExcludedNamespacesAreTrimmed, whatever form they came in.
func TestExcludedNamespacesAreTrimmed(t *testing.T) {
	for _, names := range [][]string{{"shop", " kube-system "}, {"\tkube-system", "", " "}} {
		l, err := dialects.Choose(dialects.All(), []string{"kuma"}, names, nil)
		require.NoError(t, err)
		assert.True(t, l.ExcludesNamespace("kube-system"))
		assert.False(t, l.ExcludesNamespace(""))
	}
}
