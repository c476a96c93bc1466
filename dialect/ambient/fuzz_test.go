package ambient_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
)

// FuzzConfigure: settings are refused, each fault with its key, or make a valid mesh.
func FuzzConfigure(f *testing.F) {
	f.Add([]byte(`{"dns_capture":true,"ipv6":null,"enablement_selectors":[{"podSelector":{"matchLabels":{"a":"b"}}},{}],"probe_ipv6":"2001:db8::1"}`))
	f.Add([]byte(`{"enablement_selectors":[{"namespaceSelector":{"matchLabels":{},"matchExpressions":[{"key":"a","operator":"In","values":[]}]}}]}`))
	f.Add([]byte(`{"enablement_selectors":[],"probe_ipv4":"::1","colour":[]}`))
	d := ambient.New(ambient.Options{})
	f.Fuzz(func(t *testing.T, settings []byte) {
		configured, _, err := d.Configure(d, settings)
		var key *dialect.KeyError
		if err != nil {
			require.True(t, errors.As(err, &key), "%v", err)
			require.NotContains(t, dialect.ByFlag(err, func(e *dialect.KeyError) error { return errors.New("--" + e.Flag()) }).Error(), ": ")
			return
		}
		require.NoError(t, dialect.Validate([]dialect.Dialect{configured}))
	})
}
