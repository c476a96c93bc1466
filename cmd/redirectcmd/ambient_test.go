package redirectcmd_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestAmbientSettings: the settings of the dialect ambient come from flags, or from the configuration of the plugin.
func TestAmbientSettings(t *testing.T) {
	t.Parallel()
	const pod = "metadata: {namespace: shop, name: cart, labels: {istio.io/dataplane-mode: ambient, tier: web}}\nspec: {containers: [{name: cart, livenessProbe: {httpGet: {port: 8080}}}]}\n"
	configuration := list(`{"type":"meshcni","dialect":"ambient","ambient":{"dns_capture":false,"ipv6":false,"probe_ipv4":"198.18.0.1",` +
		`"enablement_selectors":[{"podSelector":{"matchLabels":{"tier":"web"}}}]}}`)
	flags := []string{
		"--dialect=ambient", "--ambient-dns-capture=false", "--ambient-ipv6=false", "--ambient-probe-ipv4=198.18.0.1",
		"--ambient-enablement-selectors", "- podSelector: {matchLabels: {tier: web}}",
	}
	rules := []string{"rules", "-f", "-", "--family", "all", "--ip", "10.244.1.5", "--ip", "fd00::5"}
	files := map[string]string{"theirs.conflist": configuration}
	for name, args := range map[string][]string{"flags": append(rules, flags...), "configuration": append(rules, "--config", "theirs.conflist")} {
		got := call{stdin: pod, files: files}.run(t, args...)
		assert.Equal(t, 0, got.code, got.errOut)
		assert.Contains(t, got.out, "-A ISTIO_INBOUND -s 198.18.0.1/32 -p tcp -m tcp --dport 8080 -j ACCEPT", name)
		assert.NotContains(t, got.out, "15053", name)
		assert.NotContains(t, got.out, "::1/128", name)
		assert.Contains(t, got.errOut, "ipv6 bypasses the mesh", name)
	}
	got := call{stdin: pod, files: files}.run(t, append(rules, "--config", "theirs.conflist", "--ambient-dns-capture", "--ambient-ipv6=true")...)
	assert.Contains(t, got.out, "15053")
	assert.Contains(t, got.out, "::1/128")
	got = call{stdin: pod, files: files}.run(t, "explain", "-f", "-", "--config", "theirs.conflist", "--ambient-enablement-selectors=[]")
	assert.Contains(t, got.out, "not-enabled")
	got = call{stdin: pod}.run(t, "explain", "-f", "-", "--dialect=ambient", "--ambient-probe-ipv6=10.0.0.1", "--ambient-enablement-selectors", "- podSelector: {matchExpressions: [{key: a, operator: Is}]}")
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.errOut, "--ambient-enablement-selectors: pod selector 1")
	assert.Contains(t, got.errOut, `--ambient-probe-ipv6: "10.0.0.1" is not a single host's IPv6 address`)
	files["bad.conflist"] = strings.Replace(configuration, "198.18.0.1", "ten", 1)
	got = call{stdin: pod, files: files}.run(t, "explain", "-f", "-", "--config", "bad.conflist", "--ambient-probe-ipv6=10.0.0.1")
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.errOut, `bad.conflist: ambient.probe_ipv4: "ten" is not an IP address`, "a key of the file")
	assert.Contains(t, got.errOut, `--ambient-probe-ipv6: "10.0.0.1" is not a single`, "and a flag beside it")
}
