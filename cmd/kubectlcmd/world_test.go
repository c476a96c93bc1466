package kubectlcmd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
	"github.com/meshcni/meshcni/internal/testing/kubetest"
	"github.com/meshcni/meshcni/mesh"
)

// own is the identity of the programs in these tests.
var own = kubectltest.Own

func TestMain(m *testing.M) {
	if os.Getenv(fleetNodes) != "" {
		if err := serveFleet(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(kubetest.Main(m, kubetest.Options{DisableAdmission: []string{"ServiceAccount"}}))
}

// world is a cluster that the program asks.
type world struct {
	*kubectltest.World
	dialects []dialect.Dialect // nil: this module's, as facts
	facts    mesh.List
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{World: kubectltest.New(t)}
}

// get implements [asker].
func (w *world) get(ctx context.Context, a agents.Agent, path string, into any) error {
	return w.Get(ctx, a, path, into)
}

// run runs the program as a user with a token.
func (w *world) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := Program{Dialects: w.dialects, Facts: w.facts, Stdout: &out, Stderr: &errs, ask: func(*rest.Config) asker { return w }}
	code = p.Main(t.Context(), append([]string{"--kubeconfig", w.Kubeconfig}, args...))
	return code, out.String(), errs.String()
}
