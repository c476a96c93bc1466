//go:build linux

package nodecmd

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/status"
)

// releaseCommand makes the command that takes all pods out of the care of the node's proxy.
func (p Program) releaseCommand() *cobra.Command {
	output, patience, byAgent := "text", nodeagent.ReleaseTime, false
	var how agentsock.ReleaseOptions
	c := &cobra.Command{
		Use: "release", Short: "take all pods out of the care of the node's proxy, before the agent or the proxy goes for good; exits 1 and names those that could not be",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := p.resolve(c.Flags())
			if err != nil {
				return cli.Usage(err)
			}
			if how.Undo && how.To != "" {
				return cli.Usage(errors.New("undo and to exclude each other"))
			}
			ctx, cancel := context.WithTimeout(c.Context(), patience)
			defer cancel()
			log := p.logger(s.Plugin.LogLevel)
			left, err := p.options(s, log).Release(ctx, how, !byAgent)
			switch {
			case byAgent && errors.Is(err, nodeagent.ErrNoAgent):
				log.Info("no agent runs on this node, so nothing is released")
			case err != nil:
				return err
			}
			if output == "json" {
				e := json.NewEncoder(visible.JSON(p.Stdout))
				e.SetIndent("", "  ")
				if err := e.Encode(append([]status.Pod{}, left...)); err != nil {
					return err
				}
			} else if len(left) > 0 {
				showPods(visible.To(p.Stdout), nodeagent.Status{Pods: left})
			}
			if len(left) > 0 {
				return cli.Exit(1)
			}
			return nil
		},
	}
	s := p.defaults()
	s.register(c.Flags(), p.Dialects)
	c.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json: the pods that could not be released")
	c.Flags().StringVar(&how.To, "to", "", "another agent of the mesh that is to have the pods instead, such as istio-cni: they stay captured and with the proxy. Start it, and then uninstall this one")
	c.Flags().BoolVar(&how.Undo, "undo", false, "have the running agent capture pods again")
	c.Flags().BoolVar(&byAgent, "by-agent", false, "leave it to the node's agent: without one do nothing, successfully")
	c.Flags().DurationVar(&patience, "timeout", patience, "how long to try")
	return c
}
