package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// Try runs a command in the root of the repository, as a user of the cluster does, and returns what it printed, standard
// output and error as one.
func (c *cluster) Try(name string, args ...string) (string, error) {
	return c.TryInput("", name, args...)
}

// TryInput is Try with a standard input.
func (c *cluster) TryInput(input, name string, args ...string) (string, error) {
	var out bytes.Buffer
	err := c.run(&out, &out, input, name, args...)
	return out.String(), err
}

func (c *cluster) run(stdout, stderr io.Writer, input, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), netnstest.Patience)
	defer cancel()
	cmd, err := c.Command(ctx, name, args...)
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(input)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// Run runs a command that must succeed, and returns its standard output: warnings on standard error are no part of an answer.
func (c *cluster) Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := c.run(&stdout, &stderr, "", name, args...)
	require.NoError(t, err, stdout.String()+stderr.String())
	return strings.TrimSpace(stdout.String())
}

// Apply gives manifests to the API server.
func (c *cluster) Apply(t testing.TB, manifests string) {
	t.Helper()
	out, err := c.TryInput(manifests, "kubectl", "apply", "-f", "-")
	require.NoError(t, err, out)
}

// soon bounds what a cluster does by itself.
const soon = netnstest.Patience

// eventually calls check until it returns nil, and fails the test with its last error when the bound has passed. It is for
// what a user of a cluster can only ask for again and again.
func eventually(t testing.TB, bound time.Duration, what string, check func() error) {
	t.Helper()
	require.NoError(t, proctest.Poll(bound, check), what)
}
