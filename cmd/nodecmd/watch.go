//go:build linux

package nodecmd

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// watchCommand follows what the agent tells at its socket.
func (p Program) watchCommand() *cobra.Command {
	dir, output := p.Config.RunDir, "text"
	c := &cobra.Command{Use: "watch", Short: "follow the states of all pods of the node, those outside of the mesh too: a line for each change, until the agent ends; needs root"}
	c.Flags().Var(cli.Text(&dir, "dir"), "run-dir", "where the agent's socket is")
	c.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	cli.BindEnv(c.Flags(), p.Identity.EnvPrefix, nil)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := cli.Fill(c.Flags(), cli.Env(p.Env)); err != nil {
			return cli.Usage(err)
		}
		show := showChange(visible.To(p.Stdout))
		if output == "json" {
			e := json.NewEncoder(visible.JSON(p.Stdout))
			show = func(pod status.Pod) error { return e.Encode(pod) }
		}
		for pods, err := range agentapi.Local(dir).Watch(c.Context()) {
			if c.Context().Err() != nil {
				return nil //nolint:nilerr // it was to end
			}
			if err != nil {
				return err
			}
			for _, pod := range pods {
				if err := show(pod); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return c
}

func showChange(w *visible.Printer) func(status.Pod) error {
	return func(p status.Pod) error {
		w.Printf("%s/%s %s %s", p.Namespace, p.Name, p.State, p.Reason)
		if p.Detail != "" {
			w.Printf(": %s", p.Detail)
		}
		w.Printf("\n")
		return nil
	}
}
