//go:build linux

package installer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// mounted is a directory of the host as this process sees it: alone, or with others that are mounted beside it.
type mounted struct {
	// root is where the host's root directory would be, if all of it were mounted: "/host", or "/".
	root string
	// dir is the directory without symbolic links.
	dir string
}

// mountOf is how to follow symbolic links of dir.
func mountOf(dir string) mounted {
	m := mounted{root: "/", dir: dir}
	if onHost(dir) != dir {
		m.root = strings.TrimSuffix(hostPrefix, "/")
	}
	if real, err := m.lead(dir); err == nil {
		m.dir = m.seen(real)
	}
	return m
}

func (m mounted) seen(onHost string) string { return filepath.Join(m.root, onHost) }

// follow gives the file that path, below the directory, is on the host.
//
// A link that leaves the directory leads, on the host, to where we may not see anything, or something else: an absolute
// one is one of the host, and we have another root. So that there is nothing (errors.Is(err, fs.ErrNotExist)) is said only
// of what would be in the directory; where we and the host disagree, or might, the error is another one.
func (m mounted) follow(path string) (string, error) {
	onHost, err := m.lead(path)
	if err != nil {
		return path, err
	}
	if onHost == os.DevNull {
		return onHost, nil // the same everywhere
	}
	there := m.seen(onHost)
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

// maxLinks is the kernel's bound (MAXSYMLINKS of linux/namei.h).
const maxLinks = 40

// lead follows the symbolic links of path as a process does whose root directory is ours, and gives where they lead as the
// host says it, be there anything or not.
func (m mounted) lead(path string) (string, error) {
	rest, err := filepath.Rel(m.root, path)
	if err != nil {
		return "", err
	}
	at, links := "/", 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		switch part {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		at = filepath.Join(at, part)
		target, err := os.Readlink(m.seen(at))
		switch {
		case errors.Is(err, syscall.EINVAL), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // no link
			continue
		case err != nil:
			return "", err
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "follow", Path: path, Err: syscall.ELOOP}
		}
		if at = filepath.Dir(at); filepath.IsAbs(target) {
			at = "/"
		}
		rest = target + "/" + rest
	}
	return at, nil
}
