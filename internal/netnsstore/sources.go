//go:build linux

package netnsstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/cnicache"
	"github.com/meshcni/meshcni/internal/filememo"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/attachment"
)

// errByProcess: the path of a namespace is that of a process, whose number another one may have by now.
var errByProcess = errors.New("its path leads through a process, which the search by process finds for sure")

// sources are the files that others write about attachments.
type sources struct {
	o Options

	mu      sync.Mutex
	records func() ([]attachment.Record, error)
	cache   filememo.Memo[told]
}

// told is the content of a file.
type told struct {
	claim
	path string
	id   netnsexec.ID // zero: the file does not say
	made time.Time
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
	for _, t := range s.sources.read(func(uid types.UID) bool { return all[uid] != nil }) {
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
	openAll := func(root string) error {
		for c, t := range open {
			if c.ns != nil {
				continue
			}
			path := t.path
			if root != "" {
				if rest, ok := strings.CutPrefix(path, "/var/run/"); ok { // a link, which would lead out of the root
					path = "/run/" + rest
				}
				path = filepath.Join(root, path)
			}
			c.ns, c.err = netnsexec.Open(path)
			if c.err == nil && t.id != (netnsexec.ID{}) && t.id != c.ns.ID() {
				c.err = fmt.Errorf("%w: %s leads to %s, and not to the %s of the attachment", ErrForeign, t.path, c.ns.ID(), t.id)
				_ = c.ns.Close()
				c.ns = nil
			}
		}
		return nil
	}
	if err := netnsexec.AtRoot(s.o.HostRoot, func() error { return openAll("") }); err != nil { // without CAP_SYS_CHROOT, say
		_ = openAll(s.o.HostRoot)
		_ = openAll("") // our own mounts may have them too
		for c := range open {
			if c.err != nil {
				c.err = errors.Join(c.err, err)
			}
		}
	}
	return all
}

// read returns what records and the cache say of the pods.
func (x *sources) read(wanted func(types.UID) bool) (all []told) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range []struct {
		source Source
		read   func() ([]told, error)
	}{{Record, x.readRecords}, {Cache, x.readCache}} {
		found, err := s.read()
		slices.SortFunc(found, func(a, b told) int { return b.made.Compare(a.made) })
		for _, t := range found {
			if wanted(t.uid) {
				t.source, t.named = s.source, true
				if t.err == nil && strings.HasPrefix(filepath.Clean(t.path), "/proc/") {
					t.err = errByProcess
				}
				all = append(all, t)
			}
		}
		if err != nil { // what cannot be read may be of any of them
			all = append(all, told{claim: claim{source: s.source}, err: err})
		}
	}
	return all
}

func (x *sources) readRecords() (all []told, err error) {
	if x.o.Records == (attachment.Store{}) {
		return nil, nil
	}
	if x.records == nil {
		x.records = x.o.Records.Index()
	}
	records, err := x.records()
	for _, r := range records {
		t := told{
			claim: claim{uid: types.UID(r.Pod.UID)},
			path:  r.NetNS.Path, id: netnsexec.ID{Dev: r.NetNS.Dev, Ino: r.NetNS.Ino}, made: r.Time,
		}
		if r.NetNS.Ino == 0 {
			t.err = errors.New("it does not say which namespace it was")
		}
		all = append(all, t)
	}
	return all, err
}

func (x *sources) readCache() (all []told, err error) {
	if x.o.CacheDir == "" {
		return nil, nil
	}
	fsys := os.DirFS(x.o.CacheDir)
	files, err := x.cache.Refresh(fsys, append([]string{cnicache.MultusDir}, cnicache.Dirs...), func(name string) (told, error) {
		a, err := cnicache.Read(fsys, name)
		if err != nil {
			return told{}, err
		}
		t := told{
			claim: claim{uid: types.UID(a.Arg("K8S_POD_UID")), addrs: a.Addrs()},
			path:  a.Sandbox(),
		}
		if info, err := fs.Stat(fsys, name); err == nil {
			t.made = info.ModTime()
		}
		if t.path == "" {
			t.err = errors.New("it does not name a namespace")
		}
		return t, nil
	})
	for _, t := range files {
		all = append(all, t)
	}
	return all, err
}
