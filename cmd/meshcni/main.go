// Command meshcni is the CNI plugin. Package plugin says what it does; this program only supplies the operating system's
// values and the source of pods.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/plugin"
	"github.com/meshcni/meshcni/plugin/kubepod"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if verb := os.Getenv("CNI_COMMAND"); verb == "ADD" || verb == "CHECK" {
		go interruptible(cancel)
	}
	p := plugin.Plugin{Dialects: builtin.All(), Validated: true, OpenPods: plugin.PodsFrom(kubepod.Open)}
	return p.Run(ctx, plugin.IO{
		Args: os.Args, Getenv: os.Getenv, Stdin: stdin(), Stdout: os.Stdout, Stderr: os.Stderr,
	})
}

// interruptible ends the run in good order when the runtime gives up on it: child processes end, and the rules are
// restored. It runs beside the rest because signal.Notify takes a tenth of the whole program's start-up time; until then
// there is nothing to restore. Other verbs start nothing.
func interruptible(cancel context.CancelFunc) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
	cancel()
}

// stdin is empty if it is a terminal, so that nobody who tries CNI_COMMAND=VERSION by hand has to end the input.
func stdin() io.Reader {
	if st, err := os.Stdin.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		return nil
	}
	return os.Stdin
}
