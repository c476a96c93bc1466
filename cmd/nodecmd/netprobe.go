//go:build linux

package nodecmd

import (
	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/netprobe"
)

// netProbeCommand makes the command of the pods of "kubectl meshcni test". It is hidden because nobody else has a use for it.
func (p Program) netProbeCommand() *cobra.Command {
	var o netprobe.Options
	var listen []uint
	var control uint16
	c := &cobra.Command{
		Use: "stand-in", Short: "stand in for an application and a proxy, for the kubectl plugin's test", Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, port := range append(listen, uint(control)) {
				if port == 0 || port > 65535 {
					return cli.Usagef("port %d is none from 1 to 65535", port)
				}
			}
			for _, port := range listen {
				o.Listen = append(o.Listen, uint16(port)) //nolint:gosec // as checked
			}
			o.Control = control
			return netprobe.Serve(c.Context(), o)
		},
	}
	c.Flags().StringVar(&o.Name, "name", "", "what to answer with")
	c.Flags().UintSliceVar(&listen, "listen", nil, "ports that answer")
	c.Flags().Uint16Var(&control, "control", 0, "port on 127.0.0.1 for questions")
	return c
}
