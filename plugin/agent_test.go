package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// attaches gives the call an agent that attaches the pod and does not answer for it.
func (c *call) attaches(pod *corev1.Pod) {
	c.agent.Err = nil
	c.agent.Hook = func(_ context.Context, call string) error {
		if call == "pod" {
			return agentsock.ErrUnknown
		}
		return nil
	}
	c.agent.Set(pod, nil)
}

// asked makes the call's agent know the pod, and the API server not.
func asked(pod *corev1.Pod, namespace *corev1.Namespace) *call {
	c := newCall()
	c.agent.Err = nil
	c.agent.Set(pod, namespace)
	c.pods.Hook = func(context.Context, int) error { return errors.New("the API server was asked") }
	c.pods.Permanent = true
	return c
}

// TestPodFromTheAgent: the kubeconfig is not opened, and the record says who answered.
func TestPodFromTheAgent(t *testing.T) {
	t.Parallel()
	for _, value := range []any{nil, "", "prefer", "require"} {
		c := asked(meshPod(), nil)
		c.config = set(c.config, "agent", value)
		c.plugin.OpenPods = func(string) (plugin.Pods, error) { panic("the kubeconfig is opened") }
		var e plugin.Event
		c.plugin.OnEvent = func(_ context.Context, got plugin.Event) { e = got }
		out := c.run(t)
		require.Zero(t, out.exit, out.stdout)
		assert.NotNil(t, c.netns.Live.IPv4)
		assert.Equal(t, plugin.PodSource("agent"), e.PodSource)
		assert.Zero(t, e.APICalls)
		assert.Equal(t, "agent", out.record(t, "decision")["pod_source"])
	}
	c := newCall()
	assert.Equal(t, "api", c.run(t).record(t, "decision")["pod_source"])
}

// TestAgentIsNotAsked where it is off, and where nothing tells a pod from its predecessor of the same name.
func TestAgentIsNotAsked(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.agent.Err = nil
	c.agent.Set(meshPod(), nil)
	c.config["agent"] = "off"
	require.Zero(t, c.run(t).exit)
	assert.Equal(t, []int{0, 1}, []int{c.agent.Asked, c.pods.Calls()})

	var bare netconf.Agent
	require.NoError(t, bare.UnmarshalText([]byte("false")))
	assert.Equal(t, netconf.AgentOff, bare)

	c = newCall()
	c.agent.Err = nil
	c.agent.Set(meshPod(), nil)
	c.env["CNI_ARGS"] = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0"
	require.Zero(t, c.run(t).exit)
	assert.Equal(t, []int{0, 1}, []int{c.agent.Asked, c.pods.Calls()})
	c.config["agent"] = "require"
	c.run(t).fails(t, 50, "K8S_POD_UID", "require")

	c.config["agent"] = "maybe"
	c.run(t).fails(t, 7, `agent "maybe"`, "prefer, off, require")
}

// TestAgentCannotAnswer: whatever is wrong with the agent's answer, the API server has the last word, and with "require" the
// pod does not start.
func TestAgentCannotAnswer(t *testing.T) {
	t.Parallel()
	other := meshPod()
	other.UID = "another"
	for name, tt := range map[string]struct {
		agent func(*call)
		says  string
	}{
		"not there":       {func(c *call) { c.agent.Err = fs.ErrNotExist }, "file does not exist"},
		"dead":            {func(c *call) { c.agent.Err = syscall.ECONNREFUSED }, "connection refused"},
		"other UID":       {func(c *call) { c.agent.Set(other, nil) }, "does not know the pod"},
		"wrong namespace": {func(c *call) { c.agent.Set(meshPod(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}) }, "another namespace"},
		"stalled": {func(c *call) {
			c.agent.Hook = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		}, "deadline exceeded"},
		"panics": {func(c *call) { c.agent.Hook = func(context.Context, string) error { panic("ouch") } }, "ouch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCall()
			c.agent.Err = nil
			tt.agent(c)
			c.config["add_deadline"] = "1s"
			if name != "panics" {
				out := c.run(t)
				require.Zero(t, out.exit, out.stdout)
				assert.Equal(t, "api", out.record(t, "decision")["pod_source"])
			}
			c.config["agent"] = "require"
			out := c.run(t)
			assert.Equal(t, 1, out.exit)
			assert.Contains(t, out.failure.Msg, tt.says)
			if name != "panics" {
				out.fails(t, 11, "require")
			}
		})
	}
}

// TestAgentThatComesToKnow: "require" waits for a pod that the agent is about to see.
func TestAgentThatComesToKnow(t *testing.T) {
	t.Parallel()
	c := asked(meshPod(), nil)
	c.config["agent"] = "require"
	n := 0
	c.agent.Hook = func(context.Context, string) error {
		if n++; n < 3 {
			return agentsock.ErrUnknown
		}
		return nil
	}
	assert.Zero(t, c.run(t).exit)
	assert.Equal(t, 3, n)
}

// TestNamespaceFromTheAgent: where the namespace decides too, an agent that does not read it does not answer.
func TestNamespaceFromTheAgent(t *testing.T) {
	t.Parallel()
	excluded := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"mesh": "off"}}}
	c := asked(meshPod(), excluded)
	c.config["kubernetes"] = object{"exclude_namespace_selector": "mesh=off"}
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.Equal(t, "namespace-excluded-by-label", out.record(t, "decision")["reason"])

	c = newCall()
	c.agent.Err, c.agent.NoNamespaces = nil, true
	c.agent.Set(meshPod(), nil)
	c.pods.SetNamespace(excluded)
	c.config["kubernetes"] = object{"exclude_namespace_selector": "mesh=off"}
	out = c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.Equal(t, "namespace-excluded-by-label", out.record(t, "decision")["reason"])
	assert.Equal(t, 2, c.pods.Calls())
}

// TestAgentKnowsThePod: one that it has read is not let through by its annotations, unlike one that nobody could read.
func TestAgentKnowsThePod(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{true, false} {
		c := linkerdCall(map[string]string{})
		c.config = set(c.config, "agent", "require", "add_deadline", "60ms", "kubernetes", object{"exclude_namespace_selector": "mesh=off"})
		c.agent.Err, c.agent.NoNamespaces = fs.ErrNotExist, true
		if known {
			c.agent.Err = nil
			source, err := c.pods.Open("")
			require.NoError(t, err)
			p, err := source.Pod(t.Context(), "shop", "cart-0")
			require.NoError(t, err)
			c.agent.Set(p, nil)
		}
		out := c.run(t)
		if known {
			out.fails(t, 11, "the agent does not read namespaces")
		} else {
			require.Zero(t, out.exit, out.stdout)
		}
	}
}

// TestMirrorPodFromTheAgent: the runtime knows a static pod by its annotation's UID.
func TestMirrorPodFromTheAgent(t *testing.T) {
	t.Parallel()
	p := meshPod()
	p.UID, p.Annotations["kubernetes.io/config.mirror"] = "of-the-api", staticUID
	c := asked(p, nil)
	c.env["CNI_ARGS"] = args("shop", "cart-0", staticUID)
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
}

func ambientPod() *corev1.Pod {
	p := meshPod()
	p.Annotations, p.Labels = nil, map[string]string{"istio.io/dataplane-mode": "ambient"}
	p.Spec.Containers = p.Spec.Containers[:1]
	return p
}

// TestAttach: a pod whose proxy is on the node is captured by the agent, and recorded by the plugin.
func TestAttach(t *testing.T) {
	t.Parallel()
	c := asked(ambientPod(), nil)
	c.config["dialect"] = "ambient"
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	require.Len(t, c.agent.Attached, 1)
	patience := c.agent.Attached[0].Patience
	assert.Positive(t, patience)
	assert.Less(t, patience, 30*time.Second, "the answer comes within add_deadline")
	require.Equal(t, []agentsock.Attachment{{
		Patience: patience,

		ID:  attachment.ID{Network: "k8s-pod-network", ContainerID: "c0ffee", IfName: "eth0"},
		Pod: status.ID{Namespace: "shop", Name: "cart-0", UID: podUID}, Dialect: "ambient",
		NetNS: "/var/run/netns/cni-1", Addrs: addrs("10.244.1.5"),
	}}, c.agent.Attached)
	d := out.record(t, "decision")
	assert.Equal(t, []any{"redirected", "fake"}, []any{d["outcome"], d["backend"]})
	record, err := c.plugin.Attachments(netconf.Config{}).Read(c.agent.Attached[0].ID)
	require.NoError(t, err)
	assert.Equal(t, c.netns.Live.IPv4.String(), record.Rules.IPv4.String())
	assert.Equal(t, []string{"ambient", "fake"}, []string{record.Dialect, string(record.Backend)})

	out = c.run(t)
	assert.Equal(t, "same", out.record(t, "decision")["outcome"])
	c.env["CNI_COMMAND"] = "CHECK"
	assert.Equal(t, "checked", c.run(t).record(t, "decision")["outcome"])
	c.env["CNI_COMMAND"] = "DEL"
	for _, c.agent.Err = range []error{nil, fs.ErrNotExist, errors.New("no")} {
		assert.Zero(t, c.run(t).exit)
	}
	assert.Len(t, c.agent.Detached, 3)
	assert.Equal(t, c.agent.Attached[0].ID, c.agent.Detached[0])
}

// TestAttachFails: the pod does not start, and the error says how far it came.
func TestAttachFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		code int
		says []string
	}{
		"step": {
			&agentsock.StepError{Step: "listeners", Reason: "no-listener", Err: errors.New("nothing listens on port 15001")}, 11,
			[]string{"attach pod shop/cart-0", "listeners: nothing listens on port 15001", `"no-listener"`},
		},
		"agent without proxies": {agentsock.ErrUnsupported, 50, []string{"--ambient"}},
		"no agent":              {fs.ErrNotExist, 11, []string{" for the node's agent: ", "is it running"}},
		"busy":                  {agentsock.ErrBusy, 11, []string{" for the node's agent: ", "too many requests"}},
		"late":                  {context.DeadlineExceeded, 11, []string{" for the node's agent: "}},
		"agent that began":      {&agentsock.StepError{Step: "agent", Reason: "not-synced", Err: errors.New("no pods yet")}, 11, []string{" for the node's agent: ", "no pods yet"}},
		"no proxy": {&agentsock.StepError{Step: "hand-over", Reason: "no-proxy", Err: errors.New("no proxy is connected")}, 11,
			[]string{"attach pod shop/cart-0 to its node's proxy: waited ", " for the node's proxy: hand-over: no proxy is connected"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := asked(ambientPod(), nil)
			c.config = set(c.config, "dialect", "ambient", "add_deadline", "500ms")
			c.agent.Hook = func(_ context.Context, call string) error {
				if call == "attach" {
					return tt.err
				}
				return nil
			}
			out := c.run(t)
			out.fails(t, tt.code, tt.says...)
			assert.Equal(t, ruleset.Ruleset{}, c.netns.Live)
			assert.Equal(t, "failed", out.record(t, "decision")["outcome"])
			_, err := c.plugin.Attachments(netconf.Config{}).Read(attachment.ID{Network: "k8s-pod-network", ContainerID: "c0ffee", IfName: "eth0"})
			require.ErrorIs(t, err, fs.ErrNotExist)
		})
	}
	c := newCall()
	c.config["dialect"] = "ambient"
	c.attaches(ambientPod())
	c.pods.Set(ambientPod())
	c.pods.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	c.env["CNI_ARGS"] = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0"
	c.run(t).fails(t, 50, "attach pod shop/cart-0", "K8S_POD_UID")
	assert.Empty(t, c.agent.Attached)

	left := ambientPod()
	left.Labels = map[string]string{"istio.io/dataplane-mode": "none"}
	c = newCall()
	c.config["dialect"] = "ambient"
	c.attaches(left)
	c.pods.Set(ambientPod())
	c.pods.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	c.run(t).fails(t, 11, "selection", `"not-enabled"`)

	c = asked(ambientPod(), nil)
	c.config = set(c.config, "dialect", "ambient", "agent", "off")
	c.run(t).fails(t, 7, "agent: off", "ambient")
	assert.Empty(t, c.agent.Attached)
	c.env["CNI_COMMAND"] = "DEL"
	assert.Zero(t, c.run(t).exit)
}

// TestAttachAwaitsTheAgent: one that is replaced, at whatever moment, costs an ADD some time; what cannot come back ends it at once.
func TestAttachAwaitsTheAgent(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		errs  []error
		calls int
		exit  int
	}{
		"away": {[]error{
			fs.ErrNotExist, syscall.ECONNREFUSED, fmt.Errorf("ask: %w", io.ErrUnexpectedEOF), syscall.ECONNRESET, syscall.EPIPE, agentsock.ErrBusy,
			&agentsock.StepError{Step: "agent", Reason: "not-begun", Err: errors.New("another agent of the node has not ended yet")},
		}, 8, 0},
		"releasing":     {[]error{&agentsock.StepError{Step: "agent", Reason: "releasing", Err: errors.New("releasing")}}, 1, 1},
		"no proxy":      {[]error{&agentsock.StepError{Step: "hand-over", Reason: "no-proxy", Err: errors.New("the agent has waited")}}, 1, 1},
		"without nodes": {[]error{agentsock.ErrUnsupported}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := asked(ambientPod(), nil)
			c.config = set(c.config, "dialect", "ambient", "add_deadline", "10m")
			c.agent.Hook = func(_ context.Context, call string) (err error) {
				if call == "attach" && len(tt.errs) > 0 {
					err, tt.errs = tt.errs[0], tt.errs[1:]
				}
				return err
			}
			out := c.run(t)
			assert.Equal(t, tt.exit, out.exit, out.stdout)
			assert.Len(t, c.agent.Attached, tt.calls)
		})
	}
}

// TestStatusAsksTheAgent where an ADD could not work without it.
func TestStatusAsksTheAgent(t *testing.T) {
	t.Parallel()
	status := func(err error, config ...any) outcome {
		c := newCall()
		c.agent.Err = err
		c.config = set(set(c.config, "cniVersion", "1.1.0", "prevResult", nil), config...)
		c.env = map[string]string{"CNI_COMMAND": "STATUS"}
		return c.run(t)
	}
	assert.Zero(t, status(fs.ErrNotExist).exit)
	assert.Zero(t, status(nil, "dialect", "ambient").exit)
	status(fs.ErrNotExist, "dialect", "ambient").fails(t, 50, "ambient needs the node's agent")
	assert.Zero(t, status(fs.ErrNotExist, "dialect", "ambient", "ready_without_agent", true).exit)
	status(agentsock.ErrUnsupported, "dialect", "ambient", "ready_without_agent", true).fails(t, 50, "--ambient")
	status(fs.ErrNotExist, "agent", "require").fails(t, 50, "require")
	assert.Zero(t, status(agentsock.ErrUnsupported, "agent", "require").exit, "it is there, and has no proxies to serve")
	status(nil, "dialect", "ambient", "agent", "off").fails(t, 7, "agent: off")
}

// TestStalledAgent: a process that listens and never answers costs little, over a real socket.
func TestStalledAgent(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "agent")
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer func() { _ = syscall.Close(fd) }()
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: filepath.Join(dir, agentsock.Name)}))
	require.NoError(t, syscall.Listen(fd, 8))
	c := newCall()
	c.plugin.OpenAgent = nil
	c.config["run_dir"] = dir
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.Equal(t, "api", out.record(t, "decision")["pod_source"])
}

// TestAgentsTime: an agent that does not answer costs an ADD or a DEL at most 50 ms, which is what it is given.
func TestAgentsTime(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.config["dialect"] = []string{"istio", "ambient"}
	c.pods.SetNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	var asked []string
	c.agent.Hook = func(ctx context.Context, call string) error {
		end, ok := ctx.Deadline()
		assert.True(t, ok && time.Until(end) <= 50*time.Millisecond, call)
		asked = append(asked, call)
		return context.DeadlineExceeded
	}
	for _, c.env["CNI_COMMAND"] = range []string{"ADD", "DEL"} {
		out := c.run(t)
		require.Zero(t, out.exit, out.stdout)
	}
	assert.Equal(t, []string{"pod", "detach"}, asked)
}

// TestAgentKeyIsLeftOut of entries that say nothing else than the default.
func TestAgentKeyIsLeftOut(t *testing.T) {
	t.Parallel()
	for agent, want := range map[netconf.Agent]any{"": nil, netconf.AgentPrefer: nil, netconf.AgentOff: "off", netconf.AgentRequire: "require"} {
		var keys map[string]any
		require.NoError(t, json.Unmarshal(netconf.Config{Agent: agent}.Marshal(), &keys))
		assert.Equal(t, want, keys["agent"])
	}
}
