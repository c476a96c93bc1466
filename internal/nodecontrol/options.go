package nodecontrol

import (
	"cmp"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/redirect/apply"
)

// Options configures a [Controller]. Meshes, Pods, Namespaces and Proxy are required.
type Options struct {
	// Identity is the product's, for the names of metrics.
	Identity meshcni.Identity
	// Meshes are the node's, as the plugin is configured. Those without a NodeProxy are asked too, and their pods are left alone. At
	// least one has a NodeProxy.
	Meshes dialect.Set
	// Apply are the plugin's own options, so that both program alike.
	Apply apply.Options

	// Pods are this node's.
	Pods Pods
	// Keeper keeps Pods for all in the agent who act on them. Its budgets limit how often rules are written again that were in force and are not as
	// they were. What a pod gets when it joins is not limited. nil: the controller makes one.
	Keeper *keeper.Keeper
	// Namespaces knows the pods' network namespaces.
	Namespaces Namespaces
	// Proxy takes the pods. Whoever makes it calls [Controller.ProxyChanged] when one comes or goes; otherwise only the next
	// verification finds that a proxy has lost its pods.
	Proxy nodeproxy.Proxy
	// Connected returns how many proxies there are, for the metrics. nil: one if Proxy.Ready returns nil.
	Connected func() int
	// Probes exempts the host's own connections to captured pods. nil: nothing is exempted.
	Probes Probes
	// Status writes the annotation of dialects that have one. nil: nobody is told.
	Status Status
	// Inventory has the node's attachments. The plugin's records are kept true for its CHECK. Nil: there are none.
	Inventory *inventory.Inventory

	// VerifyInterval is the time in which each pod is compared with the kernel once. Zero means [DefaultVerifyInterval],
	// less than zero never.
	VerifyInterval time.Duration
	// Timeout bounds one attempt at one pod. Zero means 20 s.
	Timeout time.Duration
	// ListenTimeout bounds the time from the proxy's consent until its listeners appear. Zero means 2 s.
	ListenTimeout time.Duration
	// DrainTimeout bounds how long a running pod that leaves the mesh stays with the proxy after it ceased to be redirected. The
	// proxy is told to let go of it when nothing was carried for 3 s, by connections of the pod or by the tunnel, but DrainMinimum after the
	// annotation was removed at the earliest, since peers use the tunnel until they have heard of that; and after DrainTimeout in any
	// case. Zero means [DefaultDrainTimeout]; less than zero, it is told at once. A pod that is deleted is not held back.
	DrainTimeout time.Duration
	// DrainMinimum is that minimum. Zero means [DefaultDrainMinimum].
	DrainMinimum time.Duration
	// Workers bounds the pods that are worked on at a time. Zero means GOMAXPROCS, but at least 4, since most of a pod's
	// time is spent waiting for the proxy and the API server. One more works on the pods whose last look took
	// longer than a second, or half of Timeout if that is less, so that they delay no others.
	Workers int

	// Events receives the pods' events. nil discards them.
	Events nodeevents.Recorder
	// Log receives one record per change of a pod's state. nil discards them.
	Log *slog.Logger
}

// Defaults of [Options] that the agent's settings have too.
const (
	DefaultVerifyInterval = 30 * time.Second
	DefaultDrainTimeout   = 12 * time.Second
	DefaultDrainMinimum   = 2 * time.Second
)

func (o Options) withDefaults() Options {
	if o.Inventory == nil {
		o.Inventory = inventory.New(inventory.Options{})
	}
	o.VerifyInterval = cmp.Or(o.VerifyInterval, DefaultVerifyInterval)
	o.Timeout = cmp.Or(o.Timeout, 20*time.Second)
	o.ListenTimeout = cmp.Or(o.ListenTimeout, 2*time.Second)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, DefaultDrainTimeout)
	o.DrainMinimum = cmp.Or(o.DrainMinimum, DefaultDrainMinimum)
	o.Workers = cmp.Or(o.Workers, max(4, runtime.GOMAXPROCS(0)))
	if o.Events == nil {
		o.Events = nodeevents.Discard
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

const (
	// slowLook bounds the time of a run in a pod's namespace before the pod counts as slow, but at most half of [Options.Timeout]. A look
	// takes some milliseconds, and is slow only if the pod has filled its namespace.
	slowLook = time.Second
	// busyAgain is the wait before a further look at a pod that somebody else works on, such as an ADD of it.
	busyAgain = 50 * time.Millisecond
)

// bounds returns how long one attempt at a pod may take, and from which time in its namespace on it counts as slow.
func (o Options) bounds(types.UID) (attempt, look time.Duration) {
	return o.Timeout, min(slowLook, o.Timeout/2)
}

func (o Options) validate() error {
	errs := []error{dialect.Validate(slices.Collect(o.Meshes.All()))}
	served := false
	for d := range o.Meshes.All() {
		served = served || d.NodeProxy != nil
	}
	for _, missing := range []struct {
		is   bool
		what string
	}{
		{!served, "no dialect with a proxy on the node"},
		{o.Pods == nil, "no pods"},
		{o.Namespaces == nil, "no network namespaces"},
		{o.Proxy == nil, "no proxy"},
	} {
		if missing.is {
			errs = append(errs, errors.New(missing.what))
		}
	}
	return errors.Join(errs...)
}
