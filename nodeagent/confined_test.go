//go:build linux

package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/repair"
)

// TestProof: only the refusal of the chart's policy, to this node's token, proves that it is in force; and what asks for it can evict nothing.
// That a real API server with the policy answers so, and one without does not, is repair/integration's to show.
func TestProof(t *testing.T) {
	t.Parallel()
	const policy = `pods \"agent\" is forbidden: ValidatingAdmissionPolicy 'meshcni-agent-evictions' with binding 'meshcni-agent-evictions' denied request: ` +
		`system:serviceaccount:mesh:meshcni-node of node n may evict pods of its own node only`
	failure := func(code int, reason, message string) string {
		return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"%s","code":%d}`, reason, message, code)
	}
	review := func(node, pod string) string {
		return fmt.Sprintf(`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:serviceaccount:mesh:meshcni-node",`+
			`"extra":{"authentication.kubernetes.io/node-name":[%q],"authentication.kubernetes.io/pod-name":[%q]}}}}`, node, pod)
	}
	for name, c := range map[string]struct {
		review, eviction         string
		reviewCode, evictionCode int
		says                     string // empty: it is proven
		unknown                  bool   // the answer is none
	}{
		"the policy":                 {review: review("n", "agent"), evictionCode: 403, eviction: failure(403, "Forbidden", policy)},
		"the policy of another node": {review: review("n", "agent"), evictionCode: 403, eviction: failure(403, "Forbidden", strings.Replace(policy, "node n", "node m", 1)), says: "may not evict pods"},
		"another policy":             {review: review("n", "agent"), evictionCode: 403, eviction: failure(403, "Forbidden", "ValidatingAdmissionPolicy 'x' denied request: may not"), says: "may not evict pods"},
		"no right":                   {review: review("n", "agent"), evictionCode: 403, eviction: failure(403, "Forbidden", `cannot create resource \"pods/eviction\"`), says: "may not evict pods"},
		"nothing refuses it":         {review: review("n", "agent"), evictionCode: 201, eviction: `{"kind":"Status","apiVersion":"v1","status":"Success"}`, says: "has no policy"},
		"the UID does":               {review: review("n", "agent"), evictionCode: 409, eviction: failure(409, "Conflict", "UID"), says: "has no policy"},
		"a disruption budget does":   {review: review("n", "agent"), evictionCode: 429, eviction: failure(429, "TooManyRequests", "budget"), says: "has no policy"},
		"it fails":                   {review: review("n", "agent"), evictionCode: 500, eviction: failure(500, "InternalError", "etcd"), says: "etcd", unknown: true},
		"the pod is gone":            {review: review("n", "agent"), evictionCode: 404, eviction: failure(404, "NotFound", "gone"), says: "gone", unknown: true},
		"another node's token":       {review: review("m", "agent"), says: `names node "m"`},
		"a token of no pod":          {review: review("n", ""), says: `pod ""`},
		"an old server":              {reviewCode: 404, review: failure(404, "NotFound", "no such resource"), says: "does not say whose"},
		"the review fails":           {reviewCode: 503, review: failure(503, "ServiceUnavailable", "later"), says: "later", unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				code, answer := c.reviewCode, c.review
				if strings.HasSuffix(r.URL.Path, "/eviction") {
					asked.Store(true)
					code, answer = c.evictionCode, c.eviction
					assert.Equal(t, "/api/v1/namespaces/mesh/pods/agent/eviction", r.URL.Path)
					assert.Equal(t, "All", r.URL.Query().Get("dryRun"))
					var e policyv1.Eviction
					body, err := io.ReadAll(r.Body)
					assert.NoError(t, err)
					assert.NoError(t, json.Unmarshal(body, &e))
					assert.Equal(t, []string{"All"}, e.DeleteOptions.DryRun)
					assert.Equal(t, api.NoPod, *e.DeleteOptions.Preconditions.UID)
					assert.Equal(t, map[string]string{"meshcni.io/of-node": "another node"}, e.Annotations)
				}
				w.WriteHeader(max(code, 200))
				_, _ = io.WriteString(w, answer)
			}))
			defer server.Close()
			client, err := api.New(meshcni.Identity{}, &rest.Config{Host: server.URL}, "n")
			require.NoError(t, err)
			err = proveConfined(t.Context(), client, meshcni.Identity{}, "n")
			assert.Equal(t, c.evictionCode != 0, asked.Load())
			if c.says == "" {
				assert.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
			assert.Equal(t, c.unknown, !errors.Is(err, errUnconfined), "%v", err)
		})
	}
}

// TestAutoEvict: with --repair=auto the agent reports until the API server is proven to confine it, evicts as long as it is, and says why not.
func TestAutoEvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer atomic.Pointer[error]
		set := func(err error) { answer.Store(&err) }
		var last atomic.Pointer[repair.Options]
		_, o := node(t)
		o.Config.Node, o.Config.AutoEvict, o.Config.Repair.SpareUnmanaged = "n", true, true
		o.open = func(r repair.Options) (controller, error) {
			last.Store(&r)
			return fake(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }), nil
		}
		var asked atomic.Int64
		var log proctest.Buffer
		told := func() int { return strings.Count(log.String(), "pods that lost the plugin are not evicted") }
		c := &confinement{log: slog.New(slog.NewTextHandler(&log, nil)), quiet: unprovedQuiet, changed: func() {}, again: make(chan struct{}, 1), prove: func(context.Context) error {
			asked.Add(1)
			return *answer.Load()
		}}
		installed := time.Now().Add(-time.Hour)
		r := o.withDefaults().newRepairer()
		r.confined, r.since = c, func() time.Time { return installed }
		action := func() string { return string(last.Load().Action) }

		set(errors.New("connection refused"))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- r.run(ctx) }()
		synctest.Wait()
		assert.Equal(t, "none", action())
		assert.Nil(t, last.Load().Detect.Lost)
		assert.Empty(t, r.News(), "it has just begun")
		assert.Zero(t, told(), "policies are in force some seconds after they were made")
		set(unconfined("no policy"))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, "none", action())
		assert.Equal(t, 1, told(), "once")
		assert.Contains(t, strings.Join(news.Warnings(r.News()), ""), "not-evicting: ")
		assert.Contains(t, strings.Join(news.Warnings(r.News()), ""), "no policy; set the chart's admission.enabled to true")

		set(nil)
		time.Sleep(2 * unprovedMost)
		synctest.Wait()
		assert.Equal(t, "delete", action())
		assert.Empty(t, r.News())
		got := last.Load()
		assert.True(t, got.SpareUnmanaged, "nobody would make such a pod anew")
		assert.Equal(t, installed, got.Detect.Lost.Since())
		assert.Contains(t, got.Detect.Lost.Neighbours, "istio-cni")
		assert.NotContains(t, got.Detect.Lost.Neighbours, "meshcni")
		assert.Equal(t, repair.ActionDelete, r.acting().Repair.Action)
		assert.NoError(t, news.Err(r.News()))

		before := asked.Load()
		require.NoError(t, got.Confined())
		time.Sleep(3 * reproved)
		synctest.Wait()
		require.NoError(t, got.Confined())
		assert.LessOrEqual(t, asked.Load(), before+3, "a proof lasts as long as the policies that it saw")
		set(errors.New("connection refused"))
		time.Sleep(3 * reproved)
		synctest.Wait()
		assert.Greater(t, asked.Load(), before)
		require.NoError(t, got.Confined(), "no answer refutes nothing")
		assert.Equal(t, "delete", action())
		assert.Equal(t, 1, told())

		c.lapse()
		require.ErrorContains(t, got.Confined(), "have changed", "until there is a proof that saw the change")
		set(nil)
		time.Sleep(unanswered)
		synctest.Wait()
		require.NoError(t, got.Confined())
		assert.Equal(t, "delete", action())
		before = asked.Load()
		c.lapse()
		synctest.Wait()
		assert.Equal(t, before+1, asked.Load(), "at once")
		require.NoError(t, got.Confined())
		set(unconfined("the policy is gone"))
		time.Sleep(settled)
		synctest.Wait()
		require.ErrorContains(t, got.Confined(), "the policy is gone", "the API server acts by a change some seconds later")
		assert.Equal(t, "none", action())
		assert.Contains(t, strings.Join(news.Warnings(r.News()), ""), "the policy is gone")
		cancel()
		require.NoError(t, <-ended)
	})
}

// TestListIsNoChange: a proof holds that was asked for once the policies had been listed, whenever the list came.
func TestListIsNoChange(t *testing.T) {
	t.Parallel()
	c := &confinement{log: slog.New(slog.DiscardHandler), changed: func() {}, again: make(chan struct{}, 1), prove: func(context.Context) error { return nil }}
	c.listed = func(context.Context) error { c.lapse(); return nil }
	c.ask(t.Context())
	require.NoError(t, c.confirm())
	c.lapse()
	require.ErrorContains(t, c.confirm(), "have changed")
	c.listed = func(context.Context) error { return errNoPolicy }
	c.ask(t.Context())
	require.ErrorIs(t, c.confirm(), errNoPolicy)
}

// TestEvicting: the chart's role grants evictions alone; and where the runtime need not call the plugin for each pod, none has lost it.
func TestEvicting(t *testing.T) {
	t.Parallel()
	c := DefaultConfig(meshcni.Identity{})
	c.Repair.Force = true
	e := c.evicting()
	assert.Equal(t, repair.ActionDelete, e.Repair.Action)
	assert.False(t, e.Repair.Force)
	relied := func(change func(*Config)) time.Time {
		c := DefaultConfig(meshcni.Identity{})
		change(&c)
		r := Options{Dialects: builtin.All(), Config: c}.withDefaults().newRepairer()
		r.since = time.Now
		return r.relied()
	}
	assert.NotZero(t, relied(func(*Config) {}))
	assert.Zero(t, relied(func(c *Config) { c.Chained = false }))
	assert.Zero(t, relied(func(c *Config) { c.CNIConfName = "10-x.conflist" }))
}
