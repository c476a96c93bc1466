//go:build linux

// Command meshcni-node puts the meshcni plugin on a node and keeps it there: see package installer, and
// meshcni-node run --help. This program only chooses the operating system's values.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/meshcni/meshcni/installer/nodecmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	app := nodecmd.App{Env: os.LookupEnv, Stdout: os.Stdout, Stderr: os.Stderr}
	if info, ok := debug.ReadBuildInfo(); ok {
		app.Version = info.Main.Version
	}
	code := app.Main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
