package agentapi_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// TestAnswersAreShared: while an answer is made, nobody makes another; who asks meanwhile gets the same.
func TestAnswersAreShared(t *testing.T) {
	var nodes, pods, atOnce atomic.Int32
	begun, release := make(chan struct{}), make(chan struct{})
	alone := func() func() {
		assert.EqualValues(t, 1, atOnce.Add(1))
		return func() { atOnce.Add(-1) }
	}
	h := agentapi.Server{
		Node: func() any {
			defer alone()()
			if nodes.Add(1) == 1 {
				close(begun)
			}
			<-release
			return agentapi.Node{Node: "a"}
		},
		Pod: func(context.Context, string) agentapi.Pod {
			defer alone()()
			pods.Add(1)
			return agentapi.Pod{LiveError: "x"}
		},
	}.Handler()
	ask := func(path string) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Body.String()
	}
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() { assert.Contains(t, ask(agentapi.NodePath), `"node":"a"`) })
	}
	<-begun
	close(release)
	asking.Wait()
	assert.Less(t, nodes.Load(), int32(20))

	for range 10 {
		asking.Go(func() { assert.Contains(t, ask(agentapi.PodPath+"0b1c7d0e"), `"live_error":"x"`) })
	}
	asking.Wait()
	assert.EqualValues(t, 10, pods.Load(), "one after another, each as the pod is then")
}

// TestPodOfANewerAgent: fields that are not known are passed over, and codes are kept as they are.
func TestPodOfANewerAgent(t *testing.T) {
	var p agentapi.Pod
	require.NoError(t, json.Unmarshal([]byte(`{
		"state": {"namespace": "shop", "name": "cart", "uid": "u", "state": "suspended", "reason": "by-hand", "score": 3},
		"records": [{"version": 2, "network": "k8s", "containerID": "c", "ifName": "eth0", "selected": true, "reason": "by-hand", "backend": "xdp", "by": "ADD", "time": "2030-01-01T00:00:00Z",
			"rules": {"ipv4": {"family": "ipv4", "owner": {"prefix": "ISTIO_"}, "chains": [{"table": "nat", "name": "OUTPUT", "rules": [{"rule": "-j NFQUEUE --queue-num 3"}]}]}}}],
		"live": [{"backend": "xdp", "table": "t", "chain": "c", "position": 1, "rule": "r", "ours": true}],
		"differences": [{"kind": "reordered", "family": "mptcp", "table": "nat", "chain": "OUTPUT", "position": 1, "rule": "r"}],
		"lost": [], "links": [{"name": "eth0"}]
	}`), &p))
	assert.EqualValues(t, "suspended", p.State.State)
	assert.Equal(t, "by-hand", p.State.Reason)
	assert.Equal(t, "xdp", p.Records[0].Backend)
	assert.Zero(t, p.Records[0].Rules)
	assert.EqualValues(t, "xdp", p.Live[0].Backend)
	assert.True(t, p.Live[0].Ours)
	assert.Contains(t, p.Differences[0].String(), "nat/OUTPUT:1 reordered: r")
}
