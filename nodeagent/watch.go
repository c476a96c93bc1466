//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/files/sockfile"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/status"
)

const (
	// watchLook is the interval of looks at the states if nothing announces a change, watchRest the least time between two looks.
	watchLook, watchRest = time.Second, 20 * time.Millisecond
	// watchSign is the interval of empty lists, as a sign of life.
	watchSign = 30 * time.Second
	// maxFollowers bounds the requests at the agent's own socket.
	maxFollowers = 32
)

// Watch follows the states of all pods of the node, those outside of the mesh too, until the context or the loop ends. The first list has all of
// them; it comes once the agent knows the node's pods, never while it cannot tell which there are. Each further one has those that changed, at
// once after ADD has captured a pod; a pod that has gone comes a last time, outside with the reason "gone". A list is empty, at least twice a
// minute, if nothing has changed. Who is slow misses states in between, never the last one. It needs Config.Node, and a Config.Plugin.Agent
// other than off: without, it ends at once.
func (a *Agent) Watch(ctx context.Context) iter.Seq[[]status.Pod] {
	return func(yield func([]status.Pod) bool) {
		if a.sock == nil || a.sock.pods == nil {
			return
		}
		wake := make(chan struct{}, 1)
		defer a.sock.pods.Subscribe(func(types.UID) { poke(wake) })()
		records := recordWatch{dir: a.options.known.Dir(), wake: wake}
		defer records.close()
		var told map[string]status.Pod // by UID; nil: nothing was told
		var last time.Time
		for ctx.Err() == nil {
			records.arm() // before the look, so that no record is missed
			if all, known := a.everyPod(); known {
				changed := changes(told, all)
				if told == nil || len(changed) > 0 || time.Since(last) >= watchSign {
					if !yield(changed) {
						return
					}
					last = time.Now()
				}
				told = all
			}
			select {
			case <-ctx.Done():
			case <-wake:
				gather(ctx)
			case <-time.After(watchLook):
			}
		}
	}
}

func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default: // it is to look already
	}
}

// gather lets what belongs together come together.
func gather(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(watchRest):
	}
}

// changes returns the pods of which nothing, or something else, was told, and those that have gone.
func changes(told, all map[string]status.Pod) (changed []status.Pod) {
	changed = []status.Pod{}
	for uid, p := range all {
		if was, known := told[uid]; !known || !same(was, p) {
			changed = append(changed, p)
		}
	}
	for uid, p := range told {
		if _, there := all[uid]; !there {
			changed = append(changed, status.Pod{ID: p.ID, Dialect: p.Dialect, State: status.StateOutside, Reason: statuscode.Gone})
		}
	}
	return onePer(changed)
}

// same reports whether nothing that a follower acts on has changed.
func same(a, b status.Pod) bool {
	return a.ID == b.ID && a.Dialect == b.Dialect && a.State == b.State && a.Reason == b.Reason && a.Backend == b.Backend && slices.Equal(a.Bypasses, b.Bypasses)
}

// everyPod returns the states of all pods of the node by their UIDs, those of the mesh as [Agent.Status] has them. known is false while the agent
// does not know which pods there are.
func (a *Agent) everyPod() (all map[string]status.Pod, known bool) {
	pods, err := a.sock.podsOf()
	if err != nil {
		return nil, false
	}
	all = map[string]status.Pod{}
	for _, p := range a.pods() {
		all[p.UID] = p
	}
	found := a.options.known.Look()
	for _, pod := range pods {
		uid := string(a.sock.pods.RuntimeUID(pod))
		if told, there := all[uid]; there && !vague(told) {
			continue
		}
		p := stateOf(pod, a.sock.pods.Judgement(pod), found)
		p.ID = status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: uid}
		all[uid] = p
	}
	return all, true
}

// vague reports whether what a part of the agent says of a pod is no last word: it found no trace of it yet, or says that another mesh has it.
func vague(p status.Pod) bool {
	return p.State == status.StateUnknown && p.Reason == statuscode.NoTrace || p.State == status.StateOutside && p.Reason == statuscode.OtherMesh
}

// stateOf is the state of a pod of which the agent's parts say nothing: none of a mesh, one whose network is being set up, or one that nobody looks for.
func stateOf(pod *corev1.Pod, j *judge.Judgement, found inventory.Reading) (p status.Pod) {
	if j.Mesh != nil {
		p.Dialect = j.Mesh.Name
	}
	record := found.Record(pod)
	switch {
	case errors.Is(j.Err, redirect.ErrNamespaceUnknown):
		p.State, p.Reason, p.Detail = status.StateUnknown, statuscode.Namespace, j.Err.Error()
	case errors.Is(j.Err, podkeep.ErrTooLarge):
		p.State, p.Reason, p.Detail = status.StateUnknown, statuscode.TooLarge, j.Err.Error()
	case j.Undecided():
		p.State, p.Reason, p.Detail = status.StateUnknown, statuscode.Dialect, j.Err.Error()
	case !j.Selected():
		p.State, p.Reason, p.Detail = status.StateOutside, j.Decision.Reason, j.Decision.Detail
	case record != nil && record.Selected:
		p.State, p.Reason, p.Detail = status.StateCaptured, statuscode.Recorded, "the plugin's record says so"
		p.Backend, p.Since = string(record.Backend), record.Time
	case len(pod.Status.PodIPs) == 0 && (pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""):
		p.State, p.Reason, p.Detail = status.StateWaiting, statuscode.Starting, "its network is not set up yet"
	default:
		p.State, p.Reason, p.Detail = status.StateUnknown, statuscode.NoTrace, "the node has no record of the pod"
	}
	return p
}

// recordWatch tells when the plugin has written or removed a record. Where inotify cannot be used, the looks of [watchLook] do.
type recordWatch struct {
	dir  string
	wake chan struct{}
	fsw  *fsnotify.Watcher
}

// arm sees that the directory is watched, once there is one: the first ADD makes it.
func (w *recordWatch) arm() {
	if w.fsw == nil {
		fsw, err := fsnotify.NewWatcher()
		if err != nil {
			return
		}
		w.fsw = fsw
		go func() {
			for range fsw.Events {
				poke(w.wake)
			}
		}()
		go func() {
			for range fsw.Errors { // an overflow, say; the next look sees all
				poke(w.wake)
			}
		}()
	}
	_ = w.fsw.Add(w.dir) // again if it is there, which changes nothing, or if it was made anew
}

func (w *recordWatch) close() {
	if w.fsw != nil {
		_ = w.fsw.Close()
	}
}

// serveAPI answers root of the node at a socket in the run directory, until the context ends.
func (a *Agent) serveAPI(ctx context.Context) error {
	handler := a.api().server()
	handler.Watch = func(asked context.Context) iter.Seq[[]status.Pod] {
		both, stop := context.WithCancel(asked)
		unhook := context.AfterFunc(ctx, stop)
		return func(yield func([]status.Pod) bool) {
			defer unhook()
			defer stop()
			a.Watch(both)(yield)
		}
	}
	turn := make(chan struct{}, maxFollowers)
	all := handler.Handler()
	s := &http.Server{
		ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case turn <- struct{}{}:
				defer func() { <-turn }()
				all.ServeHTTP(w, r)
			default:
				http.Error(w, "the agent has all the followers that it serves at a time", http.StatusServiceUnavailable)
			}
		}),
	}
	path := agentapi.Local(a.options.Config.RunDir).Socket
	err := sockfile.Own(ctx, path, func(l *net.UnixListener) { _ = s.Serve(l) }, func() { _ = s.Close() })
	if err != nil {
		a.log.Warn("nobody can follow this node's pods", "error", err.Error())
	}
	return nil
}
