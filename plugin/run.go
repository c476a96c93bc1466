package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/plugin/attachment"
)

// Run is the program: it does what CNI_COMMAND says and returns the exit code, 0 or 1. The result or the error, and
// nothing else, goes to Stdout, in one write and last. Run does not panic, whatever it was given. Without CNI_COMMAND it
// says on Stderr what the plugin is.
func (p *Plugin) Run(ctx context.Context, o IO) (code int) {
	begin := time.Now()
	q, o := p.withDefaults(o)
	c := &call{Plugin: q, io: o, begin: begin, config: Config{CNIVersion: supported[len(supported)-1]}}
	answered := false
	defer func() {
		// A version, a log or an output that panics: there is nobody left to tell but the runtime.
		if r := recover(); r != nil {
			code = 1
			if !answered {
				quietly(func() { _, _ = o.Stdout.Write(c.render(fail(types.ErrInternal, "%s: internal error: %v", c.Name, r))) })
			}
		}
	}()
	if len(o.Args) > 1 && (o.Args[1] == "--version" || o.Args[1] == "-version" || o.Args[1] == "version") {
		_, _ = fmt.Fprintf(o.Stdout, "%s %s\n", q.Name, q.Version())
		return 0
	}
	if o.Getenv("CNI_COMMAND") == "" {
		_, _ = fmt.Fprintf(o.Stderr, "CNI plugin %s %s\nCNI protocol versions supported: %s\n", q.Name, q.Version(), strings.Join(supported, ", "))
		return 0
	}
	output, failure := c.guarded(ctx)
	if failure != nil {
		code, output = 1, c.render(failure)
	}
	answered = true
	if len(output) > 0 {
		if _, err := o.Stdout.Write(output); err != nil {
			code = 1
			quietly(func() { c.logger().Error("the result could not be written", "error", err.Error()) })
		}
	}
	if c.closeLog != nil {
		quietly(func() { _ = c.closeLog.Close() })
	}
	return code
}

// quietly is for what must not change how the run ends.
func quietly(fn func()) {
	defer func() { _ = recover() }()
	fn()
}

// call is one run of the plugin.
type call struct {
	Plugin
	io     IO
	begin  time.Time
	env    environment
	config Config
	id     podID
	event  event
	asked  string // the key of CNI_ARGS that configures the sandbox; empty: it is a pod
	unread bool   // whether the pod could not be read, as opposed to not being there
	// pod and applied are what writeStatus needs.
	pod     *corev1.Pod
	applied map[string]string
	// done is what the attachment's record will say of an ADD.
	done attachment.Record

	log      *slog.Logger
	closeLog io.Closer
}

func (c *call) logger() *slog.Logger {
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler) // also when OpenLog panics: it is asked once
		log, closer := c.OpenLog(c.config, c.io.Stderr)
		if c.closeLog = closer; log != nil {
			c.log = log
		}
	}
	return c.log
}

// guarded makes a panic an error like others: the runtime must get JSON, and the pod must not start.
func (c *call) guarded(ctx context.Context) (output []byte, failure *types.Error) {
	defer func() {
		if r := recover(); r != nil {
			f := asFault(r)
			failure = within(fail(types.ErrInternal, "%s: internal error: %v", c.Name, f.value), c.render)
			quietly(func() { c.failed(failure, "stack", string(f.stack)) })
		}
	}()
	output, failure = c.dispatch(ctx)
	if failure != nil {
		failure = within(failure, c.render)
		c.failed(failure)
	}
	return output, failure
}

func (c *call) failed(e *types.Error, attrs ...any) {
	c.logger().Error("failed", append([]any{
		"verb", c.env.command, "code", e.Code, "error", e.Msg, "hint", e.Details,
		"pod", c.id.name, "namespace", c.id.namespace, "uid", c.id.uid, "container_id", c.env.containerID,
		"netns", c.env.netns, "duration_ms", c.elapsed(), "api_calls", c.event.apiCalls,
	}, attrs...)...)
}

func (c *call) elapsed() float64 { return float64(time.Since(c.begin).Microseconds()) / 1000 }

func (c *call) render(e *types.Error) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "    ")
	encoder.SetEscapeHTML(false) // nobody shows it in a page, and it would make "<" six times as long
	err := encoder.Encode(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{c.config.CNIVersion, e})
	if err != nil {
		panic(err) // strings and a number always marshal
	}
	return out.Bytes()
}

// since is the version of the specification in which each verb came up.
func since(command string) string {
	switch command {
	case "CHECK":
		return "0.4.0"
	case "GC", "STATUS":
		return "1.1.0"
	}
	return supported[0]
}

func (c *call) dispatch(ctx context.Context) ([]byte, *types.Error) {
	var failure *types.Error
	if c.env, failure = readEnvironment(c.io.Getenv); failure != nil {
		return nil, failure
	}
	text, err := io.ReadAll(c.io.Stdin)
	if c.env.command == "VERSION" {
		return c.version(text), nil
	}
	if err != nil {
		return nil, fail(types.ErrIOFailure, "read network configuration from stdin: %v", err)
	}
	config, wrong := ParseConfig(text)
	c.config = config
	if failure := c.acceptable(wrong); failure != nil {
		return nil, failure
	}
	// What is wrong with keys that only ADD and STATUS use must not keep a pod from going away, and says nothing of the
	// rules of one that runs.
	switch c.env.command {
	case "DEL":
		c.forget()
		return nil, nil
	case "GC":
		c.forgetOthers(text)
		return nil, nil
	case "CHECK":
		if wrong != nil {
			c.logger().Warn("what is wrong with the configuration does not matter to CHECK", "error", wrong.Error())
		}
		ctx, cancel := context.WithDeadline(ctx, c.begin.Add(c.config.AddDeadline))
		defer cancel()
		return nil, c.check(ctx)
	}
	if wrong != nil {
		return nil, fail(types.ErrInvalidNetworkConfig, "network configuration: %v", wrong)
	}
	if c.env.command == "STATUS" {
		return nil, c.status()
	}
	if len(c.config.Unknown) > 0 {
		c.logger().Warn("unknown configuration keys are ignored", "keys", c.config.Unknown)
	}
	ctx, cancel := context.WithDeadline(ctx, c.begin.Add(c.config.AddDeadline))
	defer cancel()
	return c.add(ctx)
}

// acceptable looks at what every verb needs: JSON, a network name, and a version that has the verb. Errors about a
// version that is none of ours are in the newest one.
func (c *call) acceptable(wrong error) *types.Error {
	asked := c.config.CNIVersion
	if !slices.Contains(supported, asked) {
		c.config.CNIVersion = supported[len(supported)-1]
	}
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.As(wrong, &syntax):
		return fail(types.ErrDecodingFailure, "decode network configuration: at byte %d: %v", syntax.Offset, wrong)
	case errors.As(wrong, &kind):
		return fail(types.ErrDecodingFailure, "decode network configuration: want a JSON object, not %s", kind.Value)
	case wrong != nil && (c.config.Name == "" || asked == ""):
		return fail(types.ErrInvalidNetworkConfig, "network configuration: %v", wrong) // name or version may be what is wrong
	case c.config.Name == "":
		return fail(types.ErrInvalidNetworkConfig, "network configuration: name is missing")
	case !validName(c.config.Name):
		return fail(types.ErrInvalidNetworkConfig, "network configuration: name %q is not letters, digits, '_', '.' and '-'", c.config.Name)
	case !slices.Contains(supported, asked):
		return hint(fail(types.ErrIncompatibleCNIVersion, "incompatible CNI versions"), "config is %q, plugin supports %q", orOldest(asked), supported)
	case slices.Index(supported, asked) < slices.Index(supported, since(c.env.command)):
		return fail(types.ErrIncompatibleCNIVersion, "config version does not allow %s: it is %s, and the verb came with %s",
			c.env.command, asked, since(c.env.command))
	}
	return nil
}

// orOldest is the meaning of a configuration without a version.
func orOldest(version string) string {
	if version == "" {
		return "0.1.0"
	}
	return version
}

// version answers in the version that was asked, if the text has one: it need not.
func (c *call) version(text []byte) []byte {
	var asked struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(text, &asked) != nil || !slices.Contains(supported, asked.CNIVersion) {
		asked.CNIVersion = supported[len(supported)-1]
	}
	return []byte(`{"cniVersion":"` + asked.CNIVersion + `","supportedVersions":["` + strings.Join(supported, `","`) + "\"]}\n")
}

// status reports what would make every ADD fail.
func (c *call) status() *types.Error {
	if _, err := c.Dialect(c.config.Dialect, c.config.ExcludeNamespaces); err != nil {
		return codeOf(err, types.ErrInvalidNetworkConfig, "network configuration")
	}
	if err := c.Available(c.config.Backend); err != nil {
		return fail(types.ErrPluginNotAvailable, "%v", err)
	}
	pods, failure := c.openPods()
	if failure == nil {
		closePods(pods)
		return nil
	}
	if _, err := os.Stat(c.config.Kubeconfig); c.config.ReadyWithoutAgent && errors.Is(err, fs.ErrNotExist) {
		// After a reboot, say: run_dir is empty, and the agent is a pod that this very runtime has to start. ADD lets that
		// pod through, and keeps those of the mesh waiting by itself.
		c.logger().Warn("ready without the agent, which has not written the kubeconfig", "kubeconfig", c.config.Kubeconfig)
		return nil
	}
	return failure
}
