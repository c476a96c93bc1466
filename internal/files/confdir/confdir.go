// Package confdir reads a runtime's directory of network configurations, also in a container that has the host's elsewhere.
package confdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// Entry is [netconf.Find] in a directory.
func Entry(dir string, id meshcni.Identity, types []string) (netconf.Entry, error) {
	fsys, done, err := Open(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return netconf.Entry{}, &netconf.NoEntryError{Why: dir + " is not there", NoDir: true}
	case err != nil:
		return netconf.Entry{}, fmt.Errorf("read the installed configuration in %s: %w", dir, err)
	}
	defer done()
	return netconf.Find(fsys, dir, id, types)
}

// hostPrefix is the place of the host's directories in containers. There an absolute link leads elsewhere than on the host.
const hostPrefix = "/host/"

// Open opens a directory of network configurations. It reads links only where they lead where they do on the host, and no file that would
// block the reader or is larger than a runtime takes.
func Open(dir string) (fs.FS, func(), error) {
	if !strings.HasPrefix(filepath.Clean(dir)+"/", hostPrefix) {
		_, err := os.Stat(dir)
		return files{os.DirFS(dir), dir}, func() {}, err
	}
	return openRoot(dir)
}

// openRoot opens a directory of which no link leads out.
func openRoot(dir string) (fs.FS, func(), error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	return files{root.FS(), dir}, func() { _ = root.Close() }, nil
}

// files is a directory whose files do not block who reads them.
type files struct {
	fs.FS
	dir string
}

// maxConfig is containerd's bound (github.com/containerd/go-cni, opts.go, MaxFileSize), in bytes.
const maxConfig = 2 << 20

// ReadFile implements fs.ReadFileFS.
func (f files) ReadFile(name string) ([]byte, error) {
	if to, err := os.Readlink(filepath.Join(f.dir, name)); err == nil && to == os.DevNull { // masked: as good as empty
		return []byte{}, nil
	}
	info, err := fs.Stat(f.FS, name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
	case info.Size() > maxConfig:
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("larger than %d MiB", maxConfig>>20)}
	}
	return fs.ReadFile(f.FS, name)
}
