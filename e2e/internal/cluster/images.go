package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/meshcni/meshcni/e2e/internal/containerd"
	"github.com/meshcni/meshcni/e2e/internal/image"
	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// Image is the name of the image that the chart has when nobody says another: the checkout's, under the version of the next
// release.
var Image = func() string {
	text, err := os.ReadFile(filepath.Join(machine.Root(), "deploy", "helm", "meshcni", "Chart.yaml"))
	if err != nil {
		return ""
	}
	version := regexp.MustCompile(`(?m)^appVersion: *"?([^"\s]+)"?`).FindSubmatch(text)
	if version == nil {
		return ""
	}
	repository, _, _ := strings.Cut(image.Ours, ":")
	return repository + ":" + string(version[1])
}()

// build makes the images, on the real machine: the node cannot reach the module proxy.
func build() error {
	if _, err := image.Build(); err != nil {
		return err
	}
	_, err := image.BuildOurs()
	return err
}

// NextTag is a tag of the same image, for an upgrade.
const NextTag = "next"

// nameImages gives the checkout's image the name that the chart has, and the next one.
func nameImages() error {
	list, err := ctr("images", "ls", "-q")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(list) {
		if prefix, ok := strings.CutSuffix(name, image.Ours); ok {
			repository, _, _ := strings.Cut(Image, ":")
			_, err := ctr("images", "tag", "--force", name, prefix+Image, prefix+repository+":"+NextTag)
			return err
		}
	}
	return fmt.Errorf("no image %s was imported, only %s", image.Ours, list)
}

// ctr runs containerd's own client.
func ctr(args ...string) (string, error) {
	out, err := exec.Command("ctr", append([]string{"--address", containerd.Socket, "--namespace", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
