//go:build linux

// Command meshcni-node puts the meshcni plugin on a node and keeps it there, and
// repairs pods that started without it: see meshcni-node run --help.
//
// A container of the image runs it. An injector of Istio gives its init container arguments that begin with istio-iptables;
// with these it becomes the program meshcni-redirect, which has the command and is beside it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/nodecmd"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "istio-iptables" {
		fmt.Fprintln(os.Stderr, "meshcni-node:", become("meshcni-redirect"))
		os.Exit(cli.ExitFailed)
	}
	nodecmd.Program{}.Exec()
}

// become runs another program of this one's directory in its place, with its arguments. It returns only if that fails.
func become(name string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the directory of %s: %w", name, err)
	}
	file := filepath.Join(filepath.Dir(self), name)
	return fmt.Errorf("run %s: %w", file, syscall.Exec(file, append([]string{file}, os.Args[1:]...), os.Environ()))
}
