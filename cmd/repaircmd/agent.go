package repaircmd

import (
	"flag"
	"io"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

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
	UncapturedFamily string
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
	_, _, err := a.options()
	return err
}

// Options returns the options for [repair.New]. Errors name the flag.
func (a Agent) Options() (repair.Options, error) {
	s, o, err := a.options()
	if err == nil {
		o.Config, err = s.restConfig()
	}
	return o, err
}

func (a Agent) options() (*settings, repair.Options, error) {
	s := &settings{}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	s.register(fs)
	if a.Env != nil {
		if err := FromEnv(fs, a.Env); err != nil {
			return nil, repair.Options{}, err
		}
	}
	for _, given := range []struct {
		to    *string
		value string
	}{
		{&s.Action, a.Action}, {&s.Node, a.Node}, {&s.dialect, a.Dialect}, {&s.backend, a.Backend}, {&s.uncaptured, a.UncapturedFamily}, {&s.runDir, a.RunDir},
		{&s.host, a.Host}, {&s.port, a.Port}, {&s.protocol, a.Protocol}, {&s.saDir, a.ServiceAccountDir},
	} {
		if given.value != "" {
			*given.to = given.value
		}
	}
	s.refuseProxyUID = a.RefuseProxyUID
	s.excluded = strings.Join(a.ExcludeNamespaces, ",")
	o, err := s.options()
	o.Metrics, o.Log = a.Metrics, a.Log
	if a.Installed != nil {
		o.Installed = a.Installed
	}
	return s, o, err
}
