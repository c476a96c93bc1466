//go:build linux

package nodecmd

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent"
	"github.com/meshcni/meshcni/status"
)

// statusCommands are the commands that show what the agent has written. They need no API server and no running container, only
// the run directory.
func (p Program) statusCommands() []*cobra.Command {
	dir, output := p.Config.RunDir, "text"
	make := func(c *cobra.Command, show func(*visible.Printer, nodeagent.Status) bool) *cobra.Command {
		c.RunE = func(c *cobra.Command, _ []string) error {
			if err := cli.Fill(c.Flags(), cli.Env(p.Env)); err != nil {
				return cli.Usage(err)
			}
			s, err := nodeagent.ReadStatus(c.Context(), dir)
			if err != nil {
				return err
			}
			if output == "json" {
				e := json.NewEncoder(visible.JSON(p.Stdout))
				e.SetIndent("", "  ")
				return e.Encode(s)
			}
			if !show(visible.To(p.Stdout), s) {
				return cli.Exit(1)
			}
			return nil
		}
		c.Flags().Var(cli.Text(&dir, "dir"), "run-dir", "where the agent's status is")
		c.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
		cli.BindEnv(c.Flags(), p.Identity.EnvPrefix, nil)
		return c
	}
	return []*cobra.Command{
		make(&cobra.Command{Use: "status", Short: "say how this node is: readiness, warnings, pods that bypass the mesh; exits 1 unless all is well"}, showStatus),
		p.watchCommand(),
		make(&cobra.Command{Use: "pods", Short: "list this node's pods and the state of each: captured, waiting, outside, drifted or failed; exits 1 unless all of the mesh are captured"}, showPods),
	}
}

func showStatus(w *visible.Printer, s nodeagent.Status) (well bool) {
	word := "ready"
	if !s.Ready {
		word = "not ready"
	}
	if s.Alone {
		word += ", with the container runtime's hook alone"
	}
	w.Printf("node %s: %s\n", cmp.Or(s.Node, "(no name)"), word)
	for _, why := range news.Reasons(s.News) {
		w.Printf("not ready: %s\n", why)
	}
	for _, text := range news.Warnings(s.News) {
		w.Printf("warning: %s\n", text)
	}
	for _, p := range s.Pods {
		if p.NeedsAttention() {
			w.Printf("%s: %s/%s %s: %s\n", p.State, p.Namespace, p.Name, p.Reason, p.Detail)
		}
	}
	return s.Ready && !slices.ContainsFunc(s.Pods, status.Pod.NeedsAttention)
}

func showPods(w *visible.Printer, s nodeagent.Status) (well bool) {
	table := w.Table()
	table.Printf("NAMESPACE\tNAME\tUID\tDIALECT\tSTATE\tREASON\tSINCE\tBACKEND\tBYPASSES\tCONNTRACK\n")
	for _, p := range s.Pods {
		since := "-"
		if !p.Since.IsZero() {
			since = p.Since.UTC().Format(time.RFC3339)
		}
		filled := "-"
		if p.ConntrackPercent > 0 {
			filled = strconv.Itoa(p.ConntrackPercent) + "%"
		}
		table.Printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			p.Namespace, p.Name, p.UID, cmp.Or(p.Dialect, "-"), p.State, cmp.Or(p.Reason, "-"), since, cmp.Or(p.Backend, "-"), cmp.Or(strings.Join(p.Bypasses, ","), "-"), filled)
	}
	_ = table.Flush()
	return !slices.ContainsFunc(s.Pods, status.Pod.NeedsAttention)
}
