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
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/status"
)

// TestOnePerPod: each pod has one row, that of whoever has it.
func TestOnePerPod(t *testing.T) {
	proxied := func(uid, name string, s status.State, reason status.Code) status.Pod {
		return status.Pod{ID: status.ID{Namespace: "shop", Name: name, UID: uid}, State: s, Reason: reason}
	}
	all := onePer([]status.Pod{
		proxied("u3", "web", status.StateWaiting, "no-proxy"), proxied("u1", "cart", status.StateOutside, "not-enabled"),
		proxied("u2", "apart", status.StateOutside, "not-enabled"),
	}, []status.Pod{
		{ID: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, State: status.StateCaptured, Reason: "recorded"},
		{ID: status.ID{Namespace: "shop", Name: "odd", UID: "u4"}, State: status.StateDrifted, Reason: statuscode.Rules},
		{ID: status.ID{Namespace: "shop", Name: "web", UID: "u3"}, State: status.StateUnknown, Reason: "namespace"},
	})
	var rows []string
	for _, p := range all {
		rows = append(rows, p.Name+" "+string(p.State)+" "+string(p.Reason))
	}
	assert.Equal(t, []string{"apart outside not-enabled", "cart captured recorded", "odd drifted rules", "web waiting no-proxy"}, rows)
}

// TestFailing: a pod that ADD refuses has a row, as long as it waits for its network, and needs somebody.
func TestFailing(t *testing.T) {
	named := func(name string) status.ID {
		return status.ID{Namespace: "shop", Name: name, UID: "u-" + name}
	}
	failed := []installer.FailingPod{
		{Pod: named("bad"), Reason: "pod-refused", Error: "annotation a: no number\nannotation b: no number; correct them"},
		{Pod: named("deleted"), Reason: "pod-refused"}, {Pod: named("started"), Reason: "add-failed"}, {Pod: named("known"), Reason: "add-failed"}, {Pod: named("old")},
	}
	var here []*corev1.Pod
	for _, name := range []string{"bad", "started", "known", "old"} {
		here = append(here, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("u-" + name)}, Status: corev1.PodStatus{Phase: corev1.PodPending}})
	}
	here[1].Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}
	known := []status.Pod{{ID: named("known"), State: status.StateWaiting, Reason: "no-proxy"}}
	rows := func(all []status.Pod) (rows []string) {
		for _, p := range all {
			assert.True(t, p.NeedsAttention(), p.Name)
			rows = append(rows, p.Name+" "+string(p.State)+" "+string(p.Reason)+" "+p.Detail)
		}
		return rows
	}
	assert.Equal(t, []string{"bad waiting pod-refused annotation a: no number; annotation b: no number; correct them", "known waiting no-proxy ", "old waiting add-failed "},
		rows(onePer(nil, known, failing(failed, func() ([]*corev1.Pod, error) { return here, nil }))))
	assert.Len(t, onePer(nil, known, failing(failed, func() ([]*corev1.Pod, error) { return nil, errors.New("not known") })), 5, "what is not known is not gone")
}
