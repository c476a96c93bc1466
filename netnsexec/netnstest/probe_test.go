package netnstest_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// recording is what the reference implementation did: fates by probe, by case.
func recording(t *testing.T) map[string]struct{ Fates map[string]string } {
	t.Helper()
	data, err := os.ReadFile("../../testdata/fates/expected.json")
	require.NoError(t, err)
	var r map[string]struct{ Fates map[string]string }
	require.NoError(t, json.Unmarshal(data, &r))
	return r
}

func names(probes []netnstest.Probe) []string {
	out := make([]string, len(probes))
	for i, p := range probes {
		out[i] = p.String()
	}
	return out
}

func TestStandardProbesAreTheRecordedOnes(t *testing.T) {
	t.Parallel()
	// The decoder keeps the order of keys when it reads tokens, a map does not.
	data, err := os.ReadFile("../../testdata/fates/expected.json")
	require.NoError(t, err)
	var cases map[string]struct{ Fates json.RawMessage }
	require.NoError(t, json.Unmarshal(data, &cases))
	for name, c := range cases {
		if c.Fates == nil {
			continue // refused, so no fates
		}
		var m map[string]string
		require.NoError(t, json.Unmarshal(c.Fates, &m))
		got := netnstest.Probes(netnstest.Plan{})
		require.Len(t, got, 191)
		require.Len(t, m, 191)
		text := "{"
		for i, p := range names(got) {
			require.Contains(t, m, p, name)
			if i > 0 {
				text += ","
			}
			k, err := json.Marshal(m[p])
			require.NoError(t, err)
			text += fmt.Sprintf("%q:%s", p, k)
		}
		var compact = compactJSON(t, c.Fates)
		assert.Equal(t, compact, text+"}", "%s: names and order", name)
	}
}

func compactJSON(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var out []byte
	quoted := false
	for i, b := range raw {
		if b == '"' && (i == 0 || raw[i-1] != '\\') {
			quoted = !quoted
		}
		if quoted || b != ' ' && b != '\n' {
			out = append(out, b)
		}
	}
	return string(out)
}

func TestProbesOfOtherMeshes(t *testing.T) {
	t.Parallel()
	linkerd := netnstest.Probes(netnstest.Plan{
		ProxyUID: 2102, ProxyGID: 2102,
		Inbound: []uint16{4140, 4143, 4190, 4191, 15020},
	})
	assert.Len(t, linkerd, 189)
	assert.Contains(t, names(linkerd), "pod tcp 2102/2102 -> 10.244.1.5:8080 from 127.0.0.6")
	assert.Contains(t, names(linkerd), "out tcp 0/0 -> [fd00:10:244::5]:4191")
}

func TestParseProbe(t *testing.T) {
	t.Parallel()
	for _, p := range netnstest.Probes(netnstest.Plan{}) {
		back, err := netnstest.ParseProbe(p.String())
		require.NoError(t, err)
		assert.Equal(t, p, back)
	}
	for name, want := range map[string]string{
		"":                                               "want",
		"pod tcp 1/1 10.0.0.1:80":                        "want",
		"pod tcp 1/1 -> 10.0.0.1:80 to":                  "want",
		"pod tcp 1/1 -> 10.0.0.1:80 at 10.0.0.2":         "want",
		"host tcp 1/1 -> 10.0.0.1:80":                    "no namespace",
		"pod sctp 1/1 -> 10.0.0.1:80":                    "no protocol",
		"pod tcp 1 -> 10.0.0.1:80":                       "owner",
		"pod tcp 1/-1 -> 10.0.0.1:80":                    "owner",
		"pod tcp 1/4294967296 -> 10.0.0.1:80":            "owner",
		"pod tcp 1/1 -> 10.0.0.1":                        "parse probe",
		"pod tcp 1/1 -> 10.0.0.1:80 from x":              "parse probe",
		"pod tcp 01/1 -> 10.0.0.1:80":                    "canonical",
		"pod tcp 1/1 -> [fd00:0::1]:80":                  "canonical",
		"pod tcp 1/1 -> [::1]:80 from 0:0:0:0:0:0:0:1":   "canonical",
		"pod tcp 1/1 -> 10.0.0.1:80 from 10.0.0.2 extra": "want",
	} {
		_, err := netnstest.ParseProbe(name)
		assert.ErrorContains(t, err, want, name)
	}
}

func ExampleParseProbe() {
	p, err := netnstest.ParseProbe("pod tcp 1000/1337 -> 10.96.5.5:80 from 127.0.0.6")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a", p.Proto, "connection of user", p.UID, "to port", p.Dst.Port(), "from", p.Src)
	// Output: a tcp connection of user 1000 to port 80 from 127.0.0.6
}

func ExampleProbes() {
	probes := netnstest.Probes(netnstest.Plan{
		ProxyUID: 2102, ProxyGID: 2102,
		Inbound: []uint16{4143, 4191},
	})
	fmt.Println(len(probes), "probes, first:", probes[0])
	// Output: 183 probes, first: out tcp 0/0 -> 10.244.1.5:22
}
