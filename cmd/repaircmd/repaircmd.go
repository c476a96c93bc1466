// Package repaircmd is the command line of meshcni-repair as a function:
// arguments, environment and streams in, exit code out.
package repaircmd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/meshcni/meshcni/cmd/versionmetric"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/internal/version"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/repair"
)

// IO is all that the program sees of its process.
type IO struct {
	// Env looks up an environment variable, as os.LookupEnv does. nil: there are none.
	Env func(string) (string, bool)
	// Stdout gets help, Stderr the log. nil discards.
	Stdout, Stderr io.Writer
	// SetLog, if not nil, is given the log, for libraries that have a global one.
	SetLog func(*slog.Logger)
	// Version is what --version prints.
	Version string
}

// settings are the program's own flags, besides those of the controller.
type settings struct {
	repair.Flags
	dialect, backend, excluded              string
	uncapturedFamily                        redirect.UncapturedFamily
	logLevel, metricsAddress, healthAddress string
	kubeconfig, host, port, protocol, saDir string
	installerReady, runDir                  string
	refuseProxyUID, version                 bool
}

func (s *settings) register(fs *flag.FlagSet) {
	s.Register(fs)
	fs.StringVar(&s.dialect, "dialect", dialects.Default, "the mesh: "+strings.Join(dialects.Names(), ", "))
	fs.StringVar(&s.backend, "backend", "auto", "firewall backend, the plugin's: auto, iptables, iptables-nft, iptables-legacy, nftables")
	fs.StringVar(&s.excluded, "exclude-namespaces", "", "namespaces to leave alone, with commas between")
	fs.StringVar((*string)(&s.uncapturedFamily), "uncaptured-family", "allow", "what the plugin does with an address family that the mesh does not capture: allow, drop")
	fs.BoolVar(&s.refuseProxyUID, "refuse-proxy-uid", false, "whether the plugin refuses a pod with a container that the rules may take for the proxy; such a pod is left alone")
	fs.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&s.metricsAddress, "metrics-address", ":15014", "address to serve /metrics on; empty for none")
	fs.StringVar(&s.healthAddress, "health-address", ":8000", "address to serve /healthz and /readyz on; empty for none")
	fs.StringVar(&s.kubeconfig, "kubeconfig", "", "kubeconfig to use instead of the pod's service account")
	fs.StringVar(&s.host, "kubernetes-service-host", "", "the API server, where there is no kubeconfig")
	fs.StringVar(&s.port, "kubernetes-service-port", "443", "its port")
	fs.StringVar(&s.protocol, "kubernetes-service-protocol", "https", "its protocol")
	fs.StringVar(&s.saDir, "service-account-dir", "/var/run/secrets/kubernetes.io/serviceaccount", "where the pod's credentials are")
	fs.StringVar(&s.installerReady, "installer-ready-url", "", "the node agent's /readyz: while it does not answer 200, nothing is deleted (default: not asked)")
	fs.StringVar(&s.runDir, "run-dir", "/var/run/meshcni", "the plugin's run_dir, where its records of attachments are kept up to date; one that is not there has none")
	fs.BoolVar(&s.version, "version", false, "print the version")
}

// errUsage marks what was typed wrong.
var errUsage = errors.New("usage")

// Main runs the program until the context ends: 0 done, 1 failed, 2 wrong usage.
func Main(ctx context.Context, args []string, o IO) int {
	if o.Env == nil {
		o.Env = func(string) (string, bool) { return "", false }
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	err := run(ctx, args, o)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, flag.ErrHelp):
		return 0
	}
	_, _ = fmt.Fprintln(o.Stderr, "meshcni-repair: "+strings.TrimPrefix(err.Error(), errUsage.Error()+": "))
	if errors.Is(err, errUsage) {
		_, _ = fmt.Fprintln(o.Stderr, "meshcni-repair: see --help")
		return 2
	}
	return 1
}

func run(ctx context.Context, args []string, o IO) error {
	s, err := parse(args, o)
	if err != nil {
		return err
	}
	if s.version {
		_, err := fmt.Fprintln(o.Stdout, "meshcni-repair", o.Version)
		return err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return fmt.Errorf("%w: --log-level: %w", errUsage, err)
	}
	log := slog.New(slog.NewJSONHandler(o.Stderr, &slog.HandlerOptions{Level: level}))
	if o.SetLog != nil {
		o.SetLog(log)
	}
	if !s.Enabled() {
		log.Warn("repair only reports broken pods; see --repair")
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(versionmetric.Collector("meshcni-repair"), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	host, err := s.hostOf(registry, log)
	if err == nil {
		err = s.Validate(host.Dialect)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if host.Config, err = s.restConfig(); err != nil {
		return err
	}
	host.Config.UserAgent = "meshcni-repair/" + version.String()
	controller, stop, err := s.Open(host)
	if err != nil {
		return err
	}
	defer stop()
	closeServers, err := serve(s, registry, controller.Ready, log)
	if err != nil {
		return err
	}
	defer closeServers()
	return controller.Run(ctx)
}

// parse reads the flags, then the environment for those that were not typed.
func parse(args []string, o IO) (*settings, error) {
	s := &settings{}
	fs := flag.NewFlagSet("meshcni-repair", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	s.register(fs)
	fs.Usage = func() {}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			help(fs, o.Stdout)
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("%w: unexpected %q", errUsage, fs.Arg(0))
	}
	if err := FromEnv(fs, o.Env); err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return s, nil
}

// FromEnv sets the flags that were not typed from the environment: MESHCNI_ and
// the name in capitals with underscores; NODE_NAME and KUBERNETES_SERVICE_* as
// they are in any pod.
func FromEnv(fs *flag.FlagSet, env func(string) (string, bool)) error {
	typed := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { typed[f.Name] = true })
	var errs []error
	fs.VisitAll(func(f *flag.Flag) {
		if typed[f.Name] {
			return
		}
		name := strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		for _, variable := range []string{"MESHCNI_" + name, name} {
			if variable == name && name != "NODE_NAME" && !strings.HasPrefix(name, "KUBERNETES_SERVICE_") {
				continue
			}
			if v, ok := env(variable); ok && v != "" {
				if err := fs.Set(f.Name, v); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", variable, err))
				}
				return
			}
		}
	})
	return errors.Join(errs...)
}

func help(fs *flag.FlagSet, w io.Writer) {
	_, _ = fmt.Fprint(w, "meshcni-repair: find this node's pods that started without redirection, and deal with them\n\n"+
		"Each flag has an environment form: MESHCNI_ and its name in capitals, with underscores.\n\n")
	fs.SetOutput(w)
	fs.PrintDefaults()
}

// hostOf reads what the controller's host brings, less the API server.
func (s *settings) hostOf(registry prometheus.Registerer, log *slog.Logger) (repair.Host, error) {
	if _, err := repair.ParseAction(s.Action); err != nil {
		return repair.Host{}, fmt.Errorf("--repair: %w", err)
	}
	mesh, err := dialects.ByName(s.dialect, list(s.excluded))
	if err != nil {
		return repair.Host{}, fmt.Errorf("--dialect: %w", err)
	}
	backend, err := apply.ParseBackend(s.backend)
	if err != nil {
		return repair.Host{}, fmt.Errorf("--backend: %w", err)
	}
	uncaptured, err := redirect.ParseUncapturedFamily(string(s.uncapturedFamily))
	if err != nil {
		return repair.Host{}, fmt.Errorf("--uncaptured-family: %w", err)
	}
	h := repair.Host{
		Dialect: mesh, Backend: backend, Metrics: registry, Log: log,
		Options: dialect.Options{UncapturedFamily: uncaptured, RefuseProxyUID: s.refuseProxyUID},
		Records: attachment.In(s.runDir),
	}
	if s.installerReady != "" {
		h.Installed = asker(s.installerReady)
	}
	return h, nil
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// asker asks a readiness address, and is content for a second with what it said.
func asker(url string) func() error {
	var (
		mu    sync.Mutex
		asked time.Time
		said  error
	)
	return func() error {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(asked) > time.Second {
			said, asked = ask(url), time.Now()
		}
		return said
	}
}

func ask(url string) error {
	client := &http.Client{Timeout: 2 * time.Second}
	resp, err := client.Get(url) //nolint:noctx // the client has a timeout
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	why, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	return fmt.Errorf("%s says %s: %s", url, resp.Status, strings.TrimSpace(string(why)))
}

// Requests to the API server: a few at once, so that a node full of broken pods
// does not become a burden on it.
const (
	requestsPerSecond = 20
	requestsAtOnce    = 40
)

// restConfig reads the kubeconfig, or what a pod has.
func (s *settings) restConfig() (*rest.Config, error) {
	var config *rest.Config
	if s.kubeconfig != "" {
		var err error
		if config, err = clientcmd.BuildConfigFromFlags("", s.kubeconfig); err != nil {
			return nil, fmt.Errorf("read kubeconfig: %w", err)
		}
	} else {
		if s.host == "" {
			return nil, errors.New("no API server: neither --kubeconfig nor --kubernetes-service-host (KUBERNETES_SERVICE_HOST) is set")
		}
		config = &rest.Config{
			Host:            s.protocol + "://" + net.JoinHostPort(strings.Trim(s.host, "[]"), s.port),
			BearerTokenFile: filepath.Join(s.saDir, "token"),
		}
		if s.protocol == "https" {
			config.CAFile = filepath.Join(s.saDir, "ca.crt")
		}
		if _, err := os.Stat(config.BearerTokenFile); err != nil {
			return nil, fmt.Errorf("read the service account's token: %w", err)
		}
	}
	config.QPS, config.Burst = requestsPerSecond, requestsAtOnce
	return config, nil
}
