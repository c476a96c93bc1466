// Package migrate is the program kubectl-meshcni-migrate, which kubectl runs as "kubectl meshcni migrate": it says what it takes to move
// from another mesh's plugin, or from init containers, to this one, and moves nodes when the operator says so. Everything else is read.
package migrate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/migrate/otherplugin"
)

// Program is the kubectl plugin p with the command migrate in place of its own; that of your own mesh, if p has its dialects. It moves from
// the plugins given here and from [otherplugin.Known]; of several of a mesh the first counts.
func Program(p kubectlcmd.Program, plugins ...otherplugin.Plugin) kubectlcmd.Program {
	plugins = append(slices.Clone(plugins), otherplugin.Known()...)
	p.Migrate = func(lent *kubectl.Cluster) *cobra.Command { return (&cluster{lent, plugins}).migrateCommand() }
	return p
}

// The exit codes, as the plugin's.
const (
	exitWrong   = 1
	exitUnknown = 3
)

const (
	// askEvery is the interval of questions about a node that changes.
	askEvery = 300 * time.Millisecond
	// maxWhere bounds the pods that a line names.
	maxWhere = 10
)

// cluster is the one that moves.
type cluster struct {
	*kubectl.Cluster
	plugins []otherplugin.Plugin
}

// peers lists the meshes whose own plugin can be moved from.
func (c *cluster) peers() []migration.Source { return migration.Sources(c.Facts, c.plugins) }

// run makes a command of a function, which gets a connection.
func (c *cluster) run(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return c.Run(cmd.Context(), func(ctx context.Context) error { return do(ctx, args) })
	}
}

// usagef is a mistake on the command line.
func (c *cluster) usagef(format string, args ...any) error {
	return c.Usage(fmt.Errorf(format, args...))
}
