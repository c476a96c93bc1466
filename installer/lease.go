//go:build linux

package installer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lease makes the agent that began last the only one that acts. During a rolling upgrade two run on a node, each with its
// own binary and configuration, and would put them in each other's place for ever. It is a file with a lock that ends with
// its process: a dead agent's lease is nobody's.
type lease struct {
	path string
	file *os.File
}

func leaseOf(c Config) *lease { return &lease{path: filepath.Join(c.RunDir, "agent")} }

// claim takes the lease over from whoever has it.
func (l *lease) claim() error {
	l.drop()
	f, err := os.CreateTemp(filepath.Dir(l.path), ".agent.meshcni-tmp-")
	if err != nil {
		return explain(err, l.path)
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		if _, err = fmt.Fprintf(f, "The agent with PID %d in its own namespace keeps the plugin installed.\n", os.Getpid()); err == nil {
			err = os.Rename(f.Name(), l.path)
		}
	}
	if err != nil {
		_ = os.Remove(f.Name())
		_ = f.Close()
		return explain(fmt.Errorf("taking the lease: %w", err), l.path)
	}
	l.file = f
	return nil
}

// keep tells whether this agent may act: it has the lease, or takes one that is nobody's.
func (l *lease) keep() (bool, error) {
	if l.ours() {
		return true, nil
	}
	if l.taken() {
		l.drop()
		return false, nil
	}
	return true, l.claim()
}

func (l *lease) ours() bool {
	if l.file == nil {
		return false
	}
	mine, err := l.file.Stat()
	there, err2 := os.Stat(l.path)
	return err == nil && err2 == nil && os.SameFile(mine, there)
}

// taken tells whether a live agent has the lease.
func (l *lease) taken() bool {
	f, err := os.Open(l.path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// end gives the lease up and leaves no file.
func (l *lease) end() {
	if l.ours() {
		_ = os.Remove(l.path)
	}
	l.drop()
}

func (l *lease) drop() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}
