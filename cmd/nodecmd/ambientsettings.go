//go:build linux

package nodecmd

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// Ambient are the settings about pods whose mesh has its proxy on the node.
type Ambient struct {
	// Enabled makes the agent hand such pods to the node's proxy, see to it that they stay there, and take them back.
	// Default: false; then no dialect of that kind can be chosen.
	Enabled bool
	// ZDSSocket is the socket on which Istio's ztunnel, or another proxy that speaks its protocol, asks for pods. Default:
	// /var/run/ztunnel/ztunnel.sock, which is ztunnel's own. It is not used if the program has a proxy of its own.
	ZDSSocket string
	// VerifyInterval is the time between two looks at each such pod on the node: its rules, its proxy's listeners, its annotation
	// and its exemption of probes. Default: 30 seconds.
	VerifyInterval netconf.Duration
	// DrainTimeout bounds how long a running pod that leaves the mesh stays with the proxy, which cuts the pod's connections when it is
	// told to let go: until it carries none any more, and for at least 2 seconds. Default: 12 seconds. 0: it is told at once.
	DrainTimeout time.Duration
	// ReadyNeedsProxy makes the agent ready only while a proxy is connected, for what keeps pods off the node until then: the
	// taint's controller, meshcni-taint. Default: false, so that agents can be installed, and waited for, before the proxy is.
	ReadyNeedsProxy bool
}

// maxSocketPath is the longest path of a socket: sun_path of unix(7) less its final zero.
const maxSocketPath = 107

func defaultAmbient() Ambient {
	return Ambient{
		ZDSSocket: "/var/run/ztunnel/ztunnel.sock", VerifyInterval: netconf.Duration(30 * time.Second), DrainTimeout: nodeproxy.DefaultDrainTimeout,
	}
}

func (a *Ambient) register(fs *pflag.FlagSet) {
	fs.BoolVar(&a.Enabled, "ambient", a.Enabled, "hand pods of such a mesh to the node's proxy, and see to it that they stay there; without --dialect such meshes then come first")
	fs.Var(cli.Required(&a.ZDSSocket, "path"), "zds-socket", "the socket on which the node's proxy asks for pods")
	fs.Var(cli.Text(&a.VerifyInterval, "duration"), "ambient-verify-interval", "how often each such pod is looked at: rules, listeners, annotation, probes")
	fs.DurationVar(&a.DrainTimeout, "ambient-drain-timeout", a.DrainTimeout, "how long a running pod that leaves the mesh stays with the proxy at most, while that carries its connections; 0: these are cut at once")
	fs.BoolVar(&a.ReadyNeedsProxy, "ready-needs-proxy", a.ReadyNeedsProxy, "be ready only while a proxy is connected, for what keeps pods off the node until then; false: agents can be waited for before there is a proxy")
}

// validate returns what is wrong, for an agent on the node of that name.
func (a Ambient) validate(node string) error {
	if !a.Enabled {
		return nil
	}
	var errs []error
	if node == "" {
		errs = append(errs, errors.New("ambient: node-name (NODE_NAME) is not set, so the agent does not know its pods"))
	}
	if !filepath.IsAbs(a.ZDSSocket) || len(a.ZDSSocket) > maxSocketPath {
		errs = append(errs, fmt.Errorf("zds-socket %q: must be an absolute path of at most %d bytes", a.ZDSSocket, maxSocketPath))
	}
	if a.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("ambient-drain-timeout %s: must not be negative", a.DrainTimeout))
	}
	return errors.Join(errs...)
}

// drainTimeout is the same for a controller, where zero is its default.
func (a Ambient) drainTimeout() time.Duration {
	if a.DrainTimeout == 0 {
		return -1
	}
	return a.DrainTimeout
}
