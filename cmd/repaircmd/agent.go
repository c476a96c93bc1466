package repaircmd

import (
	"flag"
	"io"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/repair"
)

// Agent is what the node agent, which has flags of its own, knows already.
type Agent struct {
	// Action and Node are --repair and --node-name.
	Action, Node string
	// Dialect, Backend and ExcludeNamespaces are the plugin's.
	Dialect, Backend  string
	ExcludeNamespaces []string
	// UncapturedFamily is the plugin's; empty is what Env says, else allow.
	UncapturedFamily redirect.UncapturedFamily
	// RefuseProxyUID is the plugin's, whatever Env says.
	RefuseProxyUID bool
	// RunDir is the plugin's run_dir; empty is /var/run/meshcni.
	RunDir string
	// Host, Port and Protocol are the API server's; ServiceAccountDir has the
	// agent's credentials.
	Host, Port, Protocol, ServiceAccountDir string
	// Env looks up the finer settings: MESHCNI_REPAIR_NODE_RATE for
	// --repair-node-rate of meshcni-repair, and so on. nil: there are none.
	Env func(string) (string, bool)
	// Installed says why new pods of this node would not be redirected, if so.
	Installed func() error
	// Metrics and Log are the agent's.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Validate says what is wrong with the settings. It asks nobody, and reads no
// file. Errors name the flag.
func (a Agent) Validate() error {
	s, host, err := a.settings()
	if err != nil {
		return err
	}
	return s.Validate(host.Dialect)
}

// Open makes the controller, for the agent to Run and to ask whether it is Ready.
// Call stop after Run. Errors name the flag.
func (a Agent) Open() (c *repair.Controller, stop func(), err error) {
	s, host, err := a.settings()
	if err != nil {
		return nil, nil, err
	}
	host.Installed = a.Installed
	if host.Config, err = s.restConfig(); err != nil {
		return nil, nil, err
	}
	return s.Open(host)
}

func (a Agent) settings() (*settings, repair.Host, error) {
	s := &settings{}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	s.register(fs)
	if a.Env != nil {
		if err := FromEnv(fs, a.Env); err != nil {
			return nil, repair.Host{}, err
		}
	}
	for _, given := range []struct {
		to    *string
		value string
	}{
		{&s.Action, a.Action}, {&s.Node, a.Node}, {&s.dialect, a.Dialect}, {&s.backend, a.Backend}, {(*string)(&s.uncapturedFamily), string(a.UncapturedFamily)}, {&s.runDir, a.RunDir},
		{&s.host, a.Host}, {&s.port, a.Port}, {&s.protocol, a.Protocol}, {&s.saDir, a.ServiceAccountDir},
	} {
		if given.value != "" {
			*given.to = given.value
		}
	}
	s.refuseProxyUID = a.RefuseProxyUID
	s.excluded = strings.Join(a.ExcludeNamespaces, ",")
	host, err := s.hostOf(a.Metrics, a.Log)
	return s, host, err
}
