package nodepods

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/judge"
)

// judged is a pod's judgement, which whoever asks first makes.
type judged struct {
	pod       *corev1.Pod
	namespace *corev1.Namespace
	unknown   string
	judge     *judge.Judge
	is        func() *judge.Judgement
}

// SetMeshes has pods judged by other meshes from now on, and namespaces read if one of these needs them.
func (w *Watch) SetMeshes(meshes dialect.Set) {
	j, reads := judge.New(meshes), meshes.ReadsNamespace(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge = j
	if reads && !w.opts.Namespaces {
		w.opts.Namespaces = true
		for name, n := range w.namespaces {
			w.follow(name, n)
		}
	}
}

// Judgement returns what the node's meshes say of a pod, with what is known of its namespace now. Of one of the node's pods it is made once for
// each version of the pod and of its namespace, and for new meshes. The pod may also be one that was just read from the API server.
func (w *Watch) Judgement(pod *corev1.Pod) *judge.Judgement {
	w.mu.Lock()
	namespace, err := w.namespace(pod.Namespace)
	unknown := ""
	if err != nil {
		namespace, unknown = nil, err.Error()
	}
	j, known := w.judge, w.judged[pod.UID]
	if known.judge != j || known.unknown != unknown || !judge.Same(known.pod, pod, known.namespace, namespace) {
		known = judged{pod: pod, namespace: namespace, unknown: unknown, judge: j, is: sync.OnceValue(func() *judge.Judgement { return j.Pod(pod, namespace, err) })}
		if w.pods[pod.UID] == pod {
			w.judged[pod.UID] = known
		}
	}
	w.mu.Unlock()
	return known.is()
}
