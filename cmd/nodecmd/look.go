//go:build linux

package nodecmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/bundle"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// lookCommand makes the command of the pod that "kubectl meshcni --enter" creates on a node whose agent may not enter pods. It is hidden
// because nobody else has a use for it.
func (p Program) lookCommand() *cobra.Command {
	var uids []string
	var hostRoot string
	runDir := p.Config.RunDir
	c := &cobra.Command{
		Use: "look", Short: "print what is on this node of pods, as the agent would if it could enter them", Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(uids) == 0 {
				return cli.Usagef("--uid: name a pod by its UID")
			}
			for _, uid := range uids {
				if !agentapi.IsUID(uid) {
					return cli.Usagef("--uid %q: that is no pod's UID", uid)
				}
			}
			lines := json.NewEncoder(visible.JSON(p.Stdout))
			for _, uid := range uids {
				l := agentapi.Looked{UID: uid, Pod: recorded(runDir, uid)}
				ctx, stop := context.WithTimeoutCause(c.Context(), agentapi.PodTimeout, errors.New("it took too long"))
				p.enter(ctx, &l.Pod, uid, hostRoot)
				stop()
				if c.Context().Err() != nil {
					return context.Cause(c.Context())
				}
				if err := lines.Encode(l); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().Var(cli.List(&uids, "uid"), "uid", "a pod, by its UID as the runtime has it (repeatable)")
	c.Flags().StringVar(&runDir, "run-dir", runDir, "where the agent keeps its records")
	c.Flags().StringVar(&hostRoot, "host-root", "", "the host's root directory, with its iptables (default: our own)")
	return c
}

// recorded reads a pod's files in the run directory.
func recorded(runDir, uid string) agentapi.Pod {
	p := agentapi.Pod{Records: []attachment.Record{}, Live: ruleset.Live{}, Differences: []ruleset.Difference{}, Lost: []ruleset.Difference{}}
	unread := 0
	for r, err := range attachment.In(runDir).All() {
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
func (p Program) enter(ctx context.Context, pod *agentapi.Pod, uid, hostRoot string) {
	last := attachment.Record{Pod: attachment.Pod{UID: uid}}
	if len(pod.Records) > 0 {
		last = pod.Records[len(pod.Records)-1]
	}
	var owners []ruleset.Ruleset
	for _, d := range p.Dialects {
		owners = append(owners, d.Names.Owner().EmptyRuleset())
	}
	live, err := bundle.Look(ctx, last, hostRoot, owners...)
	if err != nil {
		pod.LiveError = err.Error()
		return
	}
	pod.Live = append(pod.Live, live.Rules...)
	lost, _ := last.Lost(live.Differences)
	pod.Differences, pod.Lost = append(pod.Differences, live.Differences...), append(pod.Lost, lost...)
}
