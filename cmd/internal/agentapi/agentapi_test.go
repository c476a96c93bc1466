package agentapi_test

import (
	"context"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
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
