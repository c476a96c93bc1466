// Command meshcni-repair finds the pods of one node that started without the
// mesh's redirection, and labels, deletes or repairs them: the part of
// meshcni-node that does so, for those who run it apart from the agent.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o := repaircmd.IO{Env: os.LookupEnv, Stdout: os.Stdout, Stderr: os.Stderr, SetLog: klog.SetSlogLogger, Version: version.Long()}
	code := repaircmd.Main(ctx, os.Args[1:], o)
	stop()
	os.Exit(code)
}
