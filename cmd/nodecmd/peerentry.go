//go:build linux

package nodecmd

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/peerentry"
	"github.com/meshcni/meshcni/internal/text/visible"
)

// peerEntryCommand makes the command of the pods of "kubectl meshcni migrate switch" and "back". It is hidden because nobody else has a use
// for it.
func (p Program) peerEntryCommand() *cobra.Command {
	root := &cobra.Command{Use: "peer-entry", Short: "the entry of another mesh's plugin, for the kubectl plugin's migrate", Hidden: true}
	n := peerentry.Node{Own: p.Config.Plugin.Type}
	var dry bool
	for use, do := range map[string]func() (peerentry.State, error){
		"show":    func() (peerentry.State, error) { return n.Show() },
		"take":    func() (peerentry.State, error) { return n.Take(dry) },
		"restore": func() (peerentry.State, error) { return n.Restore(dry) },
	} {
		c := &cobra.Command{Use: use, RunE: func(*cobra.Command, []string) error {
			if !peerentry.IsType(n.Type) || n.Type == n.Own {
				return cli.Usagef("--type %q: no type of another plugin", n.Type)
			}
			if n.Dir == "" || len(n.BinDirs) == 0 {
				return cli.Usage(errors.New("--cni-conf-dir and --cni-bin-dir are needed"))
			}
			s, err := do()
			if err != nil {
				return err
			}
			if s.Kept != nil {
				s.Kept.List = nil // nobody reads it from here
			}
			e := json.NewEncoder(visible.JSON(p.Stdout))
			e.SetIndent("", "  ")
			return e.Encode(s)
		}}
		c.Flags().StringVar(&n.Type, "type", "", "the other's plugin")
		c.Flags().StringVar(&n.Dir, "cni-conf-dir", "", "directory of network configurations")
		c.Flags().StringArrayVar(&n.BinDirs, "cni-bin-dir", nil, "directory of plugins; again for more")
		if use != "show" {
			c.Flags().BoolVar(&dry, "dry-run", false, "change nothing")
		}
		root.AddCommand(c)
	}
	return root
}
