//go:build linux

package installer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// jwt is a token of an account as the API server makes it; object is node, pod, or empty.
func jwt(account, object string, issued time.Time, lifetime time.Duration) string {
	claims := map[string]any{"sub": account, "iat": issued.Unix(), "exp": issued.Add(lifetime).Unix()}
	bound := map[string]any{"namespace": "meshcni-system"}
	if object != "" {
		bound[object] = map[string]string{"name": "x", "uid": "y"}
		if object == "pod" {
			bound["node"] = map[string]string{"name": "x", "uid": "y"}
		}
	}
	claims["kubernetes.io"] = bound
	payload, _ := json.Marshal(claims)
	return "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".c2ln"
}

func (n *node) token() string { return tokenOf([]byte(n.read(n.kubeconfig()))).value }

// The plugin has its own token from the start; a removed kubeconfig gets it back.
func TestPluginHasATokenOfItsOwn(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	own := jwt("plugin", "node", time.Now(), 4*time.Hour)
	a, _ := n.agent(func(o *Options) {
		onEvents(o)
		o.Token = func(context.Context) (string, error) { return own, nil }
	})
	within(t, patience, "ready", ready(a))
	assert.Equal(t, own, n.token())
	assert.Contains(t, n.read(n.kubeconfig()), base64.StdEncoding.EncodeToString([]byte("the CA")))
	metrics := scrape(t, a)
	for _, line := range []string{`meshcni_token_bound{object="node"} 1`, `meshcni_token_bound{object="pod"} 0`, `meshcni_failures_total{step="token"} 0`} {
		assert.Contains(t, metrics, line)
	}
	assert.Contains(t, metrics, fmt.Sprintf("meshcni_token_expires_timestamp_seconds %g", float64(parseToken(own).expires.Unix())))
	require.NoError(t, os.Remove(n.kubeconfig()))
	within(t, patience, "written again", func() bool { _, err := os.Stat(n.kubeconfig()); return err == nil })
	assert.Equal(t, own, n.token())
	n.put(filepath.Join(n.ServiceAccountDir, "ca.crt"), "another CA")
	within(t, patience, "with the new CA", func() bool {
		return strings.Contains(n.read(n.kubeconfig()), base64.StdEncoding.EncodeToString([]byte("another CA")))
	})
	assert.Equal(t, own, n.token())
	assert.Empty(t, n.install().actions, "an install beside the agent leaves it")
	assert.Equal(t, own, n.token())
}

// Without an answer the node is made ready all the same, with the agent's own token; that is said once. What the kubeconfig has
// from an earlier agent stays if it is the plugin's, is valid, and has not ended with that agent's pod.
func TestWithoutAnAnswer(t *testing.T) {
	now := time.Now()
	own := jwt("agent", "pod", now, time.Hour)
	for name, tc := range map[string]struct {
		found string
		kept  bool
		err   error
	}{
		"nothing there":           {err: errors.New("connection refused")},
		"not supported":           {err: fmt.Errorf("%w: no tokens for nodes", errors.ErrUnsupported)},
		"the plugin's":            {found: jwt("plugin", "node", now.Add(-time.Hour), 4*time.Hour), kept: true, err: errors.New("connection refused")},
		"the plugin's, forbidden": {found: jwt("plugin", "node", now, time.Hour), kept: true, err: errors.New("forbidden")},
		"the plugin's, expired":   {found: jwt("plugin", "node", now.Add(-5*time.Hour), 4*time.Hour), err: errors.New("forbidden")},
		"an earlier agent's":      {found: jwt("agent", "pod", now, time.Hour), err: errors.New("connection refused")},
		"one by hand":             {found: jwt("agent", "", now, time.Hour), err: errors.New("connection refused")},
		"another agent's":         {found: jwt("old-agent", "pod", now, time.Hour), err: errors.New("connection refused")},
		"no token":                {found: "token", err: errors.New("connection refused")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			if tc.found != "" {
				require.NoError(t, os.MkdirAll(n.RunDir, 0o755))
				n.write(n.kubeconfig(), string(kubeconfigFor(n.Config, credentials{token: parseToken(tc.found), ca: []byte("the CA")})), 0o600)
			}
			n.write(filepath.Join(n.ServiceAccountDir, "token"), own+"\n", 0o600)
			var log proctest.Buffer
			a, stop := n.agent(func(o *Options) {
				onEvents(o)
				o.Log = slog.New(slog.NewTextHandler(&log, nil))
				o.Token = func(context.Context) (string, error) { return "", tc.err }
			})
			within(t, patience, "ready", ready(a))
			if tc.kept {
				assert.Equal(t, tc.found, n.token())
				assert.NotContains(t, log.String(), "the agent's own token")
				return
			}
			assert.Equal(t, own, n.token())
			assert.Contains(t, scrape(t, a), `meshcni_token_bound{object="pod"} 1`)
			renewed := jwt("agent", "pod", now.Add(time.Second), time.Hour)
			n.put(filepath.Join(n.ServiceAccountDir, "token"), renewed)
			within(t, patience, "the kubelet's renewal reaches the plugin", func() bool { return n.token() == renewed })
			stop()
			assert.Equal(t, 1, strings.Count(log.String(), "the agent's own token"), log.String())
			assert.Contains(t, log.String(), tc.err.Error())
		})
	}
}

// A server that does not answer delays the installation by a bound, and its late answer is taken.
func TestLateAnswer(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	late := make(chan string)
	a, _ := n.agent(func(o *Options) {
		onEvents(o)
		o.Token = func(ctx context.Context) (string, error) {
			select {
			case value := <-late:
				return value, nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}
	})
	within(t, patience, "ready without", ready(a))
	assert.Equal(t, "token-1", n.token())
	own := jwt("plugin", "node", time.Now(), time.Hour)
	late <- own
	within(t, patience, "the plugin's own", func() bool { return n.token() == own })
}

// asked runs tokens in a bubble with a clock of its own for a time, and returns when they asked. answer is given the time since
// the start.
func asked(t *testing.T, lasts time.Duration, answer func(since time.Duration) (string, error), during func(*tokens)) (times []time.Duration, failures int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		k := &tokens{
			log: discard, now: time.Now, changed: func() {}, failed: func() { failures++ }, doubt: make(chan struct{}, 1),
			ask: func(context.Context) (string, error) {
				times = append(times, time.Since(start))
				return answer(time.Since(start))
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait := k.start(ctx)
		if during != nil {
			during(k)
		}
		time.Sleep(lasts - time.Since(start))
		cancel()
		wait()
	})
	return times, failures
}

func TestRenewal(t *testing.T) {
	for _, lifetime := range []time.Duration{10 * time.Minute, 4 * time.Hour, 24 * time.Hour} {
		t.Run(lifetime.String(), func(t *testing.T) {
			times, failures := asked(t, 5*lifetime, func(time.Duration) (string, error) {
				return jwt("plugin", "node", time.Now(), lifetime), nil
			}, nil)
			assert.Zero(t, failures)
			assert.GreaterOrEqual(t, len(times), 10)
			for i, at := range times[1:] {
				assert.LessOrEqual(t, at-times[i], lifetime/2, "so that half a lifetime is left at least")
				assert.GreaterOrEqual(t, at-times[i], lifetime*2/5)
			}
		})
	}
	// The server's clock is far from the node's: the lifetime counts, not the hour.
	times, _ := asked(t, 3*time.Hour, func(time.Duration) (string, error) {
		return jwt("plugin", "node", time.Now().Add(-100*time.Hour), 4*time.Hour), nil
	}, nil)
	assert.Len(t, times, 2)
}

// While requests fail, the token stays until it expires, and the pauses grow.
func TestRenewalFails(t *testing.T) {
	own := credentials{token: token{value: "own", bound: "pod"}}
	given := map[time.Duration]string{}
	times, failures := asked(t, 5*time.Hour, func(since time.Duration) (string, error) {
		if since > 0 {
			return "", errors.New("too many requests")
		}
		return jwt("plugin", "node", time.Now(), 4*time.Hour), nil
	}, func(k *tokens) {
		start := time.Now()
		for _, at := range []time.Duration{time.Minute, 3 * time.Hour, 4*time.Hour - time.Minute, 4*time.Hour + time.Minute} {
			time.Sleep(at - time.Since(start))
			given[at] = k.choose(own, nil).bound
			assert.Equal(t, given[at] == "pod", k.givesOwn(), "the agent says whose the plugin has")
		}
	})
	require.Greater(t, len(times), 10)
	assert.Equal(t, len(times)-1, failures)
	assert.Less(t, times[2]-times[1], 2*leastPause)
	for i, at := range times[2:] {
		assert.LessOrEqual(t, at-times[i+1], 2*mostPause)
	}
	assert.Equal(t, map[time.Duration]string{
		time.Minute: "node", 3 * time.Hour: "node", 4*time.Hour - time.Minute: "node", 4*time.Hour + time.Minute: "pod",
	}, given)
}

// A short token's renewal is tried often enough to come in time.
func TestShortTokensFailures(t *testing.T) {
	times, _ := asked(t, 10*time.Minute, func(since time.Duration) (string, error) {
		if since > 0 {
			return "", errors.New("connection refused")
		}
		return jwt("plugin", "node", time.Now(), 10*time.Minute), nil
	}, nil)
	for i, at := range times[2:] {
		assert.LessOrEqual(t, at-times[i+1], time.Minute)
	}
}

// A token that says nothing of its life is none that could be renewed in time.
func TestTokenWithoutALife(t *testing.T) {
	own := credentials{token: token{value: "own"}}
	_, failures := asked(t, time.Second, func(time.Duration) (string, error) { return "opaque", nil }, func(k *tokens) {
		assert.Equal(t, "own", k.choose(own, nil).value)
	})
	assert.Positive(t, failures)
}

// A server without such tokens is no failure, and is asked now and then, since it may be updated.
func TestUnsupported(t *testing.T) {
	times, failures := asked(t, 6*time.Hour, func(since time.Duration) (string, error) {
		return "", fmt.Errorf("bind to a node: %w", errors.ErrUnsupported)
	}, nil)
	assert.Zero(t, failures)
	assert.Len(t, times, 6)
}

// A plugin that cannot read its pod may have a token that is worth nothing, for instance because the service account was made
// anew: there is another soon, but plugins cannot make the agent ask again and again.
func TestDoubt(t *testing.T) {
	times, _ := asked(t, 20*time.Minute, func(time.Duration) (string, error) {
		return jwt("plugin", "node", time.Now(), 4*time.Hour), nil
	}, func(k *tokens) {
		start := time.Now()
		time.Sleep(10 * time.Minute)
		for time.Since(start) < 15*time.Minute {
			k.suspect()
			time.Sleep(time.Second)
		}
	})
	require.GreaterOrEqual(t, len(times), 2)
	assert.Equal(t, 10*time.Minute, times[1])
	assert.LessOrEqual(t, len(times), 2+10+1)
}

// The doubt comes from the plugin's own record, and from no other.
func TestPluginsFailureIsADoubt(t *testing.T) {
	doubts := 0
	s := &logSocket{m: newMetrics(prometheus.NewRegistry(), meshcni.Identity{}), unread: func() { doubts++ }}
	for _, record := range []string{
		`{"msg":"failed","verb":"ADD","code":7}`, `{"msg":"failed","verb":"ADD","code":101}`, `{"msg":"decision","code":11}`, `{"code":`,
	} {
		s.account([]byte(record))
	}
	assert.Zero(t, doubts)
	s.account([]byte(`{"msg":"failed","verb":"ADD","code":11}`))
	assert.Equal(t, 1, doubts)
}
