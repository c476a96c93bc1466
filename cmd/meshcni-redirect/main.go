// Command meshcni-redirect explains, prints, traces, applies, checks, removes
// and validates the redirection of one pod. It needs no cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/meshcni/meshcni/internal/redirectcli"
)

// version is set by the linker for releases.
var version = ""

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := redirectcli.Main(ctx, os.Args[1:], redirectcli.IO{
		Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: versionText(),
	})
	stop()
	os.Exit(code)
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
