package nodecontrol_test

import (
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/status"
)

// TestFlapping: what a pod's author changes twenty times a second costs a bounded number of looks and of patches, whichever it is, and what
// it says last is done. A pod of another author that joins meanwhile does not wait.
func TestFlapping(t *testing.T) {
	t.Parallel()
	const label, redirection, flaps = "istio.io/dataplane-mode", "ambient.istio.io/redirection", 160
	for name, c := range map[string]struct {
		flap   func(p *corev1.Pod, i int)
		writes int
	}{
		"label": {func(p *corev1.Pod, i int) {
			p.Labels = map[string]string{label: []string{"none", "ambient"}[i%2]}
		}, 30},
		"status": {func(p *corev1.Pod, i int) {
			p.Annotations = maps.Clone(p.Annotations)
			delete(p.Annotations, redirection)
		}, 15},
		"another annotation": {func(p *corev1.Pod, i int) {
			p.Annotations = maps.Clone(p.Annotations)
			p.Annotations["example.org/serial"] = time.Now().String()
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, uid := oneCaptured(t)
			n.kill()
			n.options = func(o *nodecontrol.Options) { o.VerifyInterval = time.Hour }
			n.start()
			n.eventually(uid, status.StateCaptured, "captured")
			n.pods.mu.Lock()
			n.pods.writes = nil
			n.pods.mu.Unlock()
			n.namespaces.mu.Lock()
			n.namespaces.finds = 0
			n.namespaces.mu.Unlock()
			begin, pace := time.Now(), time.NewTicker(50*time.Millisecond) // so often is the load, and nothing is waited for
			defer pace.Stop()
			for i := range flaps {
				n.pods.change(uid, func(p *corev1.Pod) { c.flap(p, i) })
				<-pace.C
			}
			n.pods.mu.Lock()
			writes := len(n.pods.writes)
			n.pods.mu.Unlock()
			n.namespaces.mu.Lock()
			finds := n.namespaces.finds
			n.namespaces.mu.Unlock()
			took := int(time.Since(begin)/time.Second) + 1
			t.Logf("%d flaps in %d s: %d patches, %d looks", flaps, took, writes, finds)
			assert.LessOrEqual(t, writes, c.writes+took/30*3)
			assert.LessOrEqual(t, finds, 40+2*took)

			late := n.pod(2)
			n.pods.label("shop", "ambient")
			n.captured(late)

			n.pods.change(uid, func(p *corev1.Pod) { p.Labels = map[string]string{label: "none"} })
			n.until("the last word is done", func() bool { return n.state(uid).State == status.StateOutside && n.pods.annotation(uid) == "" })
			n.pods.change(uid, func(p *corev1.Pod) { p.Labels = map[string]string{label: "ambient"} })
			n.until("it is back", func() bool {
				return n.state(uid).State == status.StateCaptured && n.pods.annotation(uid) == "enabled"
			})
		})
	}
}

// TestFlappingPodEnds: what holds a flapping pod's turns back holds back neither its deletion, nor the release of all pods, nor an ADD.
func TestFlappingPodEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(n *node, uid types.UID){
		"deleted": func(n *node, uid types.UID) {
			n.pods.change(uid, nil)
			n.until("it is gone", func() bool { return n.state(uid).UID == "" && !n.proxy.holds(uid) })
		},
		"released": func(n *node, uid types.UID) {
			left, err := n.c.Release(n.t.Context(), "")
			require.NoError(n.t, err)
			assert.Empty(n.t, left)
			assert.EqualValues(n.t, "releasing", n.state(uid).Reason)
		},
		"added": func(n *node, uid types.UID) {
			n.pods.change(uid, func(p *corev1.Pod) { p.Labels = map[string]string{"istio.io/dataplane-mode": "ambient"} })
			_, err := n.attach(n.attachment(uid, "again"))
			require.NoError(n.t, err)
			own := netip.MustParseAddr(n.pods.get(uid).Status.PodIPs[0].IP)
			n.until("the probes' entry is of the pod's own address, not of its attachment's", func() bool { e, _ := n.probes.Entries(); return e[own] == uid })
			n.captured(uid)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, uid := oneCaptured(t)
			turns := 0
			n.until("it is held back", func() bool {
				turns++
				n.pods.change(uid, func(p *corev1.Pod) {
					p.Labels = map[string]string{"istio.io/dataplane-mode": []string{"none", "ambient"}[turns%2]}
				})
				return strings.Contains(n.state(uid).Detail, "again and again")
			})
			end(n, uid)
		})
	}
}
