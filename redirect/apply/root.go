//go:build linux

package apply

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// rooted reports whether programs are to have another root than we have.
func (o Options) rooted() bool { return o.Root != "" && filepath.Clean(o.Root) != "/" }

// reachable returns an error if Root cannot be looked into. Its files are the host's
// own, so whoever could change them meanwhile is the host.
func (o Options) reachable() error {
	if !o.rooted() {
		return nil
	}
	// The slash makes the system follow /proc/1/root, which needs a right of its own.
	st, err := os.Stat(o.Root + "/.")
	if err == nil && !st.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return fmt.Errorf("look for iptables in root %s: %w", o.Root, err)
	}
	return nil
}

// where says for people where binaries are looked for.
func (o Options) where() string {
	if !o.rooted() {
		return o.path()
	}
	return o.path() + " of root " + o.Root
}

// real is the path by which we reach the file that path means for a program with
// the root: for our own, the system follows links by itself.
func (o Options) real(path string) (string, error) {
	if !o.rooted() {
		return path, nil
	}
	inside, err := o.follow(path)
	return o.Root + inside, err
}

// maxLinks is the system's own bound (path_resolution(7)).
const maxLinks = 40

// follow follows the links of path, which lead where they lead for a program with
// the root: an absolute one to below it, and none out of it.
func (o Options) follow(path string) (string, error) {
	if !o.rooted() {
		return filepath.EvalSymlinks(path)
	}
	done, links := "/", 0
	rest := strings.Split(path, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = filepath.Dir(done) // that of "/" is "/"
			continue
		}
		next := filepath.Join(done, part)
		st, err := os.Lstat(o.Root + next)
		if err != nil {
			return "", err
		}
		if st.Mode()&os.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", &os.PathError{Op: "follow links", Path: o.Root + path, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(o.Root + next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			done = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}
