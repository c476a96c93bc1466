package nodepods_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	nodeapi "github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// object is JSON.
type object = map[string]any

// api is an API server that lists and watches pods by their node and namespaces by their name, in JSON.
type api struct {
	*httptest.Server
	mu       sync.Mutex
	version  int
	history  []object          // the event of each version, from 1
	objects  map[string]object // by kind and name
	watchers map[chan object]string
	requests []string // path and selector
	broken   bool
}

func newAPI(t *testing.T) *api {
	a := &api{objects: map[string]object{}, watchers: map[chan object]string{}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	key := r.URL.Path + "?" + q.Get("fieldSelector")
	w.Header().Set("Content-Type", "application/json")
	a.mu.Lock()
	a.requests = append(a.requests, key)
	if a.broken || q.Get("sendInitialEvents") != "" {
		broken := a.broken
		a.mu.Unlock()
		status := object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400, "reason": "BadRequest", "message": "not here"}
		if broken {
			status["code"], status["reason"] = 403, "Forbidden"
		}
		w.WriteHeader(status["code"].(int))
		_ = json.NewEncoder(w).Encode(status)
		return
	}
	if q.Get("watch") == "" {
		items := []object{}
		for _, o := range a.objects {
			if a.matches(o, key) {
				items = append(items, o)
			}
		}
		kind, group := "PodList", "v1"
		if strings.Contains(key, "namespaces") {
			kind, group = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		list := object{"kind": kind, "apiVersion": group, "metadata": object{"resourceVersion": fmt.Sprint(a.version)}, "items": items}
		a.mu.Unlock()
		_ = json.NewEncoder(w).Encode(list)
		return
	}
	events := make(chan object, 1000)
	a.watchers[events] = key
	since, _ := strconv.Atoi(q.Get("resourceVersion"))
	for _, e := range a.history[min(since, len(a.history)):] {
		if a.matches(e["object"].(object), key) {
			events <- e
		}
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, events)
		a.mu.Unlock()
	}()
	w.(http.Flusher).Flush()
	for {
		select {
		case e := <-events:
			_ = json.NewEncoder(w).Encode(e)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (a *api) matches(o object, key string) bool {
	path, selector, _ := strings.Cut(key, "?")
	meta := o["metadata"].(object)
	if path == "/api/v1/namespaces" {
		return o["kind"] == "PartialObjectMetadata" && selector == "metadata.name="+meta["name"].(string)
	}
	spec, _ := o["spec"].(object)
	return o["kind"] == "Pod" && selector == "spec.nodeName="+spec["nodeName"].(string)
}

// put stores an object and tells the watchers; event is ADDED, MODIFIED or DELETED.
func (a *api) put(event string, o object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	meta := o["metadata"].(object)
	meta["resourceVersion"] = fmt.Sprint(a.version)
	id := fmt.Sprint(o["kind"], meta["namespace"], meta["name"])
	if event == "DELETED" {
		delete(a.objects, id)
	} else {
		a.objects[id] = o
	}
	e := object{"type": event, "object": o}
	a.history = append(a.history, e)
	for events, key := range a.watchers {
		if a.matches(o, key) {
			events <- e
		}
	}
}

func (a *api) seen(part string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.requests {
		if strings.Contains(r, part) {
			n++
		}
	}
	return n
}

func pod(namespace, name, uid string) object {
	return object{
		"kind": "Pod", "apiVersion": "v1",
		"metadata": object{"namespace": namespace, "name": name, "uid": uid, "managedFields": []object{{"manager": "x"}}},
		"spec":     object{"nodeName": "n1", "containers": []object{{"name": "app"}}, "volumes": []object{{"name": "v"}}},
	}
}

func namespace(name, label string) object {
	return object{
		"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
		"metadata": object{"name": name, "labels": object{"mesh": label}},
	}
}

func start(t *testing.T, a *api, o nodepods.Options) *nodepods.Watch {
	t.Helper()
	client, err := nodeapi.New(meshcni.Identity{}, &rest.Config{Host: a.URL, QPS: -1}, "n1")
	require.NoError(t, err)
	o.API = client
	w, err := nodepods.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return w
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, netnstest.Patience, time.Millisecond, what)
}

func names(w *nodepods.Watch) (all []string) {
	for _, p := range w.Pods() {
		all = append(all, p.Namespace+"/"+p.Name)
	}
	return all
}

// TestPods: the node's pods, trimmed, as they come, change and go.
func TestPods(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.put("ADDED", pod("shop", "cart", "u1"))
	other := pod("shop", "elsewhere", "u9")
	other["spec"].(object)["nodeName"] = "n2"
	a.put("ADDED", other)
	w := start(t, a, nodepods.Options{})
	eventually(t, "synced", w.Synced)
	require.NoError(t, w.Ready())
	assert.Equal(t, []string{"shop/cart"}, names(w))
	assert.Empty(t, w.Pods()[0].Spec.Volumes)
	assert.Empty(t, w.Pods()[0].ManagedFields)

	var mu sync.Mutex
	var told []types.UID
	stop := w.Subscribe(func(uid types.UID) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, uid)
	})
	heard := func(uid types.UID) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Contains(told, uid)
		}
	}
	a.put("DELETED", pod("shop", "cart", "u1"))
	eventually(t, "a pod that is gone", heard("u1"))
	assert.Empty(t, names(w))
	stop()
	assert.Zero(t, a.seen("namespaces"), "they are not read unless wanted")
	_, err := w.Namespace("kube-system")
	require.ErrorIs(t, err, nodepods.ErrNotRead)
}

// TestNamespaces: those with pods here are watched, by their names, and nothing is said of any that is not known.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for i := range 50 {
		a.put("ADDED", namespace(fmt.Sprint("other-", i), "on"))
	}
	a.put("ADDED", namespace("shop", "on"))
	a.put("ADDED", pod("shop", "cart", "u1"))
	a.put("ADDED", pod("gone", "ghost", "u2"))
	w := start(t, a, nodepods.Options{Namespaces: true})
	label := func() string {
		ns, err := w.Namespace("shop")
		if err != nil {
			return err.Error()
		}
		return ns.Labels["mesh"]
	}
	eventually(t, "known", func() bool { return label() == "on" })
	eventually(t, "known not to exist", func() bool { _, err := w.Namespace("gone"); return apierrors.IsNotFound(err) })
	_, err := w.Namespace("other-1")
	require.ErrorIs(t, err, nodepods.ErrUnknown)
	assert.Zero(t, a.seen("other-"))
	assert.Equal(t, a.seen("/namespaces"), a.seen("/namespaces?metadata.name="), "never all of them")

	told := make(chan types.UID, 10)
	defer w.Subscribe(func(uid types.UID) { told <- uid })()
	a.put("MODIFIED", namespace("shop", "off"))
	assert.Equal(t, types.UID("u1"), <-told)
	assert.Equal(t, "off", label())

	got, err := w.Pod(t.Context(), status.ID{Namespace: "shop", Name: "cart", UID: "u1"})
	require.NoError(t, err)
	assert.Equal(t, "off", got.Namespace.Labels["mesh"])
	_, err = w.Pod(t.Context(), status.ID{Namespace: "gone", Name: "ghost", UID: "u2"})
	require.ErrorIs(t, err, agentsock.ErrUnknown, "the namespace decides too")

	a.put("DELETED", pod("shop", "cart", "u1"))
	assert.Equal(t, types.UID("u1"), <-told)
	_, err = w.Namespace("shop")
	require.ErrorIs(t, err, nodepods.ErrUnknown, "one without pods is forgotten")
	eventually(t, "its watch ends", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, key := range a.watchers {
			if strings.Contains(key, "shop") {
				return false
			}
		}
		return true
	})
}

// TestPodThatComes: an answer waits for a pod that is on its way, and only for the one that is meant.
func TestPodThatComes(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.put("ADDED", namespace("shop", "on"))
	w := start(t, a, nodepods.Options{Namespaces: true, Patience: time.Minute})
	eventually(t, "synced", w.Synced)
	answer := make(chan agentsock.Pod)
	go func() {
		p, err := w.Pod(context.Background(), status.ID{Namespace: "shop", Name: "cart", UID: "new"})
		assert.NoError(t, err)
		answer <- p
	}()
	a.put("ADDED", pod("shop", "cart", "old"))
	eventually(t, "the old one", func() bool { return len(w.Pods()) == 1 })
	a.put("DELETED", pod("shop", "cart", "old"))
	a.put("ADDED", pod("shop", "cart", "new"))
	got := <-answer
	assert.Equal(t, types.UID("new"), got.Pod.UID)
	assert.Equal(t, "on", got.Namespace.Labels["mesh"])

	for _, id := range []status.ID{{Namespace: "shop", Name: "cart"}, {Namespace: "shop", Name: "cart", UID: "old"}, {Namespace: "shop", Name: "x", UID: "new"}, {Namespace: "x", Name: "cart", UID: "new"}} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := w.Pod(ctx, id)
		require.Error(t, err, id)
	}
}

// TestServerThatRefuses: what is not known is not taken for nothing, and why is told.
func TestServerThatRefuses(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.broken = true
	w := start(t, a, nodepods.Options{Namespaces: true, Patience: time.Hour})
	eventually(t, "told", func() bool { err := w.Ready(); return err != nil && strings.Contains(err.Error(), "watch pods") })
	assert.False(t, w.Synced())
	_, err := w.Pod(t.Context(), status.ID{Namespace: "shop", Name: "cart", UID: "u1"})
	require.ErrorIs(t, err, agentsock.ErrUnknown)
	a.mu.Lock()
	a.broken = false
	a.mu.Unlock()
	a.put("ADDED", pod("shop", "cart", "u1"))
	eventually(t, "synced", w.Synced)
	eventually(t, "ready", func() bool { return w.Ready() == nil })

	_, err = nodepods.New(nodepods.Options{})
	require.Error(t, err)
	require.Error(t, w.Run(t.Context()), "it runs once")
}

// TestServerThatIsNotThere: why nothing was read is told, also while the reflector asks for nothing but a first watch.
func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.Close()
	client, err := nodeapi.New(meshcni.Identity{}, &rest.Config{Host: a.URL, QPS: -1}, "n1")
	require.NoError(t, err)
	w, err := nodepods.New(nodepods.Options{API: client, Patience: time.Hour})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	eventually(t, "told", func() bool { return errors.Is(w.Ready(), syscall.ECONNREFUSED) })
	_, err = w.Pod(t.Context(), status.ID{Namespace: "shop", Name: "cart", UID: "u1"})
	require.ErrorIs(t, err, agentsock.ErrUnknown, "at once")
	cancel()
	require.NoError(t, <-done)
}
