package redirectcmd_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestLongListIsNotForIptables: what is too many rules for iptables is no text of iptables, is explained, and is nftables'.
func TestLongListIsNotForIptables(t *testing.T) {
	var list []string
	for i := range 10_001 {
		list = append(list, fmt.Sprintf("11.%d.%d.%d/32", i>>15&255, i>>7&255, i<<1&255))
	}
	pod := `apiVersion: v1
kind: Pod
metadata:
  name: long
  annotations:
    sidecar.istio.io/status: "{}"
    traffic.sidecar.istio.io/excludeOutboundIPRanges: "` + strings.Join(list, ",") + `"
spec:
  containers:
    - {name: app, image: a}
    - {name: istio-proxy, image: b}
`
	c := call{stdin: pod}
	got := c.run(t, "rules", "-f", "-", "--ip", "10.0.0.1")
	assert.Equal(t, 1, got.code, got.errOut)
	assert.NotContains(t, got.out, "-A ")
	assert.Contains(t, got.errOut, "iptables, which knows no sets, would have 100")
	got = c.run(t, "rules", "-f", "-", "--ip", "10.0.0.1", "--format", "nft")
	assert.Equal(t, 0, got.code, got.errOut)
	assert.Contains(t, got.out, "ip daddr @nat_output_ip_daddr return")
	got = c.run(t, "explain", "-f", "-", "--ip", "10.0.0.1")
	assert.Equal(t, 0, got.code, got.errOut)
	assert.Contains(t, got.out, "-t nat -A ISTIO_OUTPUT -d 11.0.0.0/32,11.0.0.2/32,")
	assert.Contains(t, got.out, ",(9993 more prefixes) -j RETURN")
	got = c.run(t, "trace", "-f", "-", "--ip", "10.0.0.1", "--direction", "out", "--proto", "tcp", "--dst", "11.0.0.4", "--dport", "80", "--uid", "1000")
	assert.Equal(t, 0, got.code, got.errOut)
	assert.Contains(t, got.out, "destination is excluded")
}
