package difftest_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/consul"
	"github.com/meshcni/meshcni/dialect/dialecttest"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/dialect/linkerd"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
)

// meshes are those of which there are recordings, with the proxy that listened.
var meshes = []struct {
	dir     string
	dialect dialect.Dialect
	proxy   netnstest.Options
	probes  int
}{
	{"", istio.New("kube-system", "istio-system"), netnstest.Options{}, 21 * 191},
	{"linkerd", linkerd.New("kube-system"), netnstest.Options{
		ProxyUID: 2102, ProxyGID: 2102, ProxyTCP: []uint16{4143, 4140, 4190, 4191, 15008, 15020}, ProxyUDP: []uint16{},
	}, 5 * 189},
	{"consul", consul.New("kube-system"), netnstest.Options{
		ProxyUID: 5995, ProxyGID: 5995, ProxyTCP: []uint16{20000, 15001, 8600, 15008, 15020}, ProxyUDP: []uint16{8600},
	}, 3 * 211},
}

// The tracer foretells what the kernel did to each probe of each recorded pod.
func TestRecordedFates(t *testing.T) {
	for _, mesh := range meshes {
		m := model(mesh.proxy)
		tried := 0
		for name, c := range dialecttest.Recorded(t, filepath.Join("../../../testdata/fates", mesh.dir)) {
			t.Run(mesh.dialect.Name+"/"+name, func(t *testing.T) {
				rs, r, err := c.Rules(mesh.dialect)
				if c.Refused {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				for probe, fate := range c.Fates {
					p, err := netnstest.ParseProbe(probe)
					require.NoError(t, err)
					got, result, err := m.Fate(rs, p)
					require.NoError(t, err, probe)
					if r.Mode == redirect.ModeTProxy && strings.HasSuffix(fate, ":15008") && strings.HasPrefix(got, "proxy:15008 ") {
						// Istio's own program takes the tunnel's port to its
						// inbound listener with TPROXY only; we let it through.
						fate = strings.Replace(fate, "proxy:15006", "proxy:15008", 1)
					}
					assert.Equal(t, fate, got, "%s\n%s", probe, result.Explain())
					tried++
				}
			})
		}
		assert.Equal(t, mesh.probes, tried)
	}
}
