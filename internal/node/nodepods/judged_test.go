package nodepods_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/nodepods"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// TestJudgement: however many ask about a pod, the mesh is asked once for each version of it and of its namespace's labels, and by new
// settings.
func TestJudgement(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	mesh := func(label string) dialect.Set {
		r := redirect.Default()
		return dialect.SetOf(dialect.Dialect{Name: "mine", Names: r.Names, Build: dialect.FromSchema(redirect.Schema{Defaults: r}), Policy: selection.Policy{
			Selectors:       []selection.Selector{{Namespace: metav1.LabelSelector{MatchLabels: map[string]string{"mesh": label}}}},
			ProxyContainers: []string{"app"}, Decline: func(*corev1.Pod, *corev1.Container) (status.Code, string) { asked.Add(1); return "", "" },
		}})
	}
	a := newAPI(t)
	a.put("ADDED", namespace("shop", "on"))
	a.put("ADDED", pod("shop", "cart", "u1"))
	w := start(t, a, nodepods.Options{Meshes: mesh("on"), Namespaces: true})
	selected := func() bool { return w.Judgement(w.ByUID("u1")).Selected() }
	eventually(t, "the pod and its namespace", func() bool { return w.ByUID("u1") != nil && selected() })

	count := func() int64 {
		before := asked.Load()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				cart := w.ByUID("u1")
				_ = w.Judgement(cart)
				_ = w.Judgement(cart.DeepCopy()) // as read anew
			})
		}
		all.Wait()
		return asked.Load() - before
	}
	assert.Zero(t, count(), "nothing has changed")
	version := w.ByUID("u1").ResourceVersion
	a.put("MODIFIED", pod("shop", "cart", "u1"))
	eventually(t, "the change", func() bool { return w.ByUID("u1").ResourceVersion != version })
	assert.EqualValues(t, 1, count(), "a new version of the pod")

	a.put("MODIFIED", namespace("shop", "off"))
	eventually(t, "the label", func() bool { return !selected() })
	j := w.Judgement(w.ByUID("u1"))
	assert.False(t, j.Undecided())
	assert.Zero(t, count())
	w.SetMeshes(mesh("off"))
	assert.True(t, selected())
	assert.Zero(t, count())

	gone := w.ByUID("u1")
	a.put("DELETED", pod("shop", "cart", "u1"))
	eventually(t, "its end", func() bool { return w.ByUID("u1") == nil })
	assert.True(t, w.Judgement(gone).Undecided(), "its namespace is forgotten with it")
}
