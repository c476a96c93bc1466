package repair_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/repair"
)

// full makes the traces of a node that is full: the kubelet's default limit is 110 pods.
func full(t testing.TB) traces {
	t.Helper()
	n := newTraces(t)
	for i := range 110 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("p", i), UID: types.UID(fmt.Sprint("u", i))}}
		pod.Status.PodIP = fmt.Sprint("10.0.0.", i)
		n.attach(pod, fmt.Sprint("c", i), "ptp", "portmap", "meshcni")
		n.record(pod, fmt.Sprint("c", i), true)
	}
	return n
}

// TestTracesOfAFullNode: what has changed is seen at the next look.
func TestTracesOfAFullNode(t *testing.T) {
	t.Parallel()
	n := full(t)
	look := repair.Look(n.cache, n.store)
	networks, records, err := look()
	require.NoError(t, err)
	require.Equal(t, []int{110, 110}, []int{networks, records})
	require.NoError(t, os.Remove(filepath.Join(n.cache, "results", "k8s-c7-eth0")))
	require.NoError(t, os.WriteFile(filepath.Join(n.cache, "results", "k8s-c8-eth0"), []byte("{"), 0o600))
	networks, _, err = look()
	require.NoError(t, err)
	require.Equal(t, 108, networks)
	require.NoError(t, os.WriteFile(filepath.Join(n.store.Dir, "k8s@c1@eth0.json"), []byte("{"), 0o600))
	_, records, err = look()
	require.ErrorContains(t, err, "k8s@c1@eth0.json")
	require.Equal(t, 109, records)
}

// BenchmarkLook is a look at a full node on which nothing has changed, as there is one for each change of a pod and every ten
// seconds.
func BenchmarkLook(b *testing.B) {
	n := full(b)
	look := repair.Look(n.cache, n.store)
	began := time.Now()
	_, _, err := look()
	require.NoError(b, err)
	b.ReportMetric(float64(time.Since(began).Microseconds()), "µs/first")
	for b.Loop() {
		_, _, _ = look()
	}
}
