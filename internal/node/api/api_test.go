package api_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/testing/apiservertest"
)

// asked is what a request needs, as an API server's authorizer sees it.
func asked(r *http.Request) api.Right {
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var is api.Right
	if path[0] == "apis" {
		is.Group, path = path[1], path[3:]
	} else {
		path = path[2:]
	}
	if path[0] == "namespaces" && len(path) > 2 {
		path = path[2:]
	}
	path = append(path, "", "")
	is.Resource, is.Subresource = path[0], path[2]
	is.Verb = map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	switch query := r.URL.Query(); {
	case query.Has("watch"):
		is.Verb = "watch"
	case is.Verb == "get" && path[1] == "":
		is.Verb = "list"
	}
	return is
}

// TestRights: each verb of the client asks for what the right beside it permits, and for nothing else. None is without a row.
func TestRights(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []api.Right
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, asked(r))
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":418,"message":"no"}`)
	}))
	defer s.Close()
	c, err := api.New(meshcni.Identity{}, &rest.Config{Host: s.URL}, "n1")
	require.NoError(t, err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u1"}}
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}}
	reviews := func(group, resource string) api.Right {
		return api.Right{Group: group, Resource: resource, Verb: "create"}
	}
	verbs := map[string]struct {
		right api.Right
		do    func(context.Context) error
	}{
		"ListPods": {api.MayListPods, func(ctx context.Context) error {
			_, err := c.ListPods(ctx, metav1.ListOptions{}, func(p *corev1.Pod) *corev1.Pod { return p })
			return err
		}},
		"WatchPods":      {api.MayWatchPods, func(ctx context.Context) error { _, err := c.WatchPods(ctx, metav1.ListOptions{}); return err }},
		"Pod":            {api.MayListPods, func(ctx context.Context) error { _, err := c.Pod(ctx, "shop", "cart"); return err }},
		"Label":          {api.MayPatchStatus, func(ctx context.Context) error { _, err := c.Label(ctx, pod, "k", "v"); return err }},
		"Annotate":       {api.MayPatchStatus, func(ctx context.Context) error { return c.Annotate(ctx, pod, "k", "v") }},
		"PatchPodStatus": {api.MayPatchStatus, func(ctx context.Context) error { return c.PatchPodStatus(ctx, "shop", "cart", []byte("{}")) }},
		"Evict":          {api.MayEvict, func(ctx context.Context) error { return c.Evict(ctx, pod) }},
		"EvictNobody":    {api.MayEvict, func(ctx context.Context) error { return c.EvictNobody(ctx, "shop", "cart", nil) }},
		"Delete":         {api.MayDelete, func(ctx context.Context) error { return c.Delete(ctx, pod) }},
		"CreateEvent":    {api.MayCreateEvents, func(ctx context.Context) error { _, err := c.CreateEvent(ctx, event); return err }},
		"PatchEvent":     {api.MayPatchEvents, func(ctx context.Context) error { _, err := c.PatchEvent(ctx, event, []byte("{}")); return err }},
		"ListOne": {api.MayList(api.Namespaces), func(ctx context.Context) error {
			_, err := c.ListOne(ctx, api.Namespaces, "", "shop", metav1.ListOptions{})
			return err
		}},
		"WatchOne": {api.MayWatch(api.PolicyBindings), func(ctx context.Context) error {
			_, err := c.WatchOne(ctx, api.PolicyBindings, "", "p", metav1.ListOptions{})
			return err
		}},
		"GetOne":    {api.MayGet(api.Namespaces), func(ctx context.Context) error { _, err := c.GetOne(ctx, api.Namespaces, "", "shop"); return err }},
		"DaemonSet": {api.MayGet(api.DaemonSets), func(ctx context.Context) error { _, err := c.DaemonSet(ctx, "mesh", "agent"); return err }},
		"Node":      {api.MayGetNodes, func(ctx context.Context) error { _, err := c.Node(ctx); return err }},
		"ConfigMap": {api.MayGetConfigMaps, func(ctx context.Context) error { _, err := c.ConfigMap(ctx, "kube-system", "c"); return err }},
		"Token": {api.MayCreateTokens, func(ctx context.Context) error {
			_, err := c.Token(ctx, "mesh", "plugin", authenticationv1.TokenRequestSpec{})
			return err
		}},
		"WhoAmI": {reviews("authentication.k8s.io", "selfsubjectreviews"), func(ctx context.Context) error { _, err := c.WhoAmI(ctx); return err }},
		"Missing": {reviews("authorization.k8s.io", "selfsubjectaccessreviews"), func(ctx context.Context) error {
			_, err := c.Missing(ctx, []api.Right{api.MayEvict})
			return err
		}},
	}
	for name, verb := range verbs {
		got = nil
		require.Error(t, verb.do(t.Context()), name)
		assert.Equal(t, []api.Right{verb.right}, got, name)
	}
	for i := range reflect.TypeFor[*api.Client]().NumMethod() {
		name := reflect.TypeFor[*api.Client]().Method(i)
		if name.Name != "Describe" && name.Name != "Collect" {
			assert.Contains(t, verbs, name.Name, "a verb without a right")
		}
	}
}

// TestAnnotate: the annotation of that pod, and of no other of its name.
func TestAnnotate(t *testing.T) {
	t.Parallel()
	server := apiservertest.NewAPIServer(t)
	c, err := api.New(meshcni.Identity{}, &rest.Config{Host: server.URL(), BearerToken: server.Token(), TLSClientConfig: rest.TLSClientConfig{CAData: server.CA()}}, "n1")
	require.NoError(t, err)
	server.SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "u1", Annotations: map[string]string{"other": "stays"}}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "u1", ResourceVersion: "of before"}}
	const key = "ambient.istio.io/redirection"
	require.NoError(t, c.Annotate(t.Context(), pod, key, "enabled"))
	assert.Equal(t, map[string]string{"other": "stays", key: "enabled"}, server.Pod("shop", "cart-0").Annotations)
	assert.Equal(t, []string{"PATCH /api/v1/namespaces/shop/pods/cart-0/status"}, server.Requests())

	successor := pod.DeepCopy()
	successor.UID = "u2"
	err = c.Annotate(t.Context(), successor, key, "")
	require.True(t, apierrors.IsConflict(err), "%v", err)
	assert.Equal(t, "enabled", server.Pod("shop", "cart-0").Annotations[key])

	require.NoError(t, c.Annotate(t.Context(), pod, key, ""))
	assert.Equal(t, map[string]string{"other": "stays"}, server.Pod("shop", "cart-0").Annotations)
	server.DeletePod("shop", "cart-0")
	err = c.Annotate(t.Context(), pod, key, "enabled")
	assert.True(t, apierrors.IsNotFound(err), "%v", err)
	assert.ErrorContains(t, err, "write annotation ambient.istio.io/redirection of pod shop/cart-0")
}

// TestServerWithoutWords: whatever a server, or a proxy before it, answers to the question what is permitted, the error says something,
// and what it was about.
func TestServerWithoutWords(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct {
		status int
		body   string
		says   string
	}{
		"a status without a message": {http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, "403 (Forbidden)"},
		"nor a reason":               {http.StatusTeapot, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":418}`, "418 (no reason)"},
		"a blank message":            {http.StatusConflict, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":" \n","reason":"Conflict","code":409}`, "409 (Conflict)"},
		"a message":                  {http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"ask Ann","reason":"Forbidden","code":403}`, "ask Ann"},
		"no body":                    {http.StatusBadGateway, "", "502"},
		"a page":                     {http.StatusForbidden, "<html>", "403"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked++
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(answer.status)
				_, _ = w.Write([]byte(answer.body))
			}))
			defer s.Close()
			c, err := api.New(meshcni.Identity{}, &rest.Config{Host: s.URL}, "node")
			require.NoError(t, err)
			missing, err := c.Missing(t.Context(), []api.Right{api.MayListPods, api.MayEvict, api.MayDelete})
			require.ErrorContains(t, err, "ask whether it is permitted to list pods: ")
			assert.Empty(t, missing, "nobody knows")
			assert.Equal(t, 1, asked, "the rest would fail alike")
			if name != "no body" && name != "a page" {
				assert.ErrorContains(t, err, answer.says)
				var status apierrors.APIStatus
				assert.ErrorAs(t, err, &status)
			}
		})
	}
}

// TestConfigMap: what is no ConfigMap is said to be none, whatever it is.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	answer := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "application/json", r.Header.Get("Accept"))
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	c, err := api.New(meshcni.Identity{}, &rest.Config{Host: s.URL}, "n1")
	require.NoError(t, err)
	whole, err := json.Marshal(corev1.ConfigMap{Data: map[string]string{"a": "b"}})
	require.NoError(t, err)
	answer = string(whole)
	data, err := c.ConfigMap(t.Context(), "kube-system", "c")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"a": "b"}, data)
	for _, answer = range []string{"<html>", strings.Repeat(" ", 3<<20) + string(whole)} {
		_, err = c.ConfigMap(t.Context(), "kube-system", "c")
		require.ErrorContains(t, err, "no ConfigMap")
	}
}
