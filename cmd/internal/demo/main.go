// Command demo shows the plugin at work on this machine, without a cluster: see
// `make demo`.
//
// As root on Linux it makes a pod-like network namespace with a link to an
// outside one, has the CNI runtime library run a network of two plugins on it (a
// small one that gives the address, then meshcni), sends packets, and prints
// where each ended up and why. Everything is taken away again; nothing of the
// host is changed. Otherwise it explains the same pod.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/meshcni/meshcni/cmd/redirectcmd"
)

const podFile = "examples/pod.yaml"

func main() {
	if filepath.Base(os.Args[0]) == addrPlugin {
		os.Exit(giveAddress())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	if runtime.GOOS == "linux" && os.Geteuid() == 0 {
		return show(ctx, out)
	}
	_, err := fmt.Fprintf(out, "To send real packets this needs root on Linux: sudo make demo\nUntil then, what the plugin would do with %s:\n\n", podFile)
	if err != nil {
		return err
	}
	code := redirectcmd.Program{Env: os.LookupEnv, Stdin: os.Stdin, Stdout: out, Stderr: os.Stderr}.Main(ctx, []string{"explain", "-f", podFile})
	if code != 0 {
		return fmt.Errorf("explain %s: exit code %d", podFile, code)
	}
	return nil
}
