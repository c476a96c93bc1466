//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// The claims of a token that is bound to a pod (KEP 4193).
const (
	nodeClaim = "authentication.kubernetes.io/node-name"
	podClaim  = "authentication.kubernetes.io/pod-name"
)

// ofNodeAnnotation, after the product's prefix, is on the eviction by which the agent sees whether the chart's policy for evictions is in
// force: the policy takes the pod for one of the node that it names, and refuses it to all others.
const ofNodeAnnotation = "of-node"

// elsewhere is the name of no node.
const elsewhere = "another node"

// errUnconfined is an answer of the API server by which the agent's evictions are not known to end at its node. Other errors of
// proveConfined are no answer.
var errUnconfined = errors.New("not confined")

// errNoPolicy: nothing would refuse them. errNotListed: no answer.
var (
	errNoPolicy  = unconfined("the API server has no policy by which the agent may evict pods of its own node only")
	errNotListed = errors.New("the API server has not listed the policy by which the agent may evict pods of its own node only")
)

func unconfined(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUnconfined, fmt.Sprintf(format, args...))
}

// proveConfined returns nil if the API server refuses the agent's token evictions of other nodes' pods, by the policy of the chart. It asks for
// one that the policy has to refuse: of the agent's own pod, said to be of another node. Nothing is evicted by that if nothing refuses it, since
// it is a dry run and for a UID that no pod has.
func proveConfined(ctx context.Context, client *api.Client, id meshcni.Identity, node string) error {
	who, err := client.WhoAmI(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return unconfined("the API server does not say whose the agent's token is: %v", err)
	case err != nil:
		return fmt.Errorf("ask the API server whose the agent's token is: %w", err)
	}
	claim := func(key string) string {
		if values := who.Extra[key]; len(values) == 1 {
			return values[0]
		}
		return ""
	}
	account := strings.Split(who.Username, ":") // system:serviceaccount:NAMESPACE:NAME
	pod := claim(podClaim)
	if claim(nodeClaim) != node || pod == "" || len(account) != 4 {
		return unconfined("the agent's token names node %q and pod %q: it has to be a pod's on node %s (Kubernetes 1.30)", claim(nodeClaim), pod, node)
	}
	err = client.EvictNobody(ctx, account[2], pod, map[string]string{id.Key(ofNodeAnnotation): elsewhere})
	switch refused := " of node " + node + " may evict pods of its own node only"; {
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy ") && strings.HasSuffix(err.Error(), refused):
		return nil
	case apierrors.IsForbidden(err):
		return unconfined("the agent may not evict pods: %v", err)
	case err == nil, apierrors.IsConflict(err), apierrors.IsTooManyRequests(err), apierrors.IsInvalid(err):
		return errNoPolicy
	}
	return fmt.Errorf("ask the API server for an eviction that it has to refuse: %w", err)
}

const (
	// reproved is how often a proof is asked for anew while its policies do not change, and settled the same once they have: the API server acts
	// by a change some seconds after it tells of it.
	reproved, settled = 10 * time.Minute, 10 * time.Second
	// unproved is the first wait after a refutation, and unanswered that after no answer, as at a boot.
	unproved, unprovedMost, unanswered = time.Second, 10 * time.Minute, 3 * time.Second
	// proofTimeout bounds one, of which each request may take a slow API server many seconds.
	proofTimeout = 30 * time.Second
	// unprovedQuiet is how long an agent that has just started warns of nothing: policies are in force some seconds after they were made.
	unprovedQuiet = 30 * time.Second
)

// confinement holds the agent's proof of its token's bounds. A proof lasts as long as the policies that it saw; that the API server does not
// answer, or not soon, takes nothing from it.
type confinement struct {
	watch   func(ctx context.Context, lapse func()) // tells of changes of the policies; nil: nothing does
	listed  func(context.Context) error             // waits for the policies; nil: they are known
	prove   func(context.Context) error
	changed func() // the agent may evict now, or may no more
	log     *slog.Logger
	quiet   time.Duration
	again   chan struct{} // holds one if the policies have changed since the latest question

	mu      sync.Mutex
	since   time.Time // when the first answer was asked for
	proved  bool      // and not refuted since
	changes int       // of the policies
	saw     int       // how many of them the latest proof saw
	why     error     // the latest question has no answer, or a refutation
	warned  bool      // of that
}

// proven reports whether the agent may evict pods.
func (c *confinement) proven() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proved
}

// lapse ends a proof, as the policies are others now.
func (c *confinement) lapse() {
	c.mu.Lock()
	c.changes++
	c.mu.Unlock()
	select {
	case c.again <- struct{}{}:
	default:
	}
}

// ask asks for a proof.
func (c *confinement) ask(ctx context.Context) {
	select {
	case <-c.again:
	default:
	}
	c.mu.Lock()
	if c.since.IsZero() {
		c.since, c.why = time.Now(), errNotListed
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	var err error
	if c.listed != nil {
		err = c.listed(ctx)
	}
	c.mu.Lock()
	saw := c.changes // what the list has told is no change since
	c.mu.Unlock()
	if err == nil {
		err = c.prove(ctx)
	}
	c.mu.Lock()
	had := c.proved
	warns := err != nil && !c.warned && (had || time.Since(c.since) >= c.quiet) && (!had || errors.Is(err, errUnconfined))
	c.warned = err != nil && (c.warned || warns)
	switch c.why = err; {
	case err == nil:
		c.proved, c.saw = true, saw
	case errors.Is(err, errUnconfined):
		c.proved = false
	}
	has := c.proved
	c.mu.Unlock()
	switch {
	case has && !had:
		c.log.Info("pods that lost the plugin are evicted: the API server confines the agent's token to this node")
	case warns:
		c.log.Warn("pods that lost the plugin are not evicted", "error", err.Error())
	}
	if has != had {
		c.changed()
	}
}

// confirm returns nil if the latest proof holds. It sends no request.
func (c *confinement) confirm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.proved && c.saw == c.changes:
		return nil
	case c.proved:
		return errors.New("the API server's policies for evictions have changed, and it has yet to show that they hold")
	}
	return c.why
}

// run asks now and then, and when the policies have changed, until the context ends.
func (c *confinement) run(ctx context.Context) {
	refuted := wait.Backoff{Duration: unproved, Factor: 2, Steps: math.MaxInt, Cap: unprovedMost}
	for backoff, lapsed := refuted, false; ; {
		why, next := c.reason(), reproved
		if lapsed || !errors.Is(why, errUnconfined) {
			backoff = refuted
		}
		switch {
		case errors.Is(why, errUnconfined):
			next = backoff.Step()
		case why != nil:
			next = unanswered
		case lapsed:
			next = settled
		}
		select {
		case <-ctx.Done():
			return
		case <-c.again:
			lapsed = true
		case <-time.After(next):
			lapsed = false
		}
		c.ask(ctx) // it is noted
	}
}

// reason returns why there is no proof.
func (c *confinement) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

// News says that pods are not evicted, and how to change that.
func (c *confinement) News() []status.News {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proved || c.since.IsZero() || time.Since(c.since) < c.quiet {
		return nil
	}
	return []status.News{news.New(status.KindFinding, news.NotEvicting, fmt.Sprintf("pods that start without the plugin stay outside the mesh until somebody deletes them, since repair auto does not evict: %v; "+
		"set the chart's admission.enabled to true if the API server has ValidatingAdmissionPolicy (Kubernetes 1.30), or choose repair.mode none, delete or repair", c.why))}
}

// AutoAction is the name of AutoEvict among the values of --repair.
const AutoAction = "auto"

// evicting returns the settings of an agent that evicts by itself: pods that others replace and that lost the plugin, or whose own check says
// that they have no rules.
func (s Config) evicting() Config {
	s.Repair.Action, s.Repair.Force = repair.ActionDelete, false
	return s
}

// confinementOf returns what proves that an agent with these settings may evict; nil: it does not evict by itself.
func (o Options) confinementOf(s Config) *confinement {
	if !s.AutoEvict {
		return nil
	}
	var watched *policies
	var failed error
	return &confinement{quiet: unprovedQuiet, log: o.Log, changed: func() {}, again: make(chan struct{}, 1), watch: func(ctx context.Context, lapse func()) {
		var client *api.Client
		if client, failed = o.client(s); failed == nil {
			watched, failed = watchPolicies(ctx, client, s.evictionPolicy(), lapse)
		}
	}, listed: func(ctx context.Context) error {
		if failed != nil {
			return failed
		}
		return watched.check(ctx)
	}, prove: func(ctx context.Context) error {
		client, err := o.client(s)
		if err != nil {
			return err
		}
		return proveConfined(ctx, client, s.Identity, s.Node)
	}}
}
