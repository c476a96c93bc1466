package kubectlcmd

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/internal/cli"
)

// TestInterrupted: who asks once and is interrupted has no answer, and scripts must not take that for a good one. A watch ends so.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.node(t, "a", sound("a"))
	w.meshPod(t, "shop", "cart", "a")
	for _, test := range []struct {
		args []string
		code int
		errs string
	}{
		{[]string{"status"}, ExitWrong, "kubectl-meshcni: interrupted\n"},
		{[]string{"status", "--watch"}, ExitOK, ""},
		{[]string{"show", "-n", "shop", "cart"}, ExitWrong, "kubectl-meshcni: interrupted\n"},
		{[]string{"show", "-n", "shop", "cart", "--watch"}, ExitOK, ""},
		{[]string{"explain", "-n", "shop", "-l", "app=cart"}, ExitWrong, "kubectl-meshcni: interrupted\n"},
		{[]string{"check"}, ExitWrong, "kubectl-meshcni: interrupted\n"},
	} {
		ctx, interrupt := context.WithCancelCause(t.Context())
		w.gate = func() { interrupt(errors.New("interrupted")) }
		var out, errs bytes.Buffer
		p := Program{Stdout: &out, Stderr: &errs, ask: func(*rest.Config) asker { return w }}
		assert.Equal(t, test.code, p.Main(ctx, append([]string{"--kubeconfig", w.kubeconfig}, test.args...)), test.args)
		if test.args[0] == "check" {
			assert.Contains(t, errs.String(), test.errs, "after its progress")
		} else {
			assert.Equal(t, test.errs, errs.String(), test.args)
		}
	}
}

// TestConclude: what is left behind is said whatever else there is to say.
func TestConclude(t *testing.T) {
	left, failed := &leftError{namespace: "n", pod: "p", err: errors.New("forbidden")}, errors.New("no configuration")
	behind, clean := &subject{left: left}, &subject{}
	wrong := present{exit: ExitWrong}
	for _, test := range []struct {
		s                *subject
		printed, planned error
		now              present
		want             []error
	}{
		{behind, nil, cli.Exit(ExitUnknown), wrong, []error{left}},
		{behind, nil, nil, wrong, []error{left}},
		{behind, nil, failed, wrong, []error{failed, left}},
		{behind, failed, nil, present{}, []error{failed, left}},
		{clean, nil, cli.Exit(ExitUnknown), wrong, []error{cli.Exit(ExitUnknown)}},
		{clean, nil, nil, wrong, []error{cli.Exit(ExitWrong)}},
		{clean, failed, nil, wrong, []error{failed}},
	} {
		err := test.s.conclude(test.printed, test.planned, test.now)
		for _, want := range test.want {
			assert.ErrorIs(t, err, want)
		}
		var exit cli.Exit
		assert.Equal(t, test.s == clean && test.printed == nil, errors.As(err, &exit), "an exit code says nothing")
	}
	assert.NoError(t, clean.conclude(nil, nil, present{}))
}
