package nodecontrol

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshcni/meshcni/internal/text/truncate"
)

// While one proxy replaces another, both listen on the same ports, and the kernel gives each some of the new connections. When the
// old one closes its listeners, connections that it has not accepted are reset, unless the namespace has this sysctl set: then they
// move to the other proxy's listener. It is no part of the pod's rules: it decides about no packet, CHECK must not fail a pod for it,
// and what was there before has to come back when the pod leaves.
const migrateReq = "net.ipv4.tcp_migrate_req"

// migrateReqFile is its file below a root directory. A thread sees its own namespace's value.
const migrateReqFile = "proc/sys/net/ipv4/tcp_migrate_req"

// errNoMigrateReq: the kernel is older than Linux 5.14.
var errNoMigrateReq = errors.New("the kernel has no sysctl " + migrateReq)

// moves reports whether connections move from one proxy to the next, or it is known why they cannot.
func (w *work) moves() bool {
	if w.triedMoves {
		return true
	}
	value, err := w.sysctl("")
	switch {
	case errors.Is(err, errNoMigrateReq):
		w.cannotMove(err)
		return true
	case err != nil || value == "0":
		return false
	}
	if _, kept := w.keptSysctl(); !kept {
		return false // it was so before the pod joined
	}
	w.e.unmoved = ""
	return true
}

// setMoves has connections move from one proxy to the next. If they cannot, the pod is captured all the same, and its state says so.
func (w *work) setMoves() {
	w.triedMoves = true
	value, err := w.sysctl("")
	if _, kept := w.keptSysctl(); err == nil && !kept {
		// First: whoever is killed after the next step has left a note.
		if err := w.c.opts.Namespaces.KeepSysctl(w.e.uid, migrateReq, value); err != nil {
			w.c.log(w.podOf()).Warn("a restart of the agent will not know how a sysctl of a pod was", "sysctl", migrateReq, "was", value, "error", truncate.Finding(err.Error()))
		}
	}
	if err == nil && value == "0" {
		_, err = w.sysctl("1")
	}
	if err != nil {
		w.cannotMove(err)
		return
	}
	w.e.unmoved = ""
}

// cannotMove notes why connections do not move from one proxy to the next.
func (w *work) cannotMove(err error) {
	why := fmt.Sprintf("%v: connections that the proxy has yet to accept are reset when another takes its place", err)
	if why == w.e.unmoved {
		return
	}
	w.e.unmoved = why
	if lacks := errors.Is(err, errNoMigrateReq); !lacks || !w.c.lacksMoves.Swap(true) {
		w.c.log(w.podOf()).Warn("an exchange of proxies is not seamless", "error", why)
	}
}

// restoreSysctl gives the namespace of a pod that leaves the value back that it had before the pod joined. If the kernel refuses that,
// it is logged: a value that changes nothing for the pod by itself must not keep it from leaving.
func (w *work) restoreSysctl(ctx context.Context) error {
	if _, kept := w.keptSysctl(); kept && w.e.ns == nil {
		if err := w.find(ctx); err != nil {
			return fmt.Errorf("restore sysctl %s: %w", migrateReq, err)
		}
	}
	before, kept := w.keptSysctl()
	if !kept {
		return nil
	}
	if _, err := w.sysctl(before); err != nil {
		w.c.log(w.podOf()).Warn("a pod that left keeps a sysctl that was set for the proxy", "sysctl", migrateReq, "was", before, "error", truncate.Finding(err.Error()))
	}
	w.e.unmoved = ""
	return nil
}

func (w *work) keptSysctl() (value string, kept bool) {
	return w.c.opts.Namespaces.KeptSysctl(w.e.uid, migrateReq)
}

// sysctl reads the value in the pod's namespace, and sets another unless that is empty.
func (w *work) sysctl(set string) (value string, err error) {
	err = w.e.ns.NetNS().Do(func() error {
		value, err = migrateReqAt(w.c.opts.Apply.Root, set)
		return err
	})
	return value, err
}

// migrateReqAt is sysctl for the calling thread's namespace. The host's root comes first: a container's own sysctls are read-only.
func migrateReqAt(root, set string) (value string, err error) {
	path := filepath.Join("/", root, migrateReqFile)
	_, err = os.Stat(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) && root != "" { // a root directory without a proc file system
		path = "/" + migrateReqFile
		_, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return "", fmt.Errorf("look for sysctl %s: %w", migrateReq, err)
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errNoMigrateReq
	}
	value = strings.TrimSpace(string(text))
	if err == nil && set != "" && set != value {
		err = writeFile(path, set)
	}
	if err != nil {
		err = fmt.Errorf("set sysctl %s: %w", migrateReq, err)
	}
	return value, err
}

func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
