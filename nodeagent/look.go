//go:build linux

package nodeagent

import (
	"context"
	"errors"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/podnetns"
	"github.com/meshcni/meshcni/internal/podrules"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// Look returns what is on this node of a pod, by its UID as the runtime has it, as an agent would that may enter pods. It needs no
// agent. hostRoot is the host's root directory, with its iptables; empty: our own.
func Look(ctx context.Context, runDir, hostRoot string, known []dialect.Dialect, uid string) agentapi.Pod {
	ctx, stop := context.WithTimeoutCause(ctx, agentapi.PodTimeout, errLookTime)
	defer stop()
	p := recorded(inventory.New(inventory.Options{Records: attachment.Open(runDir)}), uid)
	enter(ctx, builtIn(known), &p, uid, podnetns.Wanted{}, hostRoot)
	return p
}

var errLookTime = errors.New("it took too long")

// recorded has a pod's records.
func recorded(known *inventory.Inventory, uid string) agentapi.Pod {
	p := agentapi.Pod{Records: []attachment.Record{}, Live: ruleset.Live{}, Differences: []ruleset.Difference{}, Lost: []ruleset.Difference{}}
	records, err := known.Records(func(r inventory.Row) bool { return r.Pod.UID == uid })
	p.Records = append(p.Records, records...)
	if err != nil {
		p.RecordsError = err.Error()
	}
	return p
}

// enter reads the rules in the pod's network namespace.
func enter(ctx context.Context, known []dialect.Dialect, pod *agentapi.Pod, uid string, want podnetns.Wanted, hostRoot string) {
	last := attachment.Record{Pod: status.ID{UID: uid}}
	if len(pod.Records) > 0 {
		last = pod.Records[len(pod.Records)-1]
	}
	var owners []ruleset.Ruleset
	for _, d := range known {
		owners = append(owners, d.Names.Owner().EmptyRuleset())
	}
	live, err := podrules.Look(ctx, last, want, hostRoot, owners...)
	pod.Bypasses, pod.BypassError = live.Bypasses, live.BypassError
	if err != nil {
		pod.LiveError = err.Error()
		return
	}
	pod.Live = append(pod.Live, live.Rules...)
	lost, _ := last.Lost(live.Differences)
	pod.Differences, pod.Lost = append(pod.Differences, live.Differences...), append(pod.Lost, lost...)
}
