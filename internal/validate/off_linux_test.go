package validate_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/validate"
	"github.com/meshcni/meshcni/redirect"
)

// TestIPv6OffOnLo: where IPv6 is switched off nothing of it can be tried, and nothing is
// missing; IPv4 is proven as ever.
func TestIPv6OffOnLo(t *testing.T) {
	t.Parallel()
	ns := pod(t, "10.244.1.5/24", "fd00:10:244::5/64")
	require.NoError(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6", []byte("1"), 0) }))
	r := redirect.Default()
	o := validate.Options{Redirect: r, Namespace: ns, Timeout: 10 * time.Second}
	_, err := validate.Run(context.Background(), o)
	var missing *validate.MissingError
	require.ErrorAs(t, err, &missing)
	load(t, ns, r.MustRuleset())
	after, err := validate.Run(context.Background(), o)
	require.NoError(t, err, "%s", after)
	assert.Contains(t, names(after, "works"), "ipv4 outbound", "%s", after)
	assert.Empty(t, names(after, "missing"), "%s", after)
}
