package plugin

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshcni/meshcni/dialect"
)

const (
	// The first pause, which doubles, and the longest one. A pod that the API server does not know yet is there within
	// some tens of milliseconds; a server that restarts, within seconds.
	minBackoff = 25 * time.Millisecond
	maxBackoff = time.Second
	// attemptTime is what the first request may take, the second twice that, and so on: one lost connection must not
	// use up the whole deadline, and a slow server must be able to answer in the end.
	attemptTime = 10 * time.Second
	// presumeAfter is how many requests must have failed before a pod passes unread: one may be bad luck.
	presumeAfter = 2
)

func (c *call) openPods() (Pods, *types.Error) {
	if c.OpenPods == nil {
		return nil, fail(types.ErrPluginNotAvailable, "%s was built without a source of pods", c.Name)
	}
	pods, err := c.OpenPods(c.config.Kubeconfig)
	if err != nil {
		return nil, hint(fail(types.ErrPluginNotAvailable, "%v", err), "the node agent writes the kubeconfig; is it running on this node?")
	}
	return pods, nil
}

func closePods(pods Pods) {
	if closer, ok := pods.(interface{ Close() }); ok {
		closer.Close()
	}
}

// fetch gets the pod, and its namespace when needed, in one request each unless something is in the way.
func (c *call) fetch(ctx context.Context, mesh dialect.Dialect) (*corev1.Pod, *corev1.Namespace, *types.Error) {
	pods, failure := c.openPods()
	if failure != nil {
		c.unread = true
		return nil, nil, failure
	}
	defer func() { closePods(pods) }()
	if _, ok := pods.(Namespaces); mesh.NeedsNamespace && !ok {
		return nil, nil, fail(types.ErrInternal, "the dialect needs the pod's namespace, which the source of pods cannot read")
	}
	answered := false // whether the server has ever said something of the pod
	var problem error // the last one that says more than that time is over
	pause := minBackoff
	for attempt := 1; ; attempt++ {
		pod, namespace, err := c.once(ctx, pods, mesh, time.Duration(attempt)*attemptTime)
		if err == nil {
			return pod, namespace, nil
		}
		if ctx.Err() == nil || problem == nil {
			problem = err
		}
		var other mismatch
		another := errors.As(err, &other)
		answered = answered || pod != nil || another || apierrors.IsNotFound(err)
		c.unread = !answered
		if ctx.Err() == nil && !another && !c.Transient(err) {
			return nil, nil, fail(types.ErrInternal, "%v", err)
		}
		if c.unread && attempt >= presumeAfter && c.presumable(mesh.Policy) {
			return nil, nil, fail(types.ErrTryAgainLater, "%v", err)
		}
		wait := pause/2 + rand.N(pause) // many pods start at once, and should not come back at once
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			wait = max(wait, time.Duration(seconds)*time.Second)
		}
		c.logger().Debug("read pod again", "attempt", attempt, "wait_ms", wait.Milliseconds(), "error", err.Error())
		if !sleep(ctx, wait) {
			why := "a pod that may be in the mesh does not start before its rules are known"
			if apierrors.IsUnauthorized(problem) {
				why += "; the node's agent renews the token in " + c.config.Kubeconfig + ": is it running?"
			}
			return nil, nil, hint(fail(types.ErrTryAgainLater, "%s, after %d attempts: %v", c.expired(ctx), attempt, problem), "%s", why)
		}
		pause = min(2*pause, maxBackoff)
		if apierrors.IsUnauthorized(err) {
			// The agent may have written a new token meanwhile.
			if fresh, failure := c.openPods(); failure == nil {
				closePods(pods)
				pods = fresh
			}
		}
	}
}

func (c *call) once(ctx context.Context, pods Pods, mesh dialect.Dialect, limit time.Duration) (*corev1.Pod, *corev1.Namespace, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c.event.apiCalls++
	pod, err := pods.Pod(ctx, c.id.namespace, c.id.name)
	if err != nil {
		return nil, nil, err
	}
	if pod == nil {
		return nil, nil, fmt.Errorf("get pod %s: the source of pods gave none", c.id)
	}
	if err := c.id.is(pod); err != nil {
		return nil, nil, mismatch{err}
	}
	if !mesh.ReadsNamespace(pod) {
		return pod, nil, nil
	}
	c.event.apiCalls++
	namespace, err := pods.(Namespaces).Namespace(ctx, c.id.namespace)
	return pod, namespace, err
}

// mismatch is a pod that is not the one meant; the other one may be on its way.
type mismatch struct{ error }

// sleep reports whether there was time to. It leaves room for one more attempt where the server asks for a longer pause.
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

// expired says why there is no more time.
func (c *call) expired(ctx context.Context) string {
	if errors.Is(ctx.Err(), context.Canceled) {
		return "interrupted"
	}
	return fmt.Sprintf("not done within add_deadline %s", c.config.AddDeadline)
}
