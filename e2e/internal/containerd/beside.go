package containerd

import (
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/proctest"
)

// Beside is a second containerd, in the mount and network namespaces of another process, with the settings and images of the first.
// There the usual paths are other directories.
type Beside struct {
	process *proctest.Process
	enter   []string
}

// StartBeside starts it, waits until it answers and imports the images. The caller kills it.
func (r *Runtime) StartBeside(pid int) (*Beside, error) {
	enter := []string{"nsenter", "--target", strconv.Itoa(pid), "--mount", "--net", "--"}
	command := append(enter[1:len(enter):len(enter)], filepath.Join(binDir, "containerd"), "--config", filepath.Join(machine.Dir, "containerd.toml"))
	process, err := proctest.Start(proctest.Options{
		Dir: machine.Dir, Name: "containerd-beside", Env: []string{"PATH=" + binDir + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin"},
	}, enter[0], command...)
	if err != nil {
		return nil, err
	}
	b := &Beside{process: process, enter: enter}
	err = process.WaitFor(5*time.Minute, func() error {
		_, err := b.Ctr("version")
		return err
	})
	for _, path := range r.o.Images {
		if err == nil {
			_, err = b.Ctr("images", "import", path)
		}
	}
	if err != nil {
		b.Kill()
		return nil, err
	}
	return b, nil
}

// Ctr is [Ctr] for this one.
func (b *Beside) Ctr(args ...string) (string, error) { return ctr(b.enter, args...) }

// Kill kills it. Containers keep running.
func (b *Beside) Kill() { b.process.Kill() }
