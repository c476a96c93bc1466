// Command meshcni is the CNI plugin: see package plugin for what it does. This program only chooses the operating
// system's values, and the pods' source.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/meshcni/meshcni/internal/version"
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
	p := plugin.Plugin{
		Version:   version.Long,
		OpenPods:  openPods,
		Transient: kubepod.Transient,
	}
	return p.Run(ctx, plugin.IO{
		Args: os.Args, Getenv: os.Getenv, Stdin: stdin(), Stdout: os.Stdout, Stderr: os.Stderr,
	})
}

// interruptible ends the run in order when the runtime gives up on it: what runs for us is ended, and the rules are put
// back. It runs beside the rest, because to start listening takes as long as a tenth of the whole program's start; until
// then there is nothing to put back. Other verbs start nothing.
func interruptible(cancel context.CancelFunc) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
	cancel()
}

func openPods(kubeconfig string) (plugin.Pods, error) {
	c, err := kubepod.Open(kubeconfig)
	if err != nil {
		return nil, err // not a nil *kubepod.Client in an interface
	}
	return c, nil
}

// stdin is empty when it is a terminal: whoever tries CNI_COMMAND=VERSION by hand should not have to end the input.
func stdin() io.Reader {
	if st, err := os.Stdin.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		return nil
	}
	return os.Stdin
}
