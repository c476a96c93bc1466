//go:build linux

package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/meshcni/meshcni/dialect"
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
	p := recorded(runDir, uid)
	enter(ctx, builtIn(known), &p, uid, podnetns.Wanted{}, hostRoot)
	return p
}

var errLookTime = errors.New("it took too long")

// recorded reads a pod's files in the run directory.
func recorded(runDir, uid string) agentapi.Pod {
	p := agentapi.Pod{Records: []attachment.Record{}, Live: ruleset.Live{}, Differences: []ruleset.Difference{}, Lost: []ruleset.Difference{}}
	unread := 0
	for r, err := range attachment.Open(runDir).All() {
		switch {
		case err != nil:
			unread++
			p.RecordsError = fmt.Sprintf("%d records cannot be read: %v", unread, err)
		case r.Pod.UID == uid:
			p.Records = append(p.Records, r)
		}
	}
	slices.SortFunc(p.Records, func(a, b attachment.Record) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Network, b.Network), cmp.Compare(a.IfName, b.IfName))
	})
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
