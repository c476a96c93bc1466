//go:build linux

package installer

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// failingFor bounds the time for which a pod counts after its newest failure. The kubelet tries again within five minutes.
	failingFor = 10 * time.Minute
	// maxFailing bounds the pods that are remembered. A node has some hundred at most.
	maxFailing = 1024
)

var failingDesc = prometheus.NewDesc("meshcni_plugin_pods_failing",
	"Pods whose newest ADD failed within 10 minutes, by error code of the CNI specification (7, 11, 50, 101, 999 and others).", []string{"cni_code"}, nil)

// failing remembers the pods that do not start. The counter of failures cannot tell one pod that is tried again and again
// from many.
type failing struct {
	now func() time.Time

	mu   sync.Mutex
	pods map[string]failedADD
}

type failedADD struct {
	code string
	at   time.Time
}

func newFailing() *failing { return &failing{now: time.Now, pods: map[string]failedADD{}} }

// failed records that a pod's ADD failed.
func (f *failing) failed(pod, code string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget()
	if _, known := f.pods[pod]; known || len(f.pods) < maxFailing {
		f.pods[pod] = failedADD{code, f.now()}
	}
}

// started records that a pod's ADD succeeded.
func (f *failing) started(pod string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, pod)
}

func (f *failing) forget() {
	for pod, last := range f.pods {
		if f.now().Sub(last.at) > failingFor {
			delete(f.pods, pod)
		}
	}
}

// Describe implements [prometheus.Collector].
func (f *failing) Describe(ch chan<- *prometheus.Desc) { ch <- failingDesc }

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
		ch <- prometheus.MustNewConstMetric(failingDesc, prometheus.GaugeValue, n, code)
	}
}
