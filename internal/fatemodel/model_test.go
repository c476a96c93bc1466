package fatemodel_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"net/netip"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/fatemodel"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// istio is the Redirect of a pod of Istio's without annotations.
func istio(change func(*redirect.Redirect)) redirect.Redirect {
	r := redirect.Default()
	r.IPv6 = redirect.FamilyPass
	r.Names.ChainPrefix = "ISTIO_"
	r.Proxy.TunnelPort = 15008
	r.Proxy.PassSources = []netip.Addr{netip.MustParseAddr("127.0.0.6"), netip.MustParseAddr("::6")}
	r.Inbound.ExcludePorts = redirect.Ports(15020, 15021, 15090)
	r.Outbound.ExcludePorts = redirect.Ports(15020)
	if change != nil {
		change(&r)
	}
	return r
}

func prefixes(t *testing.T, s string) redirect.PrefixSet {
	set, err := redirect.ParsePrefixes(s, 0)
	require.NoError(t, err)
	return set
}

// cases gives the Redirect of each recorded pod; nil for those that the mesh
// passes over. Pods that are refused have none.
func cases(t *testing.T) map[string]*redirect.Redirect {
	pod := func(dual bool, change func(*redirect.Redirect)) *redirect.Redirect {
		r := istio(change)
		if dual {
			r.IPv6 = redirect.FamilyCapture
		}
		return &r
	}
	return map[string]*redirect.Redirect{
		"sel-plain": pod(false, nil), "sel-native-sidecar": pod(false, nil), "fam-v4-default": pod(false, nil),
		"sel-istio-init": nil, "sel-no-status": nil, "sel-disable-envoy": nil, "sel-router": nil,
		"fam-dual": pod(true, nil),
		"id-uid-2000-gid-3000": pod(false, func(r *redirect.Redirect) {
			r.Proxy.UIDs, r.Proxy.GIDs = []uint32{2000}, []uint32{3000}
		}),
		"out-exclude-cidr": pod(true, func(r *redirect.Redirect) {
			r.Outbound.ExcludeCIDRs = prefixes(t, "198.51.100.0/24,2001:db8::/64")
		}),
		"out-include-cidr": pod(true, func(r *redirect.Redirect) {
			r.Outbound.CIDRs = prefixes(t, "10.96.0.0/16,fd00:96::/64")
		}),
		"out-exclude-ports": pod(true, func(r *redirect.Redirect) { r.Outbound.ExcludePorts = redirect.Ports(3306, 9090) }),
		"out-include-ports": pod(true, func(r *redirect.Redirect) {
			r.Outbound.Ports, r.Outbound.CIDRs = redirect.Ports(3306), redirect.PrefixSet{}
		}),
		"in-exclude-ports": pod(true, func(r *redirect.Redirect) {
			r.Inbound.ExcludePorts = redirect.Ports(7070, 9090, 15020, 15021, 15090)
		}),
		"in-include-none": pod(true, func(r *redirect.Redirect) { r.Inbound.Ports = redirect.PortSet{} }),
		"dns-capture": pod(false, func(r *redirect.Redirect) {
			r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
		}),
		"if-exclude":   pod(false, func(r *redirect.Redirect) { r.ExcludeInterfaces = []string{"net1"} }),
		"if-reroute":   pod(false, func(r *redirect.Redirect) { r.VirtualInterfaces = []string{"virt0"} }),
		"tproxy-plain": pod(false, func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }),
		"tproxy-dual":  pod(true, func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy }),
		"drop-invalid": pod(false, func(r *redirect.Redirect) { r.DropInvalid = true }),
	}
}

type recorded struct {
	Exit  int               `json:"exit"`
	Fates map[string]string `json:"fates"`
}

// The tracer foretells what the kernel did to each of the 191 probes of each
// recorded pod.
func TestRecordedFates(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "fates", "expected.json"))
	require.NoError(t, err)
	var expected map[string]recorded
	require.NoError(t, json.Unmarshal(text, &expected))

	pods := cases(t)
	tried := 0
	for name, want := range expected {
		if want.Exit != 0 {
			require.NotContains(t, pods, name)
			continue
		}
		require.Contains(t, pods, name)
		tproxy := pods[name] != nil && pods[name].Mode == redirect.ModeTProxy
		var rs ruleset.Ruleset
		if r := pods[name]; r != nil {
			rs = r.MustRuleset()
		}
		t.Run(name, func(t *testing.T) {
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
