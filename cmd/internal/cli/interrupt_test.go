package cli_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/internal/cli"
)

// interrupted makes a run of the tests a program that waits for both interrupts.
const interrupted = "MESHCNI_TEST_INTERRUPTED"

func TestInterrupts(t *testing.T) {
	if os.Getenv(interrupted) != "" {
		cli.Exec(func(ctx context.Context, _ []string) int {
			fmt.Println("begun")
			<-ctx.Done()
			fmt.Println(context.Cause(ctx), cli.Again(ctx).Err())
			<-cli.Again(ctx).Done()
			fmt.Println(context.Cause(cli.Again(ctx)))
			if os.Getenv(interrupted) == "hangs" {
				select {}
			}
			return 7
		})
	}
	assert.Equal(t, 7, endedBy(t, "ends", nil).ExitCode())
	status, ok := endedBy(t, "hangs", os.Interrupt).Sys().(syscall.WaitStatus)
	assert.True(t, ok && status.Signal() == syscall.SIGINT, "%v", status)

	ctx, end := context.WithCancelCause(t.Context())
	end(errors.New("interrupted"))
	assert.NoError(t, cli.Again(ctx).Err(), "nobody tells of a second one")
}

// endedBy interrupts a program twice, and sends it a third signal unless that is nil.
func endedBy(t *testing.T, how string, third os.Signal) *exec.ExitError {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestInterrupts$")
	cmd.Env = append(os.Environ(), interrupted+"="+how)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := bufio.NewScanner(out)
	for _, step := range []struct {
		says   string
		signal os.Signal
	}{{"begun", os.Interrupt}, {"interrupted <nil>", syscall.SIGTERM}, {"interrupted again", third}} {
		require.True(t, said.Scan())
		assert.Equal(t, step.says, said.Text())
		if step.signal != nil {
			require.NoError(t, cmd.Process.Signal(step.signal))
		}
	}
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	return exit
}
