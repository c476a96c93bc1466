//go:build linux

package nodeagent

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

const (
	podPlain = `{"metadata":{"namespace":"shop","name":"plain","uid":"u1","resourceVersion":"1"},"spec":{"containers":[{"name":"app"}]},"status":{"phase":"Running","podIPs":[{"ip":"10.0.0.1"}]}}`
	podCart  = `{"metadata":{"namespace":"shop","name":"cart","uid":"u2","resourceVersion":"1","annotations":{"sidecar.istio.io/status":"{}"}},` +
		`"spec":{"containers":[{"name":"app"},{"name":"istio-proxy"}]},"status":{"phase":"Pending"}}`
	podHost = `{"metadata":{"namespace":"shop","name":"host","uid":"u3","resourceVersion":"1"},"spec":{"hostNetwork":true,"containers":[{"name":"app"}]},"status":{"phase":"Running","podIPs":[{"ip":"10.9.0.1"}]}}`
)

// follower collects what is told of each pod, in order.
type follower struct {
	told  chan []status.Pod
	words map[string][]string
}

func follow(t *testing.T, next func(yield func([]status.Pod) bool)) *follower {
	f := &follower{told: make(chan []status.Pod), words: map[string][]string{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pods := range next {
			select {
			case f.told <- pods:
			case <-t.Context().Done():
				return
			}
		}
	}()
	t.Cleanup(func() { <-done })
	return f
}

// until reads on until the pod's last state is that.
func (f *follower) until(t *testing.T, pod, state string) {
	t.Helper()
	for {
		if all := f.words[pod]; len(all) > 0 && all[len(all)-1] == state {
			return
		}
		select {
		case pods := <-f.told:
			for _, p := range pods {
				f.words[p.Name] = append(f.words[p.Name], string(p.State)+" "+string(p.Reason))
			}
		case <-time.After(netnstest.Patience):
			t.Fatalf("%s never is %q: %q", pod, state, f.words[pod])
		}
	}
}

// TestWatch: who follows is told of all pods of the node, first once they are known, and then what changes; in the process and at the socket.
func TestWatch(t *testing.T) {
	dir, o := node(t)
	known, events := make(chan struct{}), make(chan string, 8)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q := r.URL.Query(); {
		case r.URL.Path != "/api/v1/pods" || q.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":400,"reason":"BadRequest"}`)
		case q.Get("watch") == "":
			select {
			case <-known:
				_, _ = fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[%s,%s,%s]}`, podPlain, podCart, podHost)
			case <-r.Context().Done():
			}
		default:
			w.(http.Flusher).Flush()
			for {
				select {
				case e := <-events:
					_, _ = io.WriteString(w, e+"\n")
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	o.API, o.Config.Node, o.Config.Repair, o.Config.PluginServiceAccount = &rest.Config{Host: server.URL}, "n1", repair.Options{}, ""
	o.Config.HealthAddress = "127.0.0.1:0"
	agent := start(t, o)
	t.Cleanup(server.CloseClientConnections)
	ctx, stop := context.WithCancel(t.Context())
	socket := agentapi.Local(o.Config.RunDir).Socket
	require.Eventually(t, func() bool { _, err := os.Stat(socket); return err == nil }, netnstest.Patience, 5*time.Millisecond)
	is, err := os.Stat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), is.Mode().Perm(), "names of all pods are root's")

	within, remote := follow(t, agent.Watch(ctx)), follow(t, func(yield func([]status.Pod) bool) {
		for pods, err := range agentapi.Local(o.Config.RunDir).Watch(ctx) {
			if err != nil {
				assert.ErrorIs(t, err, agentapi.ErrBroken)
				assert.ErrorIs(t, ctx.Err(), context.Canceled, err)
				return
			}
			if !yield(pods) {
				return
			}
		}
	})
	both := []*follower{within, remote}
	for _, f := range both {
		select {
		case pods := <-f.told:
			t.Fatalf("told before the pods are known: %v", pods)
		default:
		}
	}
	close(known)
	for _, f := range both {
		f.until(t, "plain", "outside no-proxy")
		f.until(t, "cart", "waiting starting")
		f.until(t, "host", "outside host-network")
	}
	record := attachment.Record{
		ID: attachment.ID{Network: "k8s", ContainerID: "c0ffee", IfName: "eth0"}, Pod: status.ID{Namespace: "shop", Name: "cart", UID: "u2"},
		Selected: true, Dialect: "istio", Backend: ruleset.BackendNftables, Time: time.Unix(1, 0),
	}
	require.NoError(t, attachment.Open(dir+"/run").Write(record))
	for _, f := range both {
		f.until(t, "cart", "captured recorded")
	}
	events <- `{"type":"DELETED","object":` + podPlain[:len(podPlain)-1] + `,"kind":"Pod","apiVersion":"v1"}}`
	for _, f := range both {
		f.until(t, "plain", "outside gone")
		assert.Equal(t, []string{"waiting starting", "captured recorded"}, f.words["cart"], "nothing twice")
	}
	stop()
	later := follow(t, agent.Watch(t.Context()))
	later.until(t, "cart", "captured recorded")
	assert.Empty(t, later.words["plain"], "it has gone")
	assert.Equal(t, http.StatusNotFound, statusCode(agent.base(t)+"/v1/pods"), "it is not for whoever reaches the loopback interface")
}

// TestRecordWatch: a record that is written wakes who follows, also the first one, whose directory was not there.
func TestRecordWatch(t *testing.T) {
	store := attachment.Open(t.TempDir())
	w := recordWatch{dir: store.Dir, wake: make(chan struct{}, 1)}
	defer w.close()
	w.arm()
	write := func(container string) {
		require.NoError(t, store.Write(attachment.Record{ID: attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"}}))
	}
	write("a")
	w.arm() // as the next look does
	write("b")
	select {
	case <-w.wake:
	case <-time.After(netnstest.Patience):
		t.Error("nobody was woken")
	}
}

// TestWatchNeedsPods: without the node's pods there is nothing to follow.
func TestWatchNeedsPods(t *testing.T) {
	_, o := node(t)
	a, err := New(o)
	require.NoError(t, err)
	assert.Empty(t, slices.Collect(a.Watch(t.Context())))
}
