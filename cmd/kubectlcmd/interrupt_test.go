package kubectlcmd

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/testing/kubectltest"
)

// TestInterrupted: who asks once and is interrupted has no answer, and scripts must not take that for a good one. A watch ends so.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Node(t, "a", kubectltest.Sound("a"))
	w.MeshPod(t, "shop", "cart", "a")
	for _, test := range []struct {
		args []string
		code int
		errs string
	}{
		{[]string{"status"}, exitWrong, "kubectl-meshcni: interrupted\n"},
		{[]string{"status", "--watch"}, exitOK, ""},
		{[]string{"show", "-n", "shop", "cart"}, exitWrong, "kubectl-meshcni: interrupted\n"},
		{[]string{"show", "-n", "shop", "cart", "--watch"}, exitOK, ""},
		{[]string{"explain", "-n", "shop", "-l", "app=cart"}, exitWrong, "kubectl-meshcni: interrupted\n"},
		{[]string{"check"}, exitWrong, "kubectl-meshcni: interrupted\n"},
	} {
		ctx, interrupt := context.WithCancelCause(t.Context())
		w.Gate = func() { interrupt(errors.New("interrupted")) }
		var out, errs bytes.Buffer
		p := Program{Stdout: &out, Stderr: &errs, ask: func(*rest.Config) asker { return w }}
		assert.Equal(t, test.code, p.Main(ctx, append([]string{"--kubeconfig", w.Kubeconfig}, test.args...)), test.args)
		if test.args[0] == "check" {
			assert.Contains(t, errs.String(), test.errs, "after its progress")
		} else {
			assert.Equal(t, test.errs, errs.String(), test.args)
		}
	}
}

// TestLeftBehind: a pod that stays is named whatever else there is to say, and makes the command fail.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for said, code := range map[error]int{nil: exitWrong, cli.Exit(exitUnknown): exitWrong, errors.New("no configuration"): exitWrong} {
		var errs bytes.Buffer
		program := cli.Program{Name: "k", Stdout: &bytes.Buffer{}, Stderr: &errs, Root: &cobra.Command{}}
		c := &cluster{Program: Program{connect: connect, ask: func(*rest.Config) asker { return w }}}
		c.flags(program.Root.PersistentFlags())
		program.Root.RunE = c.run(func(context.Context, []string) error {
			c.leave(errors.New("left behind: pod p"))
			return said
		})
		assert.Equal(t, code, program.Run(t.Context(), []string{"--kubeconfig", w.Kubeconfig}))
		assert.Contains(t, errs.String(), "k: left behind: pod p\n")
		assert.Equal(t, said != nil && code == exitWrong && !errors.As(said, new(cli.Exit)), strings.Contains(errs.String(), "no configuration"))
	}
}
