//go:build linux

package installer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/meshcni/meshcni/internal/files/hostpath"
)

// mounted is a directory of the host, which this process sees alone or with others that are mounted beside it.
type mounted struct {
	// root is the path of the host's root directory, if all of it were mounted: "/host", or "/".
	root string
	// dir is the directory without symbolic links.
	dir string
}

func mountOf(dir string) mounted {
	m := mounted{root: "/", dir: dir}
	if hostpath.OnHost(dir) != dir {
		m.root = strings.TrimSuffix("/host/", "/")
	}
	if real, err := m.lead(dir); err == nil {
		m.dir = real
	}
	return m
}

// lead follows the symbolic links of path as the host does. What it leads to need not exist.
func (m mounted) lead(path string) (string, error) {
	return securejoin.SecureJoin(m.root, strings.TrimPrefix(path, m.root))
}

// follow returns the file that path, below the directory, is on the host.
//
// On the host, a link that leaves the directory leads to where this process sees nothing, or something else, because its root
// directory is another. So errors.Is(err, fs.ErrNotExist) holds only if nothing is in the directory itself. Where this process
// and the host disagree, or may, the error is another one.
func (m mounted) follow(path string) (string, error) {
	there, err := m.lead(path)
	if err != nil {
		return path, err
	}
	onHost := "/" + strings.TrimPrefix(strings.TrimPrefix(there, m.root), "/")
	if onHost == os.DevNull {
		return onHost, nil // the same everywhere
	}
	_, err = os.Lstat(there)
	inside := strings.HasPrefix(there, m.dir+"/")
	switch ours, evalErr := filepath.EvalSymlinks(path); {
	case errors.Is(err, fs.ErrNotExist) && inside:
		return path, err
	case errors.Is(err, fs.ErrNotExist):
		return path, &fs.PathError{Op: "follow", Path: path, Err: fmt.Errorf("a symbolic link to %s, which is outside of the directory and cannot be seen from here: put the file itself into the directory", onHost)}
	case err != nil:
		return path, err
	case evalErr != nil || ours != there:
		return path, &fs.PathError{Op: "follow", Path: path, Err: fmt.Errorf("a symbolic link to %s, which is another file in this mount namespace than on the host: make the link relative, or put the file itself into the directory", onHost)}
	}
	return there, nil
}
