package nodepods_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/status"
)

var long = strings.Repeat("x", 200<<10)

func annotated(p object, keys ...string) object {
	all := object{}
	for _, key := range keys {
		all[key] = long
	}
	p["metadata"].(object)["annotations"] = all
	return p
}

func in(phase corev1.PodPhase, p object) object {
	p["status"] = object{"phase": string(phase), "podIPs": []object{{"ip": "10.0.0.1"}}}
	return p
}

// TestLargePods: what no mesh reads is not kept, from the list or from the watch; of what is too large nothing is answered, so that
// the plugin asks the API server, and at once.
func TestLargePods(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	put := func(suffix string) {
		a.put("ADDED", in(corev1.PodRunning, annotated(pod("shop", "cart"+suffix, "u1"+suffix), "example.com/x")))
		a.put("ADDED", in(corev1.PodRunning, annotated(pod("shop", "loud"+suffix, "u2"+suffix), "traffic.sidecar.istio.io/excludeInboundPorts")))
		a.put("ADDED", in(corev1.PodFailed, annotated(pod("shop", "ended"+suffix, "u3"+suffix), "traffic.sidecar.istio.io/excludeInboundPorts")))
	}
	put("")
	w := start(t, a, nodepods.Options{Dialects: builtin.All(), Patience: time.Hour})
	eventually(t, "the list", func() bool { return len(w.Pods()) == 3 })
	put("-2")
	eventually(t, "the watch", func() bool { return len(w.Pods()) == 6 })
	for _, suffix := range []string{"", "-2"} {
		p, err := w.Pod(t.Context(), status.ID{Namespace: "shop", Name: "cart" + suffix, UID: "u1" + suffix})
		require.NoError(t, err)
		assert.Empty(t, p.Pod.Annotations)
		_, err = w.Pod(t.Context(), status.ID{Namespace: "shop", Name: "loud" + suffix, UID: "u2" + suffix})
		require.ErrorIs(t, err, agentsock.ErrUnknown)
		require.ErrorIs(t, podkeep.Whole(w.Known(status.ID{Namespace: "shop", Name: "loud" + suffix, UID: "u2" + suffix})), podkeep.ErrTooLarge)
		ended := w.Known(status.ID{Namespace: "shop", Name: "ended" + suffix, UID: "u3" + suffix})
		assert.Empty(t, ended.Annotations)
		assert.Equal(t, []corev1.PodIP{{IP: "10.0.0.1"}}, ended.Status.PodIPs)
	}
}

// TestOneBoundForANode: all pods together have one, which pods that have ended cannot use up.
func TestOneBoundForANode(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	failed := func(i int) object {
		p := in(corev1.PodFailed, pod("tenant", fmt.Sprint("failed-", i), fmt.Sprint("f", i)))
		p["status"].(object)["initContainerStatuses"] = []object{{"name": "check", "state": object{"terminated": object{"exitCode": 126}}}}
		return p
	}
	const ended, running = 50, 10
	for i := range ended {
		a.put("ADDED", failed(i))
	}
	w := start(t, a, nodepods.Options{Dialects: builtin.All(), MaxBytes: 16 << 10})
	eventually(t, "synced", w.Synced)
	whole := func() (n int) {
		for _, p := range w.Pods() {
			if len(p.Spec.Containers) > 0 {
				n++
			}
		}
		return n
	}
	few := whole()
	assert.Positive(t, few)
	assert.Less(t, few, ended)
	for i := range running {
		a.put("ADDED", in(corev1.PodRunning, pod("shop", fmt.Sprint("cart-", i), fmt.Sprint("u", i))))
	}
	eventually(t, "all", func() bool { return len(w.Pods()) == ended+running })
	assert.Greater(t, whole(), few, "there is room for pods that run")
	for i := range ended {
		a.put("DELETED", failed(i))
	}
	for i := range running {
		a.put("MODIFIED", in(corev1.PodRunning, pod("shop", fmt.Sprint("cart-", i), fmt.Sprint("u", i))))
	}
	eventually(t, "what went has left its room", func() bool { return whole() == running && len(w.Pods()) == running })
}

// TestLargeNamespace: a namespace that is too large is not taken for one without labels.
func TestLargeNamespace(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	loud, other := namespace("shop", "on"), namespace("quiet", "on")
	loud["metadata"].(object)["annotations"] = object{"config.linkerd.io/skip-inbound-ports": long}
	other["metadata"].(object)["annotations"] = object{"example.com/x": long}
	other["metadata"].(object)["labels"] = object{"istio.io/dataplane-mode": "ambient"}
	a.put("ADDED", loud)
	a.put("ADDED", other)
	a.put("ADDED", pod("shop", "cart", "u1"))
	a.put("ADDED", pod("quiet", "cart", "u2"))
	w := start(t, a, nodepods.Options{Dialects: builtin.All(), Namespaces: true, Patience: time.Hour})
	eventually(t, "told", func() bool { _, err := w.Namespace("shop"); return errors.Is(err, podkeep.ErrTooLarge) })
	_, err := w.Namespace("shop")
	require.ErrorIs(t, err, nodepods.ErrUnknown)
	_, err = w.Pod(t.Context(), status.ID{Namespace: "shop", Name: "cart", UID: "u1"})
	require.ErrorIs(t, err, agentsock.ErrUnknown, "at once")
	eventually(t, "what is read of it", func() bool {
		ns, err := w.Namespace("quiet")
		return err == nil && ns.Labels["istio.io/dataplane-mode"] == "ambient"
	})
}
