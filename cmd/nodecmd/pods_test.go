//go:build linux

package nodecmd

import (
	"testing"

	"github.com/stretchr/testify/assert"

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

func TestWrong(t *testing.T) {
	for _, c := range []struct {
		state  agentsock.State
		reason string
		want   bool
	}{
		{agentsock.Captured, "", false}, {agentsock.Outside, "", false}, {agentsock.Drifted, "", true}, {agentsock.Failed, "", true},
		{agentsock.Waiting, "no-proxy", true}, {agentsock.Waiting, "no-trace", false},
	} {
		assert.Equal(t, c.want, wrong(agentsock.PodState{State: c.state, Reason: c.reason}), "%s %s", c.state, c.reason)
	}
}
