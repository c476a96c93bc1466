package zds

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/nodeproxy"
)

// defaultPath is the default of Options.Path.
const defaultPath = "/var/run/ztunnel/ztunnel.sock"

// defaultAckTimeout leaves an ADD that no proxy answers the time to be undone within 5 seconds, which is how long Istio's own
// agent waits for an ack.
const defaultAckTimeout = 4500 * time.Millisecond

// maxProxies bounds the connections. One proxy serves a node; while it is replaced there are two.
const maxProxies = 16

// Options configure a [Server]. Only Snapshot is required.
type Options struct {
	// Path is the socket's file. Default: /var/run/ztunnel/ztunnel.sock, to which Istio's ztunnel connects unless its INPOD_UDS names
	// another. Its directory is made if it is not there. A socket that is there is replaced, even if another agent listens on it; any
	// other file is an error.
	Path string
	// UIDs are the users whose processes may connect. Nil: root only.
	UIDs []uint32
	// AckTimeout bounds a proxy's time for its hello and for each ack. Default: 4.5 s.
	AckTimeout time.Duration
	// Snapshot returns the pods that the proxies are to have; one without NetNS is kept if the proxy has it. It is called for
	// each proxy that connects, on a goroutine of its own, and for the one that is left when the newest goes. Since a proxy gives
	// back all pods that are not named, it waits until all are known, or returns an error, and the proxy connects again. The context
	// ends with the connection. It must not wait for an Add or a Remove, which may wait for the snapshot.
	//
	// A pod for which Remove was called must not be in a snapshot that is asked for afterwards. What Add and Remove say after that
	// counts, whatever is in the snapshot. Each NetNS must stay valid until the snapshot is sent; if one is closed before, the pod is
	// kept instead of added.
	Snapshot func(context.Context) ([]nodeproxy.Workload, error)
	// Refused is called with each pod that no caller of Add hears about: the proxy refused it, as a [*NackError], or its
	// namespace is closed, and it came from a snapshot. The proxy does not serve it, or not yet: Istio's ztunnel tries again by itself.
	// It must not block. Nil: only the log tells.
	Refused func(types.UID, error)
	// OnChange is called when a proxy has connected, has been told the snapshot, or is gone; once for all of a moment if that is often.
	// It must not block. Nil: nothing is.
	OnChange func()
	// Log is the server's log. Nil discards it.
	Log *slog.Logger

	group func(pid int32) string // groupOf, but in tests
}

func (o Options) withDefaults() (Options, error) {
	if o.Snapshot == nil {
		return o, errors.New("no Snapshot: a proxy would give back all of its pods")
	}
	if o.AckTimeout < 0 {
		return o, errors.New("AckTimeout is negative")
	}
	if o.Path == "" {
		o.Path = defaultPath
	}
	if o.UIDs == nil {
		o.UIDs = []uint32{0}
	}
	if o.AckTimeout == 0 {
		o.AckTimeout = defaultAckTimeout
	}
	if o.Refused == nil {
		o.Refused = func(types.UID, error) {}
	}
	if o.OnChange == nil {
		o.OnChange = func() {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.group == nil {
		o.group = groupOf
	}
	return o, nil
}
