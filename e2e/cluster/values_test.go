package cluster_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOwnFile: with a list of our own beside the network's, and what else can be chosen that needs no more than a cluster. Metrics
// are where a Service leads: at the node's address.
func TestOwnFile(t *testing.T) {
	c := sharedCluster(t)
	s := newShop(t, c, "own")
	s.create(t, pod{name: "client", outside: true})
	install(t, c, "--set", "cni.ownFile=true,writeStatus=true,resourceQuota.enabled=true,networkPolicy.enabled=true,metrics.service.enabled=true")

	list, err := os.ReadFile(confList)
	require.NoError(t, err)
	assert.Equal(t, primary, string(list), "the network's own")
	s.create(t, pod{name: "cart", validated: true})
	s.ready(t, "cart", "client")
	s.assertCaptured(t, "cart", "client")
	assert.Contains(t, metrics(t, c), "meshcni_plugin_outcomes_total{outcome=\"redirected\",verb=\"ADD\"} 1")

	s.leave(t)
	s.create(t, pod{name: "late"}, pod{name: "client", outside: true})
	s.ready(t, "late", "client")
	s.assertUncaptured(t, "late", "client")
}

// metrics are what the agent serves: at the address of its pod if the release opens that, else at the node's loopback address.
func metrics(t *testing.T, c *cluster) (text string) {
	t.Helper()
	ip := c.Run(t, "kubectl", "--namespace", system, "get", "pods", "-l", "app.kubernetes.io/component=node", "-o", "jsonpath={.items[0].status.podIP}")
	if _, err := c.Try("kubectl", "--namespace", system, "get", "service", "meshcni-node"); err != nil {
		ip = "127.0.0.1"
	}
	eventually(t, soon, "metrics", func() error {
		resp, err := http.Get("http://" + ip + ":15014/metrics") //nolint:noctx // a test's own
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if text = string(body); err == nil && !strings.Contains(text, "meshcni_") {
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		return err
	})
	return text
}
