package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/proctest"
)

// userBin has the programs that a user of the cluster brings along.
const userBin = machine.Dir + "/bin"

// bringPrograms puts them there.
func bringPrograms() error {
	if err := os.MkdirAll(userBin, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"helm", "kubectl"} {
		path, err := program(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(userBin, name))
		}
		if err != nil {
			return err
		}
	}
	return os.Symlink(image.KubectlPlugin(), filepath.Join(userBin, "kubectl-meshcni"))
}

// Env is the environment in which a user of the cluster works: KUBECONFIG, and a PATH with the programs.
func (c *cluster) Env() []string {
	return []string{
		"KUBECONFIG=" + c.Kubeconfig, "CONTAINERD_ADDRESS=" + containerd.Socket, "CONTAINERD_NAMESPACE=k8s.io",
		"PATH=" + userBin + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HELM_CACHE_HOME=" + machine.Dir + "/helm/cache", "HELM_CONFIG_HOME=" + machine.Dir + "/helm/config", "HELM_DATA_HOME=" + machine.Dir + "/helm/data",
		// kubectl loses a command's output now and then over WebSockets: "Unknown stream id 1, discarding message".
		"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false",
	}
}

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
	path, err := program(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = proctest.Root(), append(os.Environ(), c.Env()...)
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

// eventually calls check until it returns nil, and fails the test with its last error when patience has passed. It is for
// what a user of a cluster can only ask for again and again.
func eventually(t testing.TB, patience time.Duration, what string, check func() error) {
	t.Helper()
	require.NoError(t, proctest.Poll(patience, check), what)
}
