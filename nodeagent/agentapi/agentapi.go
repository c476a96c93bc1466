// Package agentapi is what an agent tells those who may reach its loopback interface, such as "kubectl meshcni": how its node
// is, with which configuration the plugin runs, and of a pod what was decided and which rules are in force. It has nothing of a
// pod's environment, and no credentials. Root of the node may follow the states of all of its pods at a socket. Fields are added to the version
// of the paths, and never change their meaning.
package agentapi

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"time"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/node/recent"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// The paths. That of a pod ends with its UID, as the runtime has it.
const (
	NodePath = "/v1/node"
	PodPath  = "/v1/pods/"
)

// podsPath is served at the socket of [Local] alone, since it names pods outside of the mesh too.
const podsPath = "/v1/pods"

// Node is the state of a node. Its first fields are those of "meshcni-node status -o json".
type Node struct {
	Time  time.Time     `json:"time"`
	Node  string        `json:"node"`
	Ready bool          `json:"ready"`
	News  []status.News `json:"news,omitempty"`
	Pods  []status.Pod  `json:"pods"`

	About
}

// About describes an agent, and its files on the node.
type About struct {
	// Version is the agent's.
	Version string `json:"version"`
	// Dialects and Backend are those that the agent installs.
	Dialects []string `json:"dialects"`
	Backend  string   `json:"backend"`
	// BackendUsed is the one that Backend stands for in an empty network namespace, as tried. Empty: Backend itself, or not known.
	BackendUsed string `json:"backendUsed,omitempty"`
	// Repair is the agent's action for pods without their rules.
	Repair string `json:"repair,omitempty"`
	// RuntimeHook is what the agent does at the container runtime's own hook: capture, gate, or off, also where the runtime has none.
	RuntimeHook string `json:"runtimeHook,omitempty"`
	// PodsTotal counts the node's pods with a network of their own, without those that have ended. Nil: not known.
	PodsTotal *int `json:"podsTotal,omitempty"`
	// PodsStarting counts those that are to have one and have none yet: the runtime is about to set it up, or cannot, for instance
	// because ADD refuses. They are not in PodsTotal, and those in Pods are not counted.
	PodsStarting int       `json:"podsStarting,omitempty"`
	Installed    Installed `json:"installed"`
	// BackendError is the fault of all backends on the host. Empty: one works, as tried, or as far as is known where it cannot be tried.
	BackendError string `json:"backendError,omitempty"`
	Kernel       string `json:"kernel,omitempty"`
	// Rights are the permissions that the agent and its plugin need, with the agent's settings. Nil: the agent does not say.
	Rights []Right `json:"rights,omitempty"`
	// Places are the directories of the node that the agent works in, and BinDirs those of the runtime's plugins. Nil: the agent does
	// not say.
	Places  []Place  `json:"places,omitempty"`
	BinDirs []BinDir `json:"binDirs,omitempty"`
}

// Installed is the configuration in force.
type Installed struct {
	// File has the plugin's entry. Empty: none has, or if Unread, that is not known; Error says why. Beside a File, Error says why
	// no pod starts with its entry. Loaded is the file that the runtime loads, if that is another.
	File   string `json:"file,omitempty"`
	Unread bool   `json:"unread,omitempty"`
	Loaded string `json:"loaded,omitempty"`
	Error  string `json:"error,omitempty"`
	// Unknown are keys that mean nothing to the agent's version.
	Unknown []string `json:"unknown,omitempty"`
	// CNIVersion and Plugins, by their types in order, are those of File.
	CNIVersion string   `json:"cniVersion,omitempty"`
	Plugins    []string `json:"plugins,omitempty"`
	// Alone: nothing is to be in the node's network, so no File has an entry, and the agent captures pods at the container runtime's hook.
	Alone bool `json:"alone,omitempty"`
	// Config is the entry: the keys that this version knows; with Alone, what the agent decides by. Nil without either, and beside an Error.
	Config json.RawMessage `json:"config,omitempty"`
}

// Type is the type of the plugin's entry; empty if it cannot be read.
func (i Installed) Type() string {
	var entry struct{ Type string }
	_ = json.Unmarshal(i.Config, &entry)
	return entry.Type
}

// Pod holds all that a node has of one pod.
type Pod struct {
	// State is nil for a pod of which the agent knows nothing.
	State *status.Pod `json:"state,omitempty"`
	// Records are ADD's accounts of the pod's attachments. Empty: it was not called, or its records are gone.
	Records []attachment.Record `json:"records"`
	// RecordsError says that there may be more.
	RecordsError string `json:"recordsError,omitempty"`
	// Live are the rules in the pod's network namespace, and Differences those from the last record. LiveError says why they
	// cannot be read: then nothing is known of them.
	Live        ruleset.Live         `json:"live"`
	Differences []ruleset.Difference `json:"differences"`
	// Lost are those of the differences by which redirection that was set up is no longer in force.
	Lost      []ruleset.Difference `json:"lost"`
	LiveError string               `json:"liveError,omitempty"`
	// Bypasses are the ways that packets have past all rules of the namespace, as far as can be seen there. BypassError says why there may
	// be others.
	Bypasses    []dialect.Bypass `json:"bypasses,omitempty"`
	BypassError string           `json:"bypassError,omitempty"`
}

// Looked is a line of what "meshcni-node look" prints.
type Looked struct {
	UID string `json:"uid"`
	// Pod has no State, which only the agent knows.
	Pod
}

// Server answers. Node returns a [Node] or what is encoded like one. Watch is Agent.Watch; nil: that is not served.
type Server struct {
	Node  func() any
	Pod   func(ctx context.Context, uid string) Pod
	Watch func(ctx context.Context) iter.Seq[[]status.Pod]
}

// podTimeout bounds the wait for the looks of others, and the look.
const podTimeout = 10 * time.Second

// Handler serves the paths. It makes one answer about the node at a time, which is given again for a second, and looks into one pod at a
// time: whoever asks often must not keep the node busy.
func (s Server) Handler() http.Handler {
	mux := http.NewServeMux()
	var node recent.Value[encoded]
	mux.HandleFunc("GET "+NodePath, func(w http.ResponseWriter, _ *http.Request) {
		node.Get(func() encoded { return encode(s.Node()) }).write(w)
	})
	if s.Watch != nil {
		mux.HandleFunc("GET "+podsPath, s.follow)
	}
	turn := make(chan struct{}, 1)
	mux.HandleFunc("GET "+PodPath+"{uid}", func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("uid")
		if !podid.IsUID(id) {
			http.Error(w, "that is no pod's UID", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeoutCause(r.Context(), podTimeout, errors.New("the agent is busy"))
		defer cancel()
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			http.Error(w, context.Cause(ctx).Error(), http.StatusServiceUnavailable)
			return
		}
		encode(s.Pod(ctx, id)).write(w)
	})
	return mux
}

// encoded is an answer as JSON.
type encoded struct {
	text []byte
	err  error
}

func encode(answer any) (e encoded) {
	e.text, e.err = json.Marshal(answer)
	e.text = append(e.text, '\n')
	return e
}

func (e encoded) write(w http.ResponseWriter) {
	if e.err != nil {
		http.Error(w, e.err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(e.text)
}

// takeTime bounds the time in which a client has to take a line.
const takeTime = 30 * time.Second

// follow writes a line, a JSON list of pods, for each that Watch gives.
func (s Server) follow(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	line, control := json.NewEncoder(w), http.NewResponseController(w)
	_ = control.Flush() // so that the client knows that it is served, while the pods are not known yet
	for pods := range s.Watch(r.Context()) {
		_ = control.SetWriteDeadline(time.Now().Add(takeTime))
		if line.Encode(pods) != nil || control.Flush() != nil {
			return
		}
	}
}
