//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"time"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// Look returns what is on this node of a pod, by its UID as the runtime has it, as an agent would that may enter pods. It needs no
// agent. hostRoot is the host's root directory, with its iptables; empty: our own.
func Look(ctx context.Context, runDir, hostRoot string, known []dialect.Dialect, uid string) agentapi.Pod {
	ctx, stop := context.WithTimeoutCause(ctx, lookTime, errLookTime)
	defer stop()
	there := inventory.New(inventory.Options{Records: attachment.Open(runDir)})
	p := recorded(there, uid)
	enter(ctx, there, builtIn(known), &p, uid, netnsstore.Pod{}, hostRoot)
	return p
}

// lookTime bounds the look into a pod's namespace, for which programs may run.
const lookTime = 10 * time.Second

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
func enter(ctx context.Context, there *inventory.Inventory, known []dialect.Dialect, pod *agentapi.Pod, uid string, sought netnsstore.Pod, hostRoot string) {
	last := attachment.Record{Pod: status.ID{UID: uid}}
	if len(pod.Records) > 0 {
		last = pod.Records[len(pod.Records)-1]
	}
	var owners []ruleset.Ruleset
	for _, d := range known {
		owners = append(owners, d.Names.Owner().EmptyRuleset())
	}
	live, err := podrules.Look(ctx, there, sought, last, hostRoot, owners...)
	pod.Bypasses, pod.BypassError = live.Bypasses, live.BypassError
	if err != nil {
		pod.LiveError = err.Error()
		return
	}
	pod.Live = append(pod.Live, live.Rules...)
	lost, _ := last.Lost(live.Differences)
	pod.Differences, pod.Lost = append(pod.Differences, live.Differences...), append(pod.Lost, lost...)
}
