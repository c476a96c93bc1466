//go:build linux

package installer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"time"
)

// token is a service account's token and what it says of itself. Its signature is not checked: the API server does that.
type token struct {
	value string
	// issued and expires are zero if the token does not say.
	issued, expires time.Time
	// bound is the kind of the object with which the token ends; one of boundTo.
	bound string
}

// boundTo are the kinds of objects that a token can be bound to.
var boundTo = []string{"node", "pod", "none"}

// parseToken reads a token's claims: those of RFC 7519, and those of the API server (kubernetes.io), which name the objects that
// the token is bound to.
func parseToken(value string) token {
	t := token{value: value, bound: "none"}
	parts := strings.Split(value, ".")
	if len(parts) != 3 {
		return t
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return t
	}
	var claims struct {
		Iat, Exp float64
		Objects  struct{ Node, Pod *struct{} } `json:"kubernetes.io"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return t
	}
	at := func(s float64) time.Time {
		if s <= 0 {
			return time.Time{}
		}
		return time.Unix(int64(s), 0)
	}
	t.issued, t.expires = at(claims.Iat), at(claims.Exp)
	switch {
	case claims.Objects.Pod != nil: // which also names the pod's node
		t.bound = "pod"
	case claims.Objects.Node != nil:
		t.bound = "node"
	}
	return t
}

// tokenLine matches the token in a kubeconfig of ours.
var tokenLine = regexp.MustCompile(`(?m)^    token: "([\w.-]+)"$`)

// tokenOf reads the token of a kubeconfig of ours; empty if there is none.
func tokenOf(kubeconfig []byte) token {
	if found := tokenLine.FindSubmatch(kubeconfig); found != nil {
		return parseToken(string(found[1]))
	}
	return token{}
}

// keptToken returns the token that an agent has left in the kubeconfig for the plugin, if it is still good: bound to the node, as
// nobody else's is, and not expired.
func keptToken(kubeconfig []byte, now time.Time) (kept token, ok bool) {
	kept = tokenOf(kubeconfig)
	return kept, kept.bound == "node" && now.Before(kept.expires)
}

const (
	// firstAnswer bounds a starting agent's wait for the plugin's token before it goes on with another.
	firstAnswer = 3 * time.Second
	// askTimeout bounds one request.
	askTimeout = 30 * time.Second
	// calm is the shortest time between requests that plugins cause by failing.
	calm = 30 * time.Second
	// unsupportedPause is the time between requests to an API server that does not support them, which may be updated.
	unsupportedPause = time.Hour
	// The pauses after a failure double from leastPause to mostPause, or to a twentieth of the token's lifetime.
	leastPause, mostPause = time.Second, 5 * time.Minute
)

// tokens keeps a token for the plugin. It asks for the next one when at most half of the lifetime has passed, so that an agent
// that is away, or an API server that is, stops no pod for the other half.
type tokens struct {
	ask     func(context.Context) (string, error) // nil: the plugin has the agent's own token
	log     *slog.Logger
	failed  func() // counts a failure
	changed func() // wakes the agent
	now     func() time.Time
	doubt   chan struct{} // a plugin could not read a pod: the token may be worthless

	failures int // in a row; only the goroutine of start uses it

	mu   sync.Mutex
	held token
	// until is the end of the held token by this node's clock, which may differ from the API server's.
	until time.Time
	// why is the last request's error; nil after a success and before the first answer.
	why error
	// given says whose token the plugin was given last.
	given string
}

// start begins to keep a token until the context ends, and returns when there is an answer, at most firstAnswer later. wait
// waits for the end.
func (t *tokens) start(ctx context.Context) (wait func()) {
	if t.ask == nil {
		return func() {}
	}
	answered := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		pause := t.renew(ctx)
		close(answered)
		t.changed()
		for t.sleep(ctx, pause) {
			pause = t.renew(ctx)
			t.changed()
		}
	})
	select {
	case <-answered:
	case <-time.After(firstAnswer):
	}
	return running.Wait
}

// sleep waits for a pause to end, or for a doubt that is there when the calm has passed. It returns false when the context ends.
func (t *tokens) sleep(ctx context.Context, pause time.Duration) bool {
	quiet := min(pause, calm)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(quiet):
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause - quiet):
	case <-t.doubt:
	}
	return ctx.Err() == nil
}

// givesOwn reports whether the plugin has the agent's token, and was to have another.
func (t *tokens) givesOwn() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.given == "agent"
}

// suspect makes the agent ask for a new token soon.
func (t *tokens) suspect() {
	select {
	case t.doubt <- struct{}{}:
	default:
	}
}

// renew asks once, and returns when to ask again. The held token stays until there is another.
func (t *tokens) renew(ctx context.Context) time.Duration {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	value, err := t.ask(asking)
	fresh := parseToken(value)
	lifetime := fresh.expires.Sub(fresh.issued)
	if err == nil && (fresh.issued.IsZero() || lifetime <= 0) {
		err = errors.New("the API server's token does not say when it expires")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return 0
	case err == nil:
		t.held, t.until, t.why, t.failures = fresh, t.now().Add(lifetime), nil, 0
		return spread(lifetime*2/5, lifetime/10)
	case t.why == nil || t.why.Error() != err.Error():
		t.log.Warn("there is no new token for the plugin; it will be asked for again", "error", err)
	}
	t.why = err
	if errors.Is(err, errors.ErrUnsupported) {
		return spread(unsupportedPause, unsupportedPause/10)
	}
	t.failed()
	pause := min(leastPause<<min(t.failures, 10), mostPause)
	if !t.until.IsZero() {
		pause = min(pause, t.held.expires.Sub(t.held.issued)/20)
	}
	t.failures++
	return spread(pause/2, pause)
}

// spread keeps the agents of many nodes from asking at once.
func spread(least, more time.Duration) time.Duration {
	return least + rand.N(more) //nolint:gosec // spreads nodes, keeps no secret
}

// choose returns the credentials that the plugin is to have: the held token; before there is one, that which an earlier agent has
// left; else the agent's own, which are given.
func (t *tokens) choose(own credentials, kubeconfig []byte) credentials {
	if t.ask == nil {
		return own
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	chosen, given, now := own, "agent", t.now()
	if now.Before(t.until) {
		chosen.token, given = t.held, "plugin"
	} else if kept, ok := keptToken(kubeconfig, now); ok {
		chosen.token, given = kept, "plugin"
	}
	switch {
	case given == t.given:
	case given == "agent":
		t.log.Warn("the plugin has the agent's own token, with its rights; the token ends with the agent's pod", "because", t.why)
	default:
		t.log.Info("the plugin has a token of its own", "bound", chosen.bound, "expires", chosen.expires)
	}
	t.given = given
	return chosen
}
