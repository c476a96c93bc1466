package plugin

import (
	"bytes"
	"cmp"
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

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/backends"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Run is the program: it does what CNI_COMMAND says and returns the exit code, 0 or 1. Stdout gets the result or the error
// and nothing else, in one write at the end. Run does not panic, whatever it is given. Without CNI_COMMAND it prints on
// Stderr what the plugin is.
func (p *Plugin) Run(ctx context.Context, o IO) (code int) {
	o = o.withDefaults()
	r := &run{Plugin: p.withDefaults(o.Args), stderr: o.Stderr, begin: time.Now()}
	answered := false
	defer func() {
		// A version, a log or an output panicked: only the runtime is left to tell.
		if v := recover(); v != nil {
			code = 1
			if !answered {
				quietly(func() { _, _ = o.Stdout.Write(r.render(fail(types.ErrInternal, "%s: internal error: %v", r.name, v))) })
			}
		}
	}()
	if len(o.Args) > 1 && slices.Contains([]string{"--version", "-version", "version"}, o.Args[1]) {
		_, _ = fmt.Fprintf(o.Stdout, "%s %s\n", r.name, r.version())
		return 0
	}
	if o.Getenv("CNI_COMMAND") == "" {
		_, _ = fmt.Fprintf(o.Stderr, "CNI plugin %s %s\nCNI protocol versions supported: %s\n", r.name, r.version(), strings.Join(supported, ", "))
		return 0
	}
	output, failure := r.perform(ctx, o)
	if failure != nil {
		code, output = 1, r.render(failure)
	}
	answered = true
	if len(output) > 0 {
		if _, err := o.Stdout.Write(output); err != nil {
			code = 1
			quietly(func() { r.logger().Error("the result could not be written", "error", err.Error()) })
		}
	}
	if r.closeLog != nil {
		quietly(func() { _ = r.closeLog.Close() })
	}
	return code
}

// quietly is for what must not change how the run ends.
func quietly(fn func()) {
	defer func() { _ = recover() }()
	fn()
}

// run is one run of the plugin. The request is parsed once; the verbs only read it.
type run struct {
	Plugin
	request
	begin    time.Time
	stderr   io.Writer
	log      *slog.Logger // opened by the first record
	closeLog io.Closer
	stack    []byte // of a panic
}

func (r *run) logger() *slog.Logger {
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler) // if OpenLog panics, it is not asked again
		log, closer := r.OpenLog(r.config, r.stderr)
		r.closeLog = closer
		if log != nil {
			r.log = log
		}
	}
	return r.log
}

// perform does what is asked and logs it.
func (r *run) perform(ctx context.Context, o IO) (output []byte, failure *types.Error) {
	output, event, failure := r.dispatch(ctx, o)
	if r.command == "VERSION" && failure == nil {
		return output, nil
	}
	if failure != nil {
		failure = within(failure, r.render)
	}
	if unlogged := r.finish(ctx, event, failure); unlogged != nil {
		failure = within(unlogged, r.render)
		quietly(func() { _ = r.finish(ctx, Event{}, failure) })
	}
	return output, failure
}

func (r *run) dispatch(ctx context.Context, o IO) (output []byte, event Event, failure *types.Error) {
	defer r.rescue(&failure)
	usable := func(c netconf.Config) error {
		_, err := r.meshes(c)
		return err
	}
	if r.request, failure = parse(o, r.Identity, usable); failure != nil {
		return nil, event, failure
	}
	ctx, cancel := context.WithDeadline(ctx, r.begin.Add(time.Duration(r.config.AddDeadline)))
	defer cancel()
	switch r.command {
	case "VERSION":
		output = version(r.stdin)
	case "ADD":
		return r.add(ctx)
	case "CHECK":
		if r.wrong != nil {
			r.logger().Warn("what is wrong with the configuration does not matter to CHECK", "error", r.wrong.Error())
		}
		event, failure = r.check(ctx)
	case "DEL":
		r.forget(ctx)
	case "GC":
		r.forgetOthers()
	case "STATUS":
		failure = r.status(ctx)
	}
	return output, event, failure
}

func (r *run) render(e *types.Error) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "    ")
	encoder.SetEscapeHTML(false) // nobody shows it in a page, and it would make "<" six times as long
	err := encoder.Encode(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cmp.Or(r.config.CNIVersion, newest()), e})
	if err != nil {
		panic(err) // strings and a number always marshal
	}
	return out.Bytes()
}

// version answers in the version that was asked, if the text has one: it need not.
func version(text []byte) []byte {
	var asked struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(text, &asked) != nil || !slices.Contains(supported, asked.CNIVersion) {
		asked.CNIVersion = newest()
	}
	return []byte(`{"cniVersion":"` + asked.CNIVersion + `","supportedVersions":["` + strings.Join(supported, `","`) + "\"]}\n")
}

// available reports whether the backend works.
func (r *run) available(ctx context.Context, name ruleset.Backend) error {
	if r.Available != nil {
		return r.Available(name)
	}
	if broken, ok := backends.Read(r.config.RunDir, name); ok {
		return apply.Available(apply.Options{Backend: name, Broken: broken})
	}
	return backends.Usable(ctx, name)
}

// status reports what would make every ADD fail.
func (r *run) status(ctx context.Context) *types.Error {
	meshes, err := r.meshes(r.config)
	if err := errors.Join(err, dialect.Validate(r.Dialects)); err != nil {
		return codeOf(err, types.ErrInvalidNetworkConfig, "network configuration")
	}
	if failure := r.agentReady(ctx, meshes); failure != nil {
		return failure
	}
	if err := r.available(ctx, ruleset.Backend(r.config.Backend)); err != nil {
		return fail(types.ErrPluginNotAvailable, "%v", err)
	}
	if r.config.Agent == netconf.AgentRequire {
		return nil
	}
	pods, failure := r.openPods()
	if failure == nil {
		defer pods.Close()
		if failure := readsNamespaces(pods, meshes); failure != nil {
			return failure
		}
		if pods.Ready != nil {
			if err := pods.Ready(ctx); err != nil {
				return fail(types.ErrPluginNotAvailable, "%v", err)
			}
		}
		return nil
	}
	kubeconfig := r.config.Kubernetes.Kubeconfig
	if _, err := os.Stat(kubeconfig); r.config.ReadyWithoutAgent && errors.Is(err, fs.ErrNotExist) {
		// After a reboot, for instance: run_dir is empty, and the agent is a pod that this very runtime has to start. ADD
		// lets that pod through, and keeps those of the mesh waiting by itself.
		r.logger().Warn("ready without the agent, which has not written the kubeconfig", "kubeconfig", kubeconfig)
		return nil
	}
	return failure
}
