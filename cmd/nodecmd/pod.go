//go:build linux

package nodecmd

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
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
				if !podid.IsUID(uid) {
					return cli.Usagef("--uid %q: that is no pod's UID", uid)
				}
			}
			lines := json.NewEncoder(visible.JSON(p.Stdout))
			for _, uid := range uids {
				l := agentapi.Looked{UID: uid, Pod: nodeagent.Look(c.Context(), runDir, hostRoot, p.Dialects, uid)}
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

// probeCommands makes the commands of the container's probes, which ask the agent at a socket of its pod's own: anybody may have its port.
func (p Program) probeCommands() []*cobra.Command {
	path, patience := "", nodeagent.StartPatience
	probe := func(use, short string, ask func(context.Context) error) *cobra.Command {
		c := &cobra.Command{Use: use, Short: short, RunE: func(c *cobra.Command, _ []string) error {
			if path == "" {
				return cli.Usage(errors.New("--start-socket is required, as the agent has it"))
			}
			return ask(c.Context())
		}}
		c.Flags().StringVar(&path, "start-socket", "", "the agent's --start-socket")
		return c
	}
	started := probe("started", "for a startup probe: wait some seconds until the agent of this container has begun its work on the node; exits 1 and says why if it has not",
		func(ctx context.Context) error { return nodeagent.AwaitStarted(ctx, path, patience) })
	started.Flags().DurationVar(&patience, "patience", patience, "how long to wait, 8s at most")
	return []*cobra.Command{
		started,
		probe("live", "for a liveness probe: exits 1 and says why if the agent of this container hangs", func(ctx context.Context) error { return nodeagent.Ask(ctx, path, "/healthz") }),
		probe("ready", "for a readiness probe: exits 1 and says why if new pods of this node would not be captured", func(ctx context.Context) error { return nodeagent.Ask(ctx, path, "/readyz") }),
	}
}
