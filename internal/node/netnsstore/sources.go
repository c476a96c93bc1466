//go:build linux

package netnsstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/netnsexec"
)

// errByProcess: the path of a namespace is that of a process, whose number another one may have by now.
var errByProcess = errors.New("its path leads through a process, which the search by process finds for sure")

// told is a row's claim.
type told struct {
	claim
	path string
	id   netnsexec.ID // zero: it does not say
	err  error
}

// candidates returns what is known of the pods without a look at processes, in the order of the sources; of one source the
// newest first. The caller closes the namespaces.
func (s *Store) candidates(pods []Pod) map[types.UID]*knowledge {
	all := make(map[types.UID]*knowledge, len(pods))
	s.mu.Lock()
	for _, p := range pods {
		k := &knowledge{held: s.held[p.UID]}
		if h := k.held; h != nil {
			c := &candidate{claim: claim{uid: h.uid, source: h.source, named: h.named, addrs: h.addrs, process: h.process}}
			c.ns, c.err = netnsexec.FromFile(h.ns, h.ns.Path())
			k.candidates = append(k.candidates, c)
		}
		all[p.UID] = k
	}
	s.mu.Unlock()
	open := map[*candidate]told{}
	for _, p := range pods {
		if p.Record != nil && p.Record.NetNS.Ino != 0 {
			t := tell(inventory.Row{Source: inventory.Record, NetNS: p.Record.NetNS})
			c := &candidate{claim: t.claim} // its numbers do, also where the path leads through a process
			c.uid, c.look, open[c] = p.UID, true, t
			all[p.UID].candidates = append(all[p.UID].candidates, c)
		}
	}
	for _, t := range s.told(s.o.Inventory.Look(), func(uid types.UID) bool { return all[uid] != nil }) {
		c := &candidate{claim: t.claim, err: t.err}
		if t.uid == "" {
			for _, k := range all {
				k.candidates = append(k.candidates, &candidate{claim: t.claim, err: t.err})
			}
			continue
		}
		all[t.uid].candidates = append(all[t.uid].candidates, c)
		if c.err == nil {
			open[c] = t
		}
	}
	if len(open) == 0 {
		return all
	}
	openAll := func(root string, taken func(*candidate) bool) {
		for c, t := range open {
			if c.ns != nil || !taken(c) {
				continue
			}
			path := t.path
			if root != "" {
				if rest, ok := strings.CutPrefix(path, "/var/run/"); ok { // a link, which would lead out of the root
					path = "/run/" + rest
				}
				path = filepath.Join(root, path)
			}
			ns, err := netnsexec.Open(path)
			if err == nil && t.id != (netnsexec.ID{}) && t.id != ns.ID() {
				err = fmt.Errorf("%w: %s leads to %s, and not to the %s of the attachment", ErrForeign, t.path, ns.ID(), t.id)
				_ = ns.Close()
			}
			switch {
			case err == nil:
				c.ns, c.err = ns, nil
			case c.err == nil:
				c.err = err
			}
		}
	}
	every := func(*candidate) bool { return true }
	err := netnsexec.AtRoot(s.o.HostRoot, func() error { openAll("", every); return nil })
	// Without CAP_SYS_CHROOT, say, what we see of the root, and our own mounts may have them too. A look takes that of any root.
	for _, root := range []string{s.o.HostRoot, ""} {
		openAll(root, func(c *candidate) bool { return err != nil || c.look && s.o.HostRoot != "" })
	}
	for c := range open {
		if c.err != nil && err != nil {
			c.err = errors.Join(c.err, err)
		}
	}
	return all
}

// told returns what the inventory says of the pods.
func (s *Store) told(reading inventory.Reading, wanted func(types.UID) bool) (all []told) {
	for _, r := range reading.Rows {
		uid := types.UID(r.Pod.UID)
		if uid != "" && wanted(uid) {
			all = append(all, tell(r))
		}
	}
	for source, err := range reading.Unread { // what cannot be read may be of any of them
		all = append(all, told{claim: claim{source: sources[source]}, err: err})
	}
	return all
}

func tell(r inventory.Row) told {
	t := told{
		claim: claim{uid: types.UID(r.Pod.UID), source: sources[r.Source], named: true, addrs: r.Addrs},
		path:  r.NetNS.Path, id: netnsexec.ID{Dev: r.NetNS.Dev, Ino: r.NetNS.Ino},
	}
	switch {
	case r.Source == inventory.Record && r.NetNS.Ino == 0:
		t.err = errors.New("it does not say which namespace it was")
	case t.path == "":
		t.err = errors.New("it does not name a namespace")
	case strings.HasPrefix(filepath.Clean(t.path), "/proc/"):
		t.err = errByProcess
	}
	return t
}

// sources are the inventory's.
var sources = map[inventory.Source]Source{inventory.Runtime: Runtime, inventory.Record: Record, inventory.Cache: Cache, inventory.Multus: Cache}
