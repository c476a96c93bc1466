package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// TestOnEvent: each run gives one event with what its log records say.
func TestOnEvent(t *testing.T) {
	t.Parallel()
	var events []plugin.Event
	c := newCall()
	c.plugin.OnEvent = func(_ context.Context, e plugin.Event) { events = append(events, e) }
	run := func(verb string) (plugin.Event, outcome) {
		events, c.env["CNI_COMMAND"] = nil, verb
		out := c.run(t)
		require.Len(t, events, 1)
		assert.Equal(t, verb, events[0].Verb)
		assert.Equal(t, "c0ffee", events[0].ContainerID)
		return events[0], out
	}
	e, out := run("ADD")
	assert.Zero(t, out.exit)
	assert.Equal(t, status.ID{Namespace: "shop", Name: "cart-0", UID: podUID}, e.Pod)
	assert.Equal(t, status.CodeSelected, e.Decision.Reason)
	assert.Equal(t, plugin.Redirected, e.Outcome)
	assert.Equal(t, []ruleset.Family{ruleset.IPv4}, e.Families)
	assert.Equal(t, []dialect.BypassCode{dialect.BypassIPv6}, e.Bypasses)
	require.Len(t, e.Warnings, 1)
	assert.Equal(t, warning.Code("bypass"), e.Warnings[0].Code)
	assert.Equal(t, 1, e.APICalls)
	assert.Nil(t, e.Err)
	assert.Positive(t, e.Duration)

	e, _ = run("CHECK")
	assert.Equal(t, plugin.Checked, e.Outcome)
	c.netns.Live = ruleset.Ruleset{}
	e, out = run("CHECK")
	assert.Equal(t, plugin.Failed, e.Outcome)
	assert.EqualValues(t, out.failure.Code, e.Err.Code)
	assert.Equal(t, out.failure.Msg, e.Err.Msg)
	e, _ = run("DEL")
	assert.Empty(t, e.Outcome)
	assert.Empty(t, e.Decision)

	c.netns.Applying = func(context.Context) { panic("ouch") }
	e, _ = run("ADD")
	assert.EqualValues(t, 999, e.Err.Code)

	c.netns.Applying = nil
	c.plugin.OnEvent = func(context.Context, plugin.Event) { panic("ouch") }
	assert.Zero(t, c.run(t).exit, "the hook is no reason to refuse a pod")
}

// TestOutcomeOfFailures: a run that fails has the outcome "failed", however far it got, and claims no rules.
func TestOutcomeOfFailures(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*call){
		"no such pod": func(c *call) { c.env["CNI_ARGS"] = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=other" },
		"the server answers 401": func(c *call) {
			c.pods.Hook = func(context.Context, int) error { return apierrors.NewUnauthorized("Unauthorized") }
		},
		"no credentials": func(c *call) { c.plugin.OpenPods = nil },
		"the namespace is gone": func(c *call) {
			c.plugin.OpenNetNS = func(string) (plugin.NetNS, error) { return nil, netnsexec.ErrGone }
		},
		"the rules are not taken": func(c *call) { c.netns.Applying = func(context.Context) { panic("ouch") } },
		"a configuration error":   func(c *call) { c.config["backend"] = "abacus" },
		"CHECK in the host's": func(c *call) {
			c.env["CNI_COMMAND"], c.plugin.OpenNetNS = "CHECK", func(string) (plugin.NetNS, error) { return nil, netnsexec.ErrHost }
		},
	} {
		c := newCall()
		c.config["add_deadline"] = "300ms"
		spoil(c)
		var events []plugin.Event
		c.plugin.OnEvent = func(_ context.Context, e plugin.Event) { events = append(events, e) }
		out := c.run(t)
		require.Equal(t, 1, out.exit, name)
		require.Len(t, events, 1, name)
		assert.Equal(t, plugin.Failed, events[0].Outcome, name)
		assert.Empty(t, events[0].Families, name)
	}
}

// TestStatusAsksTheSourceOfPods, if it can tell.
func TestStatusAsksTheSourceOfPods(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.config = set(c.config, "cniVersion", "1.1.0", "prevResult", nil)
	c.env = map[string]string{"CNI_COMMAND": "STATUS"}
	assert.Zero(t, c.run(t).exit)
	c.pods.NotReady = errors.New("the agent's cache has not synced")
	c.run(t).fails(t, 50, "has not synced")
}

// TestSeveralDialects: the configuration chooses by name, and the first is the default.
func TestSeveralDialects(t *testing.T) {
	t.Parallel()
	for name, prefix := range map[string]string{"": "TOY_", "toy": "TOY_", "istio": "ISTIO_"} {
		c := newCall()
		c.plugin.Dialects = []dialect.Dialect{toy(), istio.New()}
		c.config["dialect"] = name
		require.Zero(t, c.run(t).exit)
		assert.NotNil(t, c.netns.Live.IPv4.Chain(ruleset.NAT, prefix+"OUTPUT"))
	}
	c := newCall()
	c.plugin.Dialects = []dialect.Dialect{toy(), istio.New()}
	c.config["dialect"] = "kuma"
	c.run(t).fails(t, 7, `unknown dialect "kuma": known is toy, istio`)
}

// TestLoggerThatIsWrapped: the plugin's own log, and the embedder's beside it.
func TestLoggerThatIsWrapped(t *testing.T) {
	t.Parallel()
	var mine bytes.Buffer
	c := newCall()
	c.config["run_dir"] = t.TempDir()
	c.plugin.OpenLog = func(config netconf.Config, stderr io.Writer) (*slog.Logger, io.Closer) {
		log, closer := plugin.OpenLog(config, io.MultiWriter(stderr, &mine))
		return log.With("mesh", "acme"), closer
	}
	out := c.run(t)
	assert.Equal(t, "acme", out.record(t, "decision")["mesh"])
	assert.Equal(t, out.stderr, mine.String())
}
