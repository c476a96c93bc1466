//go:build linux

package nodeagent

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// TestPassedBy: the agent is not ready, so a node keeps its taint, while the newest pod that got its network with the entry in place started
// without the plugin.
func TestPassedBy(t *testing.T) {
	begin := time.Now()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	past := func(s int) status.Pod {
		return status.Pod{ID: status.ID{Namespace: "shop", Name: "cart", UID: "u"}, State: status.StateFailed, Reason: status.CodeNotCalled, Since: at(s), Detail: "by x.conflist (ptp)"}
	}
	called := func(s int) status.Pod {
		return status.Pod{State: status.StateCaptured, Reason: statuscode.Attached, Since: at(s)}
	}
	plain := func(string) *corev1.Pod { return &corev1.Pod{} }
	class := "kata"
	for name, tt := range map[string]struct {
		pods    []status.Pod
		putBack time.Time
		of      func(string) *corev1.Pod
		wrong   bool
	}{
		"nothing is known":                     {},
		"one started past":                     {pods: []status.Pod{past(40)}, wrong: true},
		"its ADD had begun before":             {pods: []status.Pod{past(20)}},
		"before the entry was put back":        {pods: []status.Pod{past(40)}, putBack: at(35)},
		"after that":                           {pods: []status.Pod{past(70)}, putBack: at(35), wrong: true},
		"a newer one did not":                  {pods: []status.Pod{past(40), called(41)}},
		"an older one did not":                 {pods: []status.Pod{called(39), past(40)}, wrong: true},
		"networks of a runtime class":          {pods: []status.Pod{past(40)}, of: func(string) *corev1.Pod { return &corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: &class}} }},
		"one whose object is not at hand":      {pods: []status.Pod{past(40)}, of: func(string) *corev1.Pod { return nil }, wrong: true},
		"one that is outside is no newer call": {pods: []status.Pod{past(40), {State: status.StateOutside, Since: at(50)}}, wrong: true},
	} {
		p := &passedBy{}
		make := tt.of
		if make == nil {
			make = plain
		}
		require.Empty(t, p.why(begin, nil, time.Time{}, nil, make), name)
		said := p.why(at(100), nil, tt.putBack, tt.pods, make)
		assert.Equal(t, tt.wrong, len(said) > 0, "%s: %v", name, said)
		if err := news.Err(said); err != nil {
			assert.ErrorContains(t, err, "passed-by: the container runtime started pod shop/cart at ", name)
			assert.ErrorContains(t, err, "by x.conflist (ptp)", name)
		}
		require.Empty(t, p.why(at(101), errors.New("fight"), tt.putBack, tt.pods, make), "the installer says why")
		require.Empty(t, p.why(at(102), nil, tt.putBack, tt.pods, make), "the entry is in place anew")
	}
}
