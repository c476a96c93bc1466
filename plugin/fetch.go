package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/dialect"
)

const (
	// The first pause, which doubles, and the longest one. A pod that the API server does not know yet turns up within some
	// tens of milliseconds; a server that restarts, within seconds.
	minBackoff = 25 * time.Millisecond
	maxBackoff = time.Second
	// attemptTime bounds the first request, the second twice that, and so on: one lost connection must not use up
	// the whole deadline, and a slow server must be able to answer in the end.
	attemptTime = 10 * time.Second
	// presumeAfter is the number of requests that must have failed before a pod passes unread: one may be bad luck.
	presumeAfter = 2
)

func (r *run) openPods() (Pods, *types.Error) {
	if r.OpenPods == nil {
		return Pods{}, fail(types.ErrPluginNotAvailable, "%s was built without a source of pods", r.name)
	}
	pods, err := r.OpenPods(r.config.Kubernetes.Kubeconfig)
	if err != nil {
		return Pods{}, hint(fail(types.ErrPluginNotAvailable, "%v", err), "the node agent writes the kubeconfig; is it running on this node?")
	}
	if pods.Pod == nil {
		return Pods{}, fail(types.ErrInternal, "the source of pods cannot read pods")
	}
	if pods.Transient == nil {
		pods.Transient = func(error) bool { return true }
	}
	if pods.Close == nil {
		pods.Close = func() {}
	}
	return pods, nil
}

// readsNamespaces refuses a source of pods that cannot read what the meshes need.
func readsNamespaces(pods Pods, meshes dialect.Set) *types.Error {
	if pods.Namespace == nil && meshes.ReadsNamespace(nil) {
		return fail(types.ErrInternal, "the pod's namespace decides too, and the source of pods cannot read it")
	}
	return nil
}

// answer is the answer of the source of pods.
type answer struct {
	pod       *corev1.Pod
	namespace *corev1.Namespace
	calls     int
	failure   *types.Error
	unread    bool // the source never said anything about the pod
	source    PodSource
}

// fetch gets the pod, and its namespace if a mesh needs it, with one request each unless something is in the way.
func (r *run) fetch(ctx context.Context, t target) (a answer) {
	defer func() {
		a.unread = a.unread && r.stack == nil // a panic is no reason to let a pod through
	}()
	defer r.rescue(&a.failure)
	if t.pod != nil {
		return answer{pod: t.pod}
	}
	if a, final := r.askAgent(ctx, t.meshes); final {
		return a
	}
	pods, failure := r.openPods()
	if failure != nil {
		return answer{failure: failure, unread: true}
	}
	defer func() { pods.Close() }()
	if failure := readsNamespaces(pods, t.meshes); failure != nil {
		return answer{failure: failure}
	}
	a.unread, a.source = true, fromAPI
	_, presumable := t.meshes.PresumeOut(r.config.Annotations)
	var problem error // the last one that says more than that time is over
	pause := minBackoff
	for attempt := 1; ; attempt++ {
		pod, namespace, err := r.once(ctx, pods, t, time.Duration(attempt)*attemptTime, &a.calls)
		if err == nil {
			a.pod, a.namespace, a.unread = pod, namespace, false
			return a
		}
		if ctx.Err() == nil || problem == nil {
			problem = err
		}
		var another mismatch
		isAnother := errors.As(err, &another)
		if pod != nil || isAnother || apierrors.IsNotFound(err) {
			a.unread = false
		}
		if ctx.Err() == nil && !isAnother && !pods.Transient(err) {
			a.failure = fail(types.ErrInternal, "%v", err)
			return a
		}
		if a.unread && presumable && attempt >= presumeAfter {
			a.failure = fail(types.ErrTryAgainLater, "%v", err)
			return a
		}
		wait := pause/2 + rand.N(pause) // many pods start at once, and should not come back at once
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			wait = max(wait, time.Duration(seconds)*time.Second)
		}
		began := time.Now()
		if !sleep(ctx, wait) {
			a.failure = r.tooLate(ctx, attempt, problem)
			return a
		}
		r.logger().Debug("read pod again", "attempt", attempt, "wait_ms", time.Since(began).Milliseconds(), "error", err.Error())
		pause = min(2*pause, maxBackoff)
		if status := apierrors.APIStatus(nil); apierrors.IsUnauthorized(err) || !errors.As(err, &status) {
			// The agent may have written a new token meanwhile, or a new certificate authority.
			if fresh, failure := r.openPods(); failure == nil {
				pods.Close()
				pods = fresh
			}
		}
	}
}

// once makes one attempt and counts its requests.
func (r *run) once(ctx context.Context, pods Pods, t target, limit time.Duration, calls *int) (*corev1.Pod, *corev1.Namespace, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	*calls++
	pod, err := pods.Pod(ctx, r.pod.namespace, r.pod.name)
	if err == nil && pod == nil {
		err = fmt.Errorf("get pod %s: the source of pods gave none", r.pod)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := r.pod.is(pod); err != nil {
		return nil, nil, mismatch{err}
	}
	if !t.meshes.ReadsNamespace(pod) {
		return pod, nil, nil
	}
	*calls++
	namespace, err := pods.Namespace(ctx, r.pod.namespace)
	if err == nil && namespace == nil {
		err = fmt.Errorf("get namespace %s: the source of pods gave none", r.pod.namespace)
	}
	return pod, namespace, err
}

// mismatch is a pod that is not the one meant; that one may be on its way.
type mismatch struct{ error }

// tooLate is the failure of a pod that could not be read in time.
func (r *run) tooLate(ctx context.Context, attempts int, problem error) *types.Error {
	why := "a pod that may be in the mesh does not start before its rules are known"
	if apierrors.IsUnauthorized(problem) {
		why += "; the node's agent renews the token in " + r.config.Kubernetes.Kubeconfig + ": is it running?"
	}
	return hint(fail(types.ErrTryAgainLater, "%s, after %d attempts: %v", r.expired(ctx), attempts, problem), "%s", why)
}

// sleep reports whether there was time to. It leaves room for one more attempt if the server asks for a longer pause.
func sleep(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok {
		d = min(d, max(time.Until(end)/2, minBackoff))
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// writeStatus annotates a pod whose rules are in place, where that is configured and the mesh has annotations for it. The
// patch names the pod's UID, so that the server refuses it once another pod has taken the name.
func (r *run) writeStatus(ctx context.Context, pod *corev1.Pod, applied map[string]string) (calls int, err error) {
	if !r.config.WriteStatus || len(applied) == 0 {
		return 0, nil
	}
	live := maps.Clone(pod.Annotations)
	maps.DeleteFunc(live, func(key, _ string) bool { _, ours := applied[key]; return !ours })
	if maps.Equal(live, applied) {
		return 0, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": applied}})
	if err != nil {
		return 0, fmt.Errorf("make patch: %w", err)
	}
	pods, failure := r.openPods()
	if failure != nil {
		return 0, failure
	}
	defer pods.Close()
	if pods.PatchPodStatus == nil {
		return 0, errors.New("the source of pods cannot write")
	}
	return 1, pods.PatchPodStatus(ctx, r.pod.namespace, r.pod.name, patch)
}
