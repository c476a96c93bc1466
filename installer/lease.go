//go:build linux

package installer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// lease makes the newest agent of a node the only one that acts. The two agents of a rolling upgrade would otherwise replace
// each other's binary and configuration for ever. The lease is a locked file, so it ends with its process.
type lease struct {
	path    string
	file    *os.File
	claimed bool // since this agent began
}

func leaseOf(c Config) *lease { return &lease{path: filepath.Join(c.RunDir, "agent")} }

// keep reports whether this agent may act. A new agent takes the lease from an older one; after that, it takes only a lease
// that nobody has. If the lease cannot be written, the agent acts unless another one has it.
func (l *lease) keep() (bool, error) {
	switch {
	case l.ours():
		return true, nil
	case l.claimed && l.taken():
		l.drop()
		return false, nil
	}
	err := l.claim()
	return err == nil || !l.taken(), err
}

func (l *lease) claim() error {
	l.drop()
	f, err := os.CreateTemp(filepath.Dir(l.path), ".agent"+diskfile.TempMark)
	if err != nil {
		return explain(fmt.Errorf("taking the lease: %w", diskfile.Cause(err)), l.path)
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		if _, err = fmt.Fprintf(f, "The agent with PID %d in its own namespace keeps the plugin installed.\n%s\n", os.Getpid(), network()); err == nil {
			err = os.Rename(f.Name(), l.path)
		}
	}
	if err != nil {
		_ = os.Remove(f.Name())
		_ = f.Close()
		return explain(fmt.Errorf("taking the lease: %w", diskfile.Cause(err)), l.path)
	}
	l.file, l.claimed = f, true
	return nil
}

// network names the network namespace of this process; empty if it cannot be told.
func network() string {
	name, _ := os.Readlink("/proc/self/ns/net")
	return name
}

// besides reports whether who has the lease shares this process's network, and so needs the addresses on which this one listens.
func (l *lease) besides() bool {
	text, err := os.ReadFile(l.path)
	_, where, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return err == nil && where != "" && where == network()
}

// foreign reports whether another agent has the lease and this one has never had it.
func (l *lease) foreign() bool { return !l.claimed && l.taken() }

func (l *lease) ours() bool {
	if l.file == nil {
		return false
	}
	mine, err := l.file.Stat()
	there, err2 := os.Stat(l.path)
	return err == nil && err2 == nil && os.SameFile(mine, there)
}

// taken reports whether a running agent has the lease.
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
