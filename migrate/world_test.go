package migrate

import (
	"bytes"
	"os"
	"testing"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/kubectlcmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/migrate/otherplugin"
)

// own is the identity of the programs in these tests.
var own = kubectltest.Own

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}))
}

// world is a cluster that the program asks.
type world struct {
	*kubectltest.World
	dialects []dialect.Dialect // nil: this module's, as facts
	facts    mesh.List
	plugins  []otherplugin.Plugin // those of one's own
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{World: kubectltest.New(t)}
}

// program asks the world's agents, and has what else change makes of what is lent.
func (w *world) program(p kubectlcmd.Program, change func(*kubectl.Cluster)) kubectlcmd.Program {
	p = Program(p, w.plugins...)
	command := p.Migrate
	p.Migrate = func(lent *kubectl.Cluster) *cobra.Command {
		lent.Ask = w.Get
		if change != nil {
			change(lent)
		}
		return command(lent)
	}
	return p
}

// run runs the program as an administrator.
func (w *world) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := w.program(kubectlcmd.Program{Dialects: w.dialects, Facts: w.facts, Stdout: &out, Stderr: &errs}, nil)
	code = p.Main(t.Context(), append([]string{"--kubeconfig", w.Kubeconfig}, args...))
	return code, out.String(), errs.String()
}
