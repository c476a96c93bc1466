package attachment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshcni/meshcni/netnsexec"
)

// Retain removes the network's records except those of the given attachments. Records of other networks stay. What a
// writer that was killed has left goes too.
func (s Store) Retain(network string, attachments []ID) error {
	names, err := s.names()
	if err != nil {
		return fmt.Errorf("list the records of attachments: %w", err)
	}
	keep := map[string]bool{}
	for _, id := range attachments {
		id.Network = network
		if name, err := id.file(); err == nil { // what could never be recorded is not recorded
			keep[name] = true
		}
	}
	var errs []error
	for _, name := range names {
		if s.abandoned(name) || strings.HasPrefix(name, short(network)+"@") && strings.HasSuffix(name, suffix) && !keep[name] {
			errs = append(errs, s.remove(name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove records of attachments: %w", err)
	}
	return nil
}

// abandonedAfter is far longer than a writer takes between making its file and naming it.
const abandonedAfter = time.Minute

// abandoned reports whether the file is one that its writer will not finish.
func (s Store) abandoned(name string) bool {
	if !strings.HasPrefix(name, temporary) {
		return false
	}
	st, err := os.Lstat(filepath.Join(s.Dir, name))
	return err == nil && time.Since(st.ModTime()) > abandonedAfter
}

// Tidying begins at crowded files, several times as many as a node has pods (the kubelet allows 110 unless told
// otherwise), and is done for each tidyEvery files more: it looks at all of them.
const (
	crowded   = 1024
	tidyEvery = 64
)

// Tidy bounds what is kept where a runtime never calls DEL for some attachments: once there are more than a thousand
// records it removes those whose network namespace is gone. It must run where the paths of the namespaces mean what they
// mean to the runtime, as the plugin does. A namespace that cannot be looked at counts as there.
func (s Store) Tidy() error {
	names, err := s.names()
	if err != nil {
		return fmt.Errorf("list the records of attachments: %w", err)
	}
	if len(names) < crowded || len(names)%tidyEvery != 0 {
		return nil
	}
	var errs []error
	for _, name := range names {
		if s.abandoned(name) || strings.HasSuffix(name, suffix) && s.isOver(name) {
			errs = append(errs, s.remove(name))
		}
	}
	return errors.Join(errs...)
}

// isOver reports whether the record's namespace is known to be gone.
func (s Store) isOver(name string) bool {
	r, err := s.read(name)
	if err != nil {
		return false
	}
	ns, err := netnsexec.Open(r.NetNS.Path)
	if err != nil {
		return errors.Is(err, netnsexec.ErrGone) || errors.Is(err, netnsexec.ErrNotNetNS)
	}
	defer func() { _ = ns.Close() }() // only looked at
	return r.NetNS.Ino != 0 && !r.NetNS.Is(ns.ID())
}
