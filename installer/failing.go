//go:build linux

package installer

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/status"
)

const (
	// failingFor bounds the time for which a pod counts after its newest failure. The kubelet tries again within five minutes.
	failingFor = 10 * time.Minute
	// maxFailing bounds the pods that are remembered. A node has some hundred at most.
	maxFailing = 1024
	// maxReason bounds a reason, which is a short code.
	maxReason = 64
)

// failing remembers the pods that do not start. The counter of failures cannot tell one pod that is tried again and again
// from many.
type failing struct {
	now  func() time.Time
	desc *prometheus.Desc

	mu   sync.Mutex
	pods map[string]failedADD
}

type failedADD struct {
	FailingPod

	code string
}

// FailingPod is a pod whose newest ADD failed, within ten minutes.
type FailingPod struct {
	Pod status.ID
	// Reason is a plugin.FailReason; empty: the plugin gave none. Error says the same for people, with what to do.
	Reason, Error string
	// At dates the failure.
	At time.Time
}

func (f *failing) all() (pods []FailingPod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget()
	for _, last := range f.pods {
		if last.Pod.Name != "" {
			pods = append(pods, last.FailingPod)
		}
	}
	slices.SortFunc(pods, func(a, b FailingPod) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return pods
}

func keyOf(pod status.ID) string { return cmp.Or(pod.UID, pod.Namespace+"/"+pod.Name) }

func newFailing(id meshcni.Identity) *failing {
	desc := prometheus.NewDesc(id.Metric("plugin_pods_failing"),
		"Pods whose newest ADD failed within 10 minutes, by error code of the CNI specification (7, 11, 50, 101, 999 and others).", []string{"cni_code"}, nil)
	return &failing{now: time.Now, desc: desc, pods: map[string]failedADD{}}
}

// failed records that a pod's ADD failed.
func (f *failing) failed(pod status.ID, code, reason, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget()
	if _, known := f.pods[keyOf(pod)]; known || len(f.pods) < maxFailing {
		f.pods[keyOf(pod)] = failedADD{FailingPod{pod, truncate.Text(reason, maxReason), truncate.Finding(text), f.now()}, code}
	}
}

// started records that a pod's ADD succeeded.
func (f *failing) started(pod status.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, keyOf(pod))
}

func (f *failing) forget() {
	for pod, last := range f.pods {
		if f.now().Sub(last.At) > failingFor {
			delete(f.pods, pod)
		}
	}
}

// Describe implements [prometheus.Collector].
func (f *failing) Describe(ch chan<- *prometheus.Desc) { ch <- f.desc }

// Collect implements [prometheus.Collector]. Codes of which there is no pod have the value 0.
func (f *failing) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget()
	count := map[string]float64{}
	for _, code := range addCodes {
		count[code] = 0
	}
	for _, last := range f.pods {
		count[last.code]++
	}
	for code, n := range count {
		ch <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, n, code)
	}
}
