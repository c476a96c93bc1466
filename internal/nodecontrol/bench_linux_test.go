package nodecontrol_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/ambient"
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// nodePods is the kubelet's default for the most pods of a node (max-pods).
const nodePods = 110

// cpuTime is the processor time of this process and of its children that have ended, which a busy machine does not change.
func cpuTime(b *testing.B) (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// BenchmarkEnrol is the label of a namespace with all of a node's pods: from the label until the last is captured, and back.
func BenchmarkEnrol(b *testing.B) {
	for _, backend := range []ruleset.Backend{ruleset.BackendNftables, ruleset.BackendIptablesNFT} {
		b.Run(fmt.Sprintf("%s/pods=%d", backend, nodePods), func(b *testing.B) {
			n := newNode(b, backend)
			n.options = func(o *nodecontrol.Options) { o.VerifyInterval = -1 }
			for i := range nodePods {
				n.pod(i)
			}
			n.start()
			all := func(state status.State) {
				n.until("all "+string(state), func() bool {
					states := n.c.Pods()
					return len(states) == nodePods && !slices.ContainsFunc(states, func(p status.Pod) bool { return p.State != state })
				})
			}
			all(status.StateOutside)
			var spent time.Duration
			defer func() { b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "cpu-ms/op") }()
			for b.Loop() {
				begin := cpuTime(b)
				n.pods.label("shop", "ambient")
				all(status.StateCaptured)
				spent += cpuTime(b) - begin
				b.StopTimer()
				n.pods.label("shop", "")
				all(status.StateOutside)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkEndedPods is the processor time that a node's agent takes for 5,000 pods which have ended and one that runs, as a share of one
// processor: with the default interval of verification, over one of them, and with the real watch of pods.
func BenchmarkEndedPods(b *testing.B) {
	const many = 5000
	n := newNode(b, ruleset.BackendNftables)
	running := n.pod(1)
	var all []corev1.Pod
	for i := range many + 1 {
		p := makePod(uidN(1000+i), "shop", fmt.Sprintf("job-%d", i), fmt.Sprintf("10.245.%d.%d", i/250, i%250+2))
		p.Status.Phase = corev1.PodSucceeded
		if i == many {
			p = n.pods.get(running).DeepCopy()
			p.Labels = map[string]string{"istio.io/dataplane-mode": "ambient"}
		}
		p.Spec.NodeName, p.ResourceVersion = "n1", "7"
		p.Kind, p.APIVersion = "Pod", "v1"
		all = append(all, *p)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q := r.URL.Query(); {
		case !strings.HasSuffix(r.URL.Path, "/pods"):
			http.Error(w, "not here", http.StatusBadRequest)
		case q.Get("sendInitialEvents") != "":
			to := json.NewEncoder(w)
			for i := range all {
				_ = to.Encode(map[string]any{"type": "ADDED", "object": &all[i]})
			}
			_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"8","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
			fallthrough
		default:
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	b.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	client, err := api.New(meshcni.Identity{}, &rest.Config{Host: server.URL, QPS: -1}, "n1")
	if err != nil {
		b.Fatal(err)
	}
	watch, err := nodepods.New(nodepods.Options{API: client, Dialects: []dialect.Dialect{ambient.New(ambient.Options{})}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = watch.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	n.options = func(o *nodecontrol.Options) { o.Pods, o.VerifyInterval = watch, nodecontrol.DefaultVerifyInterval }
	n.start()
	n.until("the running pod is captured", func() bool {
		return slices.ContainsFunc(n.c.Pods(), func(p status.Pod) bool { return p.UID == string(running) && p.State == status.StateCaptured })
	})
	for b.Loop() {
		before, begin := cpuTime(b), time.Now()
		time.Sleep(nodecontrol.DefaultVerifyInterval)
		b.ReportMetric(100*float64(cpuTime(b)-before)/float64(time.Since(begin)), "%-of-a-processor")
	}
}
