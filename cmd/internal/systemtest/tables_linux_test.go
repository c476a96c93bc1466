package systemtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/meshcni/meshcni/internal/kernel/conntrack/conntracktest"
	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// TestNearlyFull: an agent says of a pod whose connection tracking table is nearly full that it is, while it is: in /readyz, where
// it is no reason to be unready, in its status, its list of pods and its metrics.
func TestNearlyFull(t *testing.T) {
	n := newNode(t, ruleset.BackendNftables)
	w := newWorld(t)
	n.start()
	n.proxy(nodeproxytest.Faults{})
	p := n.pod("cart", w.Pod, "ambient", worldAddrs...).create().add()
	p.runs()
	n.becomes(p, status.StateCaptured)
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	require.NoError(t, err)
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	name := fmt.Sprintf("%s/cart", n.ns)
	said := func(nearly bool) {
		t.Helper()
		require.NoError(t, proctest.Poll(patience, func() error {
			ready, metrics := n.get("/readyz"), n.get("/metrics")
			_, status := n.run("pods", "-o", "json")
			for where, is := range map[string]bool{
				"/readyz " + ready:     strings.Contains(ready, "warning: conntrack: ") && strings.Contains(ready, name+" has "),
				"/metrics":             strings.Contains(metrics, `meshcni_conntrack_pods{fill="nearly-full"} 1`),
				"/metrics, named":      strings.Contains(metrics, fmt.Sprintf(`meshcni_conntrack_fill_ratio{pod_name="cart",pod_namespace="%s"} 0.9`, n.ns)),
				"pods " + status:       strings.Contains(status, `"conntrackPercent": 92`),
				"pods's news":          strings.Contains(status, `"code": "conntrack"`),
				"the agent's socket's": n.states()["cart"].ConntrackPercent == 92,
			} {
				if is != nearly {
					return fmt.Errorf("%s says %t", where, is)
				}
			}
			if !strings.HasPrefix(ready, "ok\n") {
				return fmt.Errorf("not ready: %s", ready)
			}
			return nil
		}))
	}
	n.until("the metrics have the limit", func() bool {
		return strings.Contains(n.get("/metrics"), fmt.Sprintf("meshcni_conntrack_limit %s\n", strconv.FormatFloat(float64(limit), 'g', -1, 64)))
	})
	said(false)
	conntracktest.Fill(t, w.Pod, limit*92/100+100)
	said(true)
	code, _ := n.run("pods")
	assert.Zero(t, code, "it is captured all the same")
	require.NoError(t, w.Pod.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }))
	said(false)
}
