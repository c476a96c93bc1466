package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/netconf"
)

var versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func TestVersionAnswersInTheVersionThatWasAsked(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]string{
		`{"cniVersion":"0.4.0"}`: "0.4.0", `{"cniVersion":"1.1.0"}`: "1.1.0",
		`{"cniVersion":"9.0.0"}`: "1.1.0", ` `: "1.1.0", `}{`: "1.1.0", `{"cniVersion":1}`: "1.1.0",
	} {
		c := newCall()
		c.env, c.stdin = map[string]string{"CNI_COMMAND": "VERSION"}, asked
		out := c.run(t)
		assert.Zero(t, out.exit)
		assert.JSONEq(t, `{"cniVersion":"`+want+`","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`, out.stdout)
		assert.Empty(t, out.stderr)
		info, err := (&version.PluginDecoder{}).Decode([]byte(out.stdout))
		require.NoError(t, err)
		assert.Equal(t, versions, info.SupportedVersions())
	}
}

func TestRunByHandSaysWhatItIs(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.env = nil
	c.plugin.Identity.Version = "v1.2.3"
	out := c.run(t)
	assert.Zero(t, out.exit)
	assert.Empty(t, out.stdout)
	assert.Equal(t, "CNI plugin meshcni v1.2.3\nCNI protocol versions supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n", out.stderr)

	c.io.Args = []string{"/x/own-name", "--version"}
	out = c.run(t)
	assert.Zero(t, out.exit)
	assert.Equal(t, "own-name v1.2.3\n", out.stdout)
}

func TestZeroPluginAndZeroIO(t *testing.T) {
	t.Parallel()
	assert.Zero(t, (&plugin.Plugin{}).Run(t.Context(), plugin.IO{}))
	var out bytes.Buffer
	code := (&plugin.Plugin{}).Run(t.Context(), plugin.IO{
		Getenv: func(k string) string { return map[string]string{"CNI_COMMAND": "STATUS"}[k] }, Stdout: &out,
	})
	assert.Equal(t, 1, code)
	assert.Contains(t, out.String(), `"code": 6`)
}

// TestNoLogger: whatever OpenLog gives, every verb ends as it would.
func TestNoLogger(t *testing.T) {
	t.Parallel()
	logs := map[string]func(netconf.Config, io.Writer) (*slog.Logger, io.Closer){
		"nothing":  func(netconf.Config, io.Writer) (*slog.Logger, io.Closer) { return nil, nil },
		"a closer": func(netconf.Config, io.Writer) (*slog.Logger, io.Closer) { return nil, io.NopCloser(nil) },
		"a logger": func(_ netconf.Config, w io.Writer) (*slog.Logger, io.Closer) {
			return slog.New(slog.NewJSONHandler(w, nil)), nil
		},
	}
	faults := map[string]func(*call){
		"well":            func(*call) {},
		"an unknown key":  func(c *call) { c.config["surplus"] = 1 },
		"a wrong key":     func(c *call) { c.config["backend"] = 7 },
		"no pod":          func(c *call) { c.plugin.OpenPods = nil },
		"a panic":         func(c *call) { c.netns.Applying = func(context.Context) { panic("ouch") } },
		"stdout is gone":  func(c *call) { c.io.Stdout = errWriter{} },
		"no records kept": func(c *call) { c.plugin.Attachments = nil; c.config["run_dir"] = "/dev/null/run" },
	}
	for kind, open := range logs {
		for fault, spoil := range faults {
			for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION", "NONE"} {
				t.Run(kind+"/"+fault+"/"+verb, func(t *testing.T) {
					t.Parallel()
					run := func(open func(netconf.Config, io.Writer) (*slog.Logger, io.Closer)) outcome {
						c := newCall()
						c.config["cniVersion"] = "1.1.0"
						c.env["CNI_COMMAND"] = verb
						spoil(c)
						c.plugin.OpenLog = open
						return c.run(t)
					}
					want, got := run(logTo), run(open)
					assert.Equal(t, want.exit, got.exit)
					assert.Equal(t, want.stdout, got.stdout)
				})
			}
		}
	}
}

// panics is a log handler, an output and a closer that does.
type panics struct{ slog.Handler }

func (panics) Enabled(context.Context, slog.Level) bool { panic("ouch") }
func (panics) Write([]byte) (int, error)                { panic("ouch") }
func (panics) Close() error                             { panic("ouch") }

// TestRunDoesNotPanic: whatever it was given. A log that cannot be used costs the pod its start at most.
func TestRunDoesNotPanic(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*call){
		"OpenLog": func(c *call) {
			c.plugin.OpenLog = func(netconf.Config, io.Writer) (*slog.Logger, io.Closer) { panic("ouch") }
		},
		"a handler": func(c *call) {
			c.plugin.OpenLog = func(netconf.Config, io.Writer) (*slog.Logger, io.Closer) { return slog.New(panics{}), nil }
		},
		"a closer": func(c *call) {
			c.plugin.OpenLog = func(_ netconf.Config, w io.Writer) (*slog.Logger, io.Closer) { return nil, panics{} }
		},
		"stdout":  func(c *call) { c.io.Stdout = panics{} },
		"records": func(c *call) { c.plugin.Attachments = func(netconf.Config) attachment.Store { panic("ouch") } },
	} {
		for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS", "VERSION", "NONE", ""} {
			c := newCall()
			c.config["cniVersion"], c.config["surplus"] = "1.1.0", 1
			c.env["CNI_COMMAND"] = verb
			spoil(c)
			assert.NotPanics(t, func() {
				out := c.run(t)
				assert.Contains(t, []int{0, 1}, out.exit, name+" "+verb)
				if out.exit == 1 && c.io.Stdout == nil {
					assert.NotZero(t, out.failure.Code)
				}
			}, name+" "+verb)
		}
	}
}

func TestPrevResultIsPrintedAsItCame(t *testing.T) {
	t.Parallel()
	// White space, order, numbers beyond a float64 and keys that this program has never heard of.
	const prev = `{ "ips" : [{"address":"10.244.1.5/24", "x":9007199254740993}],
		"cniVersion": "1.0.0", "x-own": {"<&>": "é"}, "routes": [{"dst":"0.0.0.0/0"}] }`
	c := newCall()
	c.stdin = `{"cniVersion":"1.0.0","name":"n","type":"meshcni","prevResult":` + prev + `}`
	out := c.run(t)
	require.Zero(t, out.exit, out.stdout)
	assert.Equal(t, prev+"\n", out.stdout)

	c.env["CNI_ARGS"] = "" // and by who passes
	assert.Equal(t, prev+"\n", c.run(t).stdout)
}

func TestResultHasTheAskedVersion(t *testing.T) {
	t.Parallel()
	withVersion := func(v string) object {
		ip := object{"address": "10.244.1.5/24", "gateway": "10.244.1.1"}
		if v < "1" {
			ip["version"] = "4"
		}
		return object{"cniVersion": v, "ips": []object{ip}, "dns": object{"nameservers": []string{"10.96.0.10"}}}
	}
	for _, asked := range versions {
		prevs := map[string]object{"absent": nil, "without a version": set(withVersion(asked), "cniVersion", nil), "empty": {}}
		for _, v := range versions {
			prevs[v] = withVersion(v)
		}
		for name, prev := range prevs {
			t.Run(asked+" "+name, func(t *testing.T) {
				t.Parallel()
				c := newCall()
				c.config = set(c.config, "cniVersion", asked, "prevResult", nil)
				if prev != nil {
					c.config["prevResult"] = prev
				}
				out := c.run(t)
				require.Zero(t, out.exit, out.stdout)
				// The library's own reader must take it for what it says.
				result, err := create.CreateFromBytes([]byte(out.stdout))
				require.NoError(t, err, out.stdout)
				assert.Equal(t, asked, result.Version())
				if prev["ips"] != nil {
					assert.Contains(t, out.stdout, "10.244.1.5/24")
					assert.Contains(t, out.stdout, "10.96.0.10")
				}
			})
		}
	}
}

func TestVerbsAndVersions(t *testing.T) {
	t.Parallel()
	from := map[string]string{"ADD": "0.3.0", "DEL": "0.3.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
	for verb, first := range from {
		for _, v := range versions {
			c := newCall()
			require.Zero(t, c.run(t).exit) // for CHECK
			c.env["CNI_COMMAND"] = verb
			c.config = set(c.config, "cniVersion", v, "prevResult", nil)
			out := c.run(t)
			if v < first {
				out.fails(t, 1, "does not allow "+verb, v, first)
				assert.Equal(t, v, out.failure.CNIVersion)
				continue
			}
			assert.Zero(t, out.exit, "%s %s: %s", verb, v, out.stdout)
			if verb != "ADD" {
				assert.Empty(t, out.stdout)
			}
		}
	}
}

func TestDelAndGCNeedNothing(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"DEL", "GC"} {
		c := newCall()
		c.env["CNI_COMMAND"] = verb
		c.env["CNI_NETNS"], c.env["CNI_ARGS"] = "", "not a pair"
		c.plugin.OpenPods, c.plugin.OpenNetNS = nil, nil
		// What is wrong with our own keys must not keep a pod from going away.
		c.config = object{"cniVersion": "1.1.0", "name": "n", "dialect": "gone", "backend": 7, "prevResult": "?", "cni.dev/valid-attachments": []object{}}
		out := c.run(t)
		assert.Zero(t, out.exit, out.stdout)
		assert.Empty(t, out.stdout)
		assert.Empty(t, out.stderr)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	status := func(change ...func(*call)) outcome {
		c := newCall()
		c.config = set(c.config, "cniVersion", "1.1.0", "prevResult", nil)
		c.env = map[string]string{"CNI_COMMAND": "STATUS"}
		for _, f := range change {
			f(c)
		}
		return c.run(t)
	}
	out := status()
	assert.Zero(t, out.exit, out.stdout)
	assert.Empty(t, out.stdout)
	status(func(c *call) { c.plugin.OpenPods = nil }).fails(t, 50, "source of pods")
	status(func(c *call) {
		c.plugin.OpenPods = func(path string) (plugin.Pods, error) { return plugin.Pods{}, errors.New("read " + path) }
	}).fails(t, 50, "read /var/run/meshcni/kubeconfig", "agent")
	status(func(c *call) { c.config["dialect"] = "osm" }).fails(t, 7, `"osm"`, "istio")
}

// TestStatusWithoutAgent: a runtime that is told that the network is not ready
// starts no pod, and the agent that would make it ready is one.
func TestStatusWithoutAgent(t *testing.T) {
	t.Parallel()
	there := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(there, []byte("something"), 0o600))
	for _, c := range []struct {
		name       string
		set        any
		kubeconfig string
		code       int
	}{
		{"waiting for it is the default", nil, there + ".none", 50},
		{"not waiting for it", true, there + ".none", 0},
		{"what it wrote is of no use", true, there, 50},
		{"no answer to the question", "yes", there, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			call := newCall()
			call.config = set(call.config, "cniVersion", "1.1.0", "prevResult", nil, "ready_without_agent", c.set)
			call.config["kubernetes"] = map[string]any{"kubeconfig": c.kubeconfig}
			call.env = map[string]string{"CNI_COMMAND": "STATUS"}
			call.plugin.OpenPods = func(path string) (plugin.Pods, error) { return plugin.Pods{}, errors.New("read " + path) }
			out := call.run(t)
			if c.code != 0 {
				out.fails(t, c.code, "")
				return
			}
			assert.Zero(t, out.exit, out.stdout)
			assert.Equal(t, c.kubeconfig, out.record(t, "ready without the agent, which has not written the kubeconfig")["kubeconfig"])
		})
	}
}

// errReader is a stdin, errWriter a stdout, that broke.
type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("pipe broke") }

type errWriter struct{}

func (errWriter) Write([]byte) (int, error) { return 0, errors.New("pipe broke") }

func TestBrokenPipes(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.io.Stdin = errReader{}
	c.run(t).fails(t, 5, "pipe broke")

	c = newCall()
	c.io.Stdout = errWriter{}
	out := c.run(t)
	assert.Equal(t, 1, out.exit, "a runtime that has no result must not start the pod")
	assert.Equal(t, "pipe broke", out.record(t, "the result could not be written")["error"])
}

func TestUnknownKeysAreWarnedOf(t *testing.T) {
	t.Parallel()
	c := newCall()
	c.config = set(c.config, "loglevel", "debug", "kubernetes", object{"kubeConfig": "/x"}, "capabilities", object{}, "ipam", object{}, "cni.dev/x", 1)
	out := c.run(t)
	assert.Zero(t, out.exit)
	assert.Equal(t, []any{"kubernetes.kubeConfig", "loglevel"}, out.record(t, "unknown configuration keys are ignored")["keys"])
}

func TestStdoutHasOneDocument(t *testing.T) {
	t.Parallel()
	c := newCall()
	out := c.run(t)
	assert.Equal(t, 1, strings.Count(out.stdout, "cniVersion"))
	assert.True(t, strings.HasSuffix(out.stdout, "}\n"))
}

// TestAPanicIsLogged with the decision that was made before it, how many requests were made, and where it happened.
func TestAPanicIsLogged(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*call){
		"apply":   func(c *call) { c.netns.Applying = func(context.Context) { panic("ouch") } },
		"records": func(c *call) { c.plugin.Attachments = func(netconf.Config) attachment.Store { panic("ouch") } },
	} {
		c := newCall()
		spoil(c)
		var events []plugin.Event
		c.plugin.OnEvent = func(_ context.Context, e plugin.Event) { events = append(events, e) }
		out := c.run(t)
		require.Equal(t, 1, out.exit, name)
		assert.Equal(t, 999, out.failure.Code, name)
		require.Len(t, out.records, 2, name)
		decision, failed := out.records[0], out.records[1]
		assert.Equal(t, "decision", decision["msg"], name)
		assert.Equal(t, "failed", decision["outcome"], name)
		assert.Equal(t, true, decision["selected"], name)
		assert.Equal(t, "failed", failed["msg"], name)
		for _, record := range out.records {
			assert.EqualValues(t, 1, record["api_calls"], name)
		}
		assert.Contains(t, failed["stack"], "protocol_test.go", name)
		require.Len(t, events, 1, name)
		assert.Equal(t, plugin.Failed, events[0].Outcome, name)
		assert.Equal(t, 1, events[0].APICalls, name)
	}

	c := newCall()
	c.pods.Hook = func(context.Context, int) error { panic("ouch") }
	out := c.run(t)
	require.Len(t, out.records, 1, "there was no decision")
	assert.EqualValues(t, 1, out.records[0]["api_calls"], "the request that panicked")

	c = newCall()
	c.env["CNI_COMMAND"] = "CHECK"
	c.plugin.OpenNetNS = func(string) (plugin.NetNS, error) { panic("ouch") }
	out = c.run(t)
	require.Len(t, out.records, 2)
	assert.Equal(t, "decision", out.records[0]["msg"])
	assert.Equal(t, "no-record", out.records[0]["reason"])
}
