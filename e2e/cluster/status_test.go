package cluster_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// status is what "meshcni-node status" prints in the agent's pod.
type status struct {
	Ready    bool
	Warnings []string
	NotReady []string `json:"not_ready"`
	Pods     []struct{ Namespace, Name, State, Reason, Detail string }
}

func statusOf(t *testing.T, c *cluster) (s status) {
	t.Helper()
	out, err := c.Try("kubectl", "--namespace", system, "exec", "daemonset/meshcni-node", "--", "meshcni-node", "status", "-o", "json")
	require.NoError(t, err, out)
	require.NoError(t, json.Unmarshal([]byte(out), &s), out)
	return s
}

// capture returns a pod's state and its code, empty if the agent does not name it.
func (s status) capture(namespace, name string) (state, reason string) {
	for _, p := range s.Pods {
		if p.Namespace == namespace && p.Name == name {
			return p.State, p.Reason
		}
	}
	return "", ""
}
