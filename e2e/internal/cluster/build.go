package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// images is where the images are built, on the machine: the node cannot reach the module proxy.
func images() string { return machine.Cache("e2e", "images") }

// build makes the images that the node imports.
func build() error {
	if err := os.MkdirAll(images(), 0o755); err != nil {
		return err
	}
	tool := machine.Cache("e2e", "testtool")
	if err := command(filepath.Join(machine.Root(), "e2e"), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", tool, "./internal/cluster/testtool"); err != nil {
		return err
	}
	return writeImage(filepath.Join(images(), "testtool.tar"), toolImage, tool)
}

// command runs a program of the machine, and is quiet when that succeeds.
func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// importImages gives all of them to containerd.
func (c *Cluster) importImages() error {
	archives, err := filepath.Glob(filepath.Join(images(), "*.tar"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		if err := ctr("images", "import", a); err != nil {
			return err
		}
	}
	return nil
}
