package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/budget"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/keeper"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Options configures a [Controller]. Only Node, Meshes and Config are required.
type Options struct {
	// Identity is that of the product in whose name the controller acts.
	Identity meshcni.Identity
	// Node is the name of the node whose pods the controller watches. Required.
	Node string
	// Meshes are the node's, as the plugin is configured. Required. Pods of a mesh whose proxy is on the node are left to the agent
	// that hands them to it. Pods of its Others are found where Detect is set, and nothing is done to them.
	Meshes dialect.Set
	// Config is the client's configuration for the API server. Required, unless there is an API.
	Config *rest.Config
	// API is an agent's client. nil: it is made of Config.
	API *api.Client

	// Elsewhere reports whether another program of the node redirects the pods of one of the Others, by its name. nil: none does.
	Elsewhere func(dialect string) bool

	// Action is the treatment of broken pods. Zero means [ActionNone]: only report them.
	Action Action
	// Criteria say which pods of a mesh are broken, by the mesh's name. One that is not there has those of [CriteriaFor].
	Criteria map[string]Criteria
	// Force deletes pods whose eviction a disruption budget forbids.
	Force bool
	// SpareUnmanaged exempts pods without a controlling owner from deletion, since nothing would replace them.
	SpareUnmanaged bool
	// VerifyInterval is the time in which the rules of all running captured pods are verified once. Zero means never.
	VerifyInterval time.Duration

	// Detect finds the pods in the mesh that started without the plugin. nil means not to look for them.
	Detect *Detection

	// NodeBudget limits all actions on this node, for the pods of each namespace by itself, so that one tenant's broken pods keep no
	// other's waiting. In an agent the same budget limits how often pods of the node's proxy are mended. Zero means 120 a minute and 110 at
	// once, as many as a node has pods by default: after a boot all of them may be broken.
	NodeBudget Budget

	// Installed reports why new pods on this node would not get their rules, or nil if they would. While it returns an
	// error, nothing is deleted. A nil Installed means that they would.
	Installed func() error
	// Confined reports why the API server might let this program delete pods of other nodes, or nil if it does not. While it returns an
	// error, nothing is deleted. It is called for each deletion, so it answers from what it knows. nil: it does not matter.
	Confined func() error

	// Backend is the firewall backend. Zero means auto.
	Backend ruleset.Backend
	// ProcRoot is a proc file system that shows the pods' processes. Empty means /proc.
	ProcRoot string
	// HostRoot is the root directory to run iptables in, such as that of the host, where the plugin runs. Empty means our own. See Root
	// of [apply.Options].
	HostRoot string
	// Records are the plugin's records on this node, plugin.Records; a repair updates them for the plugin's CHECK. The zero Store has none.
	Records attachment.Store

	// Inventory has the node's attachments. Nil: it is made of Records and Detect.CacheDir.
	Inventory *inventory.Inventory
	// Pods are the node's pods, as an agent watches them. nil: the controller watches them itself.
	Pods *nodepods.Watch
	// Keeper keeps Pods for all in the agent who act on them. nil: the controller makes one.
	Keeper *keeper.Keeper
	// Events receives the pods' events: client-go's record.EventRecorder, for example. nil means the API server.
	Events interface {
		Event(object runtime.Object, kind, reason, message string)
	}
	// Suspects names what may have replaced a pod's rules, such as the plugin of another mesh beside ours; reports of rules
	// that have drifted repeat it. nil: nobody is suspected.
	Suspects func() []string
	// Metrics registers the controller's metrics. nil: they are not registered.
	Metrics prometheus.Registerer
	// Log receives one record per outcome. nil discards them.
	Log *slog.Logger

	// cluster replaces the API server at Config in tests. There are then no events and no permission checks.
	cluster cluster
	unheard time.Duration // for how long the API server may tell nothing; zero: [unheard.For]
	// redirector programs running pods. nil means an [InPlace] made from these Options; tests have another.
	redirector redirector
}

// redirector reads and writes the rules of a running pod. [InPlace] implements it.
type redirector interface {
	// Check returns how the pod's live rules differ from the wanted ones.
	Check(ctx context.Context, pod *corev1.Pod) ([]ruleset.Difference, error)
	// Apply makes the live rules the wanted ones.
	Apply(ctx context.Context, pod *corev1.Pod) (apply.Result, error)
}

// WithDefaults returns the options with the defaults in the place of zero values, as [New] takes them.
func (o Options) WithDefaults() Options {
	o.Identity = o.Identity.WithDefaults()
	o.Action = cmp.Or(o.Action, ActionNone)
	o.NodeBudget = cmp.Or(o.NodeBudget, budget.Default)
	o.Criteria = maps.Clone(o.Criteria)
	if o.Criteria == nil {
		o.Criteria = map[string]Criteria{}
	}
	for d := range o.Meshes.All() {
		criteria, ok := o.Criteria[d.Name]
		if !ok {
			criteria = CriteriaFor(o.Identity, d)
		}
		if o.Action != ActionLabel {
			criteria.HandledLabel = "" // another action's label does not mean handled
		}
		o.Criteria[d.Name] = criteria
	}
	if o.Detect != nil {
		o.Detect = o.Detect.withDefaults(o.Identity)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	_, errAction := ParseAction(string(o.Action))
	err := errors.Join(o.Identity.Validate(), dialect.Validate(o.Meshes.Known()), errAction, o.NodeBudget.Validate())
	if o.needsCheck() {
		err = errors.Join(err, o.anyCheck())
	}
	for name := range o.Criteria {
		if o.Meshes.Lookup(name) == nil {
			err = errors.Join(err, fmt.Errorf("criteria of a dialect %q, which is not there", name))
		}
	}
	switch {
	case o.Node == "":
		err = errors.Join(err, errors.New("no node name"))
	case o.Meshes.Len() == 0:
		err = errors.Join(err, errors.New("no dialect"))
	case o.Config == nil && o.API == nil && o.cluster == nil:
		err = errors.Join(err, errors.New("no API server"))
	}
	return err
}

// needsCheck reports whether the controller could do nothing without a check in the pods: neither verification nor detection
// needs one.
func (o Options) needsCheck() bool {
	if o.Action == ActionNone {
		return o.VerifyInterval == 0 && o.Detect == nil
	}
	return o.Detect == nil || !o.Detect.Act
}

// shares reports whether there are pods to repair that may be this mesh's: its own, or those of another that it could have
// instead. A mesh that leaves a sidecar's pods alone by the annotation that all of these have shares none.
func (o Options) shares(d dialect.Dialect) bool {
	return slices.ContainsFunc(slices.Collect(o.Meshes.All()), func(other dialect.Dialect) bool {
		foreign := d.Policy.ForeignAnnotation
		return other.NodeProxy == nil && (foreign == "" || other.Policy.StatusAnnotation != foreign)
	})
}

// anyCheck returns an error if no mesh has criteria by which a pod could be found broken. One alone is enough: the pods of
// others are found by detection. A mesh whose proxy is on the node needs none.
func (o Options) anyCheck() (err error) {
	for d := range o.Meshes.All() {
		if d.NodeProxy != nil {
			continue
		}
		wrong := o.Criteria[d.Name].Validate()
		if wrong == nil {
			return nil
		}
		err = errors.Join(err, wrong)
	}
	return err
}

// labelSelector selects the pods to see to: all, unless every mesh's criteria select the same labels.
func (o Options) labelSelector() string {
	if o.Detect != nil { // it is about all of the node's pods
		return ""
	}
	selector := ""
	for i, name := range o.Meshes.Names() {
		labels := o.Criteria[name].Labels
		if labels == nil || i > 0 && labels.String() != selector {
			return ""
		}
		selector = labels.String()
	}
	return selector
}

// readsNamespaces reports whether a pod's namespace matters. That it decides matters to every finding, and what is inherited from it to the rules.
func (o Options) readsNamespaces() bool {
	inPlace := o.Action == ActionRepair || o.VerifyInterval > 0
	return slices.ContainsFunc(slices.Collect(o.Meshes.All()), func(d dialect.Dialect) bool {
		return o.shares(d) && (d.Policy.ReadsNamespace() || inPlace && d.NodeProxy == nil && d.ReadsNamespace(nil)) ||
			len(d.Policy.ExcludedNamespaceLabels) > 0
	})
}

// Permissions returns what a controller with these options asks of the API server. An empty namespace or name means all.
func (o Options) Permissions() []authorizationv1.ResourceAttributes {
	o = o.WithDefaults()
	all := []api.Right{api.MayListPods, api.MayWatchPods, api.MayCreateEvents, api.MayPatchEvents}
	switch o.Action {
	case ActionLabel:
		all = append(all, api.MayPatchStatus)
	case ActionDelete:
		all = append(all, api.MayEvict)
		if o.Force {
			all = append(all, api.MayDelete)
		}
	case ActionNone, ActionRepair:
	}
	if o.readsNamespaces() {
		all = append(all, api.MayList(api.Namespaces), api.MayWatch(api.Namespaces))
	}
	return all
}

// New returns a controller. It sends no request. An error says what is wrong with the options.
func New(o Options) (*Controller, error) {
	o = o.WithDefaults()
	err := o.validate()
	var c *Controller
	if err == nil {
		c, err = newController(o)
	}
	if err != nil {
		return nil, fmt.Errorf("make repair controller: %w", err)
	}
	return c, nil
}
