package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// Where build leaves the archives of the images, on the real machine.
var (
	toolArchive = machine.Cache("e2e", "podtool.tar")
	ourArchive  = machine.Cache("e2e", "meshcni.tar")
)

// build makes the images that the node imports.
func build() error {
	_, err := image.Build()
	return err
}

// command runs a program of the machine, and is quiet when that succeeds.
func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = os.Environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// Image is the name of the image that the chart has.
const Image = "meshcni/meshcni:0.1.0"
