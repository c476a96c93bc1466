//go:build linux

package nodeagent

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/status"
)

// reloads bounds how long after its entry has been written a pod may start without the plugin and prove nothing: its ADD had begun before,
// or the runtime had yet to read the file.
const reloads = 30 * time.Second

// passedBy tells whether the runtime calls the plugin, by what became of the newest pod.
type passedBy struct {
	mu    sync.Mutex
	since time.Time // since when the entry has been seen in place; zero: it is not
}

// why returns why new pods are to be expected to start past the plugin: the newest pod of the mesh that got its network while the entry was
// in place did. Installed is why that is not in place, and putBack when it was last written. A pod with a runtime class proves nothing: a
// runtime may have networks of its own for it.
func (p *passedBy) why(now time.Time, installed error, putBack time.Time, pods []status.Pod, podByUID func(string) *corev1.Pod) []status.News {
	p.mu.Lock()
	if installed != nil {
		p.since = time.Time{}
	} else if p.since.IsZero() {
		p.since = now
	}
	since := p.since
	p.mu.Unlock()
	if since.IsZero() {
		return nil
	}
	if putBack.After(since) {
		since = putBack
	}
	var past status.Pod
	called := since.Add(reloads)
	for _, pod := range pods {
		switch {
		case pod.State == status.StateFailed && pod.Reason == status.CodeNotCalled:
			if full := podByUID(pod.UID); pod.Since.After(past.Since) && (full == nil || full.Spec.RuntimeClassName == nil) {
				past = pod
			}
		case (pod.State == status.StateCaptured || pod.State == status.StateDrifted) && pod.Since.After(called):
			called = pod.Since
		}
	}
	if !past.Since.After(called) {
		return nil
	}
	return news.NotReady(codePassedBy, fmt.Errorf("the container runtime started pod %s/%s at %s without the plugin, whose entry is in place: %s; see that the runtime reads that directory, "+
		"and start the pod anew", past.Namespace, past.Name, past.Since.UTC().Format(time.RFC3339), past.Detail))
}
