//go:build linux

package nodeagent

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/plugin/agentsock"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/repair"
)

// TestEveryStateHasAWord: whatever repair may come to say of a pod, people's programs know the word.
func TestEveryStateHasAWord(t *testing.T) {
	for _, s := range append([]repair.CaptureState{repair.StateDrifted}, repair.CaptureStates...) {
		assert.Contains(t, agentsock.States, captureStates[string(s)], "%s", s)
	}
}

// TestMerge: each pod has one row, that of whoever has it.
func TestMerge(t *testing.T) {
	proxied := func(uid, name string, s agentsock.State, reason string) agentsock.PodState {
		return agentsock.PodState{Pod: attachment.Pod{Namespace: "shop", Name: name, UID: uid}, State: s, Reason: reason}
	}
	all := merge([]repair.PodStatus{
		{Namespace: "shop", Name: "cart", UID: "u1", State: string(repair.Captured), Reason: "recorded"},
		{Namespace: "shop", Name: "odd", UID: "u4", State: repair.StateDrifted},
		{Namespace: "shop", Name: "web", UID: "u3", State: string(repair.CannotTell), Reason: "namespace"},
	}, []agentsock.PodState{
		proxied("u3", "web", agentsock.Waiting, "no-proxy"), proxied("u1", "cart", agentsock.Outside, "not-enabled"),
		proxied("u2", "apart", agentsock.Outside, "not-enabled"),
	})
	var rows []string
	for _, p := range all {
		rows = append(rows, p.Name+" "+string(p.State)+" "+p.Reason)
	}
	assert.Equal(t, []string{"apart outside not-enabled", "cart captured recorded", "odd drifted rules", "web waiting no-proxy"}, rows)
}

// TestFailing: a pod that ADD refuses has a row, as long as it waits for its network, and needs somebody.
func TestFailing(t *testing.T) {
	named := func(name string) attachment.Pod {
		return attachment.Pod{Namespace: "shop", Name: name, UID: "u-" + name}
	}
	failing := []installer.FailingPod{
		{Pod: named("bad"), Reason: "pod-refused", Error: "annotation a: no number\nannotation b: no number; correct them"},
		{Pod: named("deleted"), Reason: "pod-refused"}, {Pod: named("started"), Reason: "add-failed"}, {Pod: named("known"), Reason: "add-failed"}, {Pod: named("old")},
	}
	var here []*corev1.Pod
	for _, name := range []string{"bad", "started", "known", "old"} {
		here = append(here, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("u-" + name)}, Status: corev1.PodStatus{Phase: corev1.PodPending}})
	}
	here[1].Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}
	known := []agentsock.PodState{{Pod: named("known"), State: agentsock.Waiting, Reason: "no-proxy"}}
	rows := func(all []agentsock.PodState) (rows []string) {
		for _, p := range all {
			assert.True(t, NeedsAttention(p), p.Name)
			rows = append(rows, p.Name+" "+string(p.State)+" "+p.Reason+" "+p.Detail)
		}
		return rows
	}
	assert.Equal(t, []string{"bad waiting pod-refused annotation a: no number; annotation b: no number; correct them", "known waiting no-proxy ", "old waiting add-failed "},
		rows(withFailing(known, failing, func() ([]*corev1.Pod, error) { return here, nil })))
	assert.Len(t, withFailing(known, failing, func() ([]*corev1.Pod, error) { return nil, errors.New("not known") }), 5, "what is not known is not gone")
}

func TestWrong(t *testing.T) {
	for _, c := range []struct {
		state  agentsock.State
		reason string
		want   bool
	}{
		{agentsock.Captured, "", false}, {agentsock.Outside, "", false}, {agentsock.Drifted, "", true}, {agentsock.Failed, "", true},
		{agentsock.Waiting, "no-proxy", true}, {agentsock.Waiting, "no-trace", false},
	} {
		assert.Equal(t, c.want, NeedsAttention(agentsock.PodState{State: c.state, Reason: c.reason}), "%s %s", c.state, c.reason)
	}
}
