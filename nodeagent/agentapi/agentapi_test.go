package agentapi_test

import (
	"context"
	"encoding/json"
	"net/http"
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
		asking.Go(func() { assert.Contains(t, ask(agentapi.PodPath+"0b1c7d0e"), `"liveError":"x"`) })
	}
	asking.Wait()
	assert.EqualValues(t, 10, pods.Load(), "one after another, each as the pod is then")
}

// TestClient: what an agent does not answer, or not in time or in bounds, is an error that says which.
func TestClient(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case agentapi.PodPath + "long":
			_, _ = w.Write(make([]byte, agentapi.MaxAnswer+1))
		case agentapi.PodPath + "busy":
			http.Error(w, "busy", http.StatusServiceUnavailable)
		case agentapi.PodPath + "torn":
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("{"))
		case agentapi.PodPath + "u1":
			_, _ = w.Write([]byte(`{"liveError":"x","of a newer agent":1}`))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	c := agentapi.Client{URL: server.URL}
	p, err := c.Pod(t.Context(), "u1")
	require.NoError(t, err)
	assert.Equal(t, "x", p.LiveError)
	_, err = c.Node(t.Context())
	require.ErrorIs(t, err, agentapi.ErrNoAPI)
	_, err = c.Pod(t.Context(), "torn")
	require.ErrorIs(t, err, agentapi.ErrBroken)
	_, err = c.Pod(t.Context(), "long")
	require.ErrorContains(t, err, "longer than 4 MiB")
	_, err = c.Pod(t.Context(), "busy")
	require.ErrorContains(t, err, "503 Service Unavailable: busy")
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
	assert.EqualValues(t, "by-hand", p.State.Reason)
	assert.EqualValues(t, "xdp", p.Records[0].Backend)
	assert.Zero(t, p.Records[0].Rules)
	assert.EqualValues(t, "xdp", p.Live[0].Backend)
	assert.True(t, p.Live[0].Ours)
	assert.Contains(t, p.Differences[0].String(), "nat/OUTPUT:1 reordered: r")
}
