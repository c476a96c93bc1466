package linkerd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// proxy is how the proxy of the recordings listens.
var proxy = netnstest.Options{
	ProxyUID: linkerd.DefaultUID, ProxyGID: linkerd.DefaultUID,
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
