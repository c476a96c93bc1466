// Command meshcni-redirect explains, prints, traces, applies, checks, removes
// and validates the redirection of one pod. It needs no cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := redirectcmd.Main(ctx, os.Args[1:], redirectcmd.IO{
		Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: version.Long(),
	})
	stop()
	os.Exit(code)
}
