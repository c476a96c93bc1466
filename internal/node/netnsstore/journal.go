//go:build linux

package netnsstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/netnsexec"
)

const (
	dirName = "netns"                     // in run_dir
	bootID  = "sys/kernel/random/boot_id" // in a proc file system
	format  = 1

	suffix    = ".json"
	unwritten = ".json.new"
	maxBytes  = 1 << 20 // of an entry's file, whoever wrote it; ours have some hundred
)

// entry is an entry's file.
type entry struct {
	Version int          `json:"version"`
	Boot    string       `json:"boot"` // during which it was written
	UID     types.UID    `json:"uid"`
	Dev     uint64       `json:"dev"`
	Ino     uint64       `json:"ino"`
	Addrs   []netip.Addr `json:"addrs"`
	// Named by the runtime; false: by a process.
	Named bool `json:"named,omitempty"`
	// Sysctls were given to KeepSysctl.
	Sysctls map[string]string `json:"sysctls,omitempty"`
}

// errStale: an entry is not whole, or of an earlier boot, or its mount is not there.
var errStale = errors.New("not an entry of this boot with its mount")

// journal is the directory. All its work is done in the mounts of root, one entry at a time.
type journal struct {
	dir, root string // an empty dir: no journal
	log       *slog.Logger
	boot      string

	mu      sync.Mutex
	written map[types.UID]string // the entries' files
	missing map[types.UID]error  // why there is no entry; of "": why there is no journal
}

// at calls fn where the journal is.
func (j *journal) at(fn func() error) error { return netnsexec.AtRoot(j.root, fn) }

// load reads the entries and removes what is none. The namespaces are not proven.
func (j *journal) load(bootID string) map[types.UID]*handle {
	held := map[types.UID]*handle{}
	j.written, j.missing = map[types.UID]string{}, map[types.UID]error{}
	if j.dir == "" {
		return held
	}
	boot, err := os.ReadFile(bootID)
	if err != nil {
		j.note("", fmt.Errorf("learn which boot this is: %w", err))
		j.dir = ""
		return held
	}
	j.boot = strings.TrimSpace(string(boot))
	j.note("", j.at(func() error {
		uids, err := j.list()
		for _, uid := range uids {
			_ = removeFile(j.path(uid) + unwritten) // write puts another in its place
			h, text, err := j.read(uid)
			switch {
			case err == nil:
				held[uid], j.written[uid] = h, text
			case isStale(err):
				j.log.Info("discarding a journal entry of a network namespace", "uid", string(uid), "error", truncate.Finding(err.Error()))
				err = j.remove(uid)
			}
			if err != nil {
				j.log.Warn("cannot use a journal entry of a network namespace", "uid", string(uid), "error", truncate.Finding(err.Error()))
			}
		}
		return err
	}))
	return held
}

func isStale(err error) bool {
	for _, stale := range []error{errStale, netnsexec.ErrGone, netnsexec.ErrNotNetNS, netnsexec.ErrHost} {
		if errors.Is(err, stale) {
			return true
		}
	}
	return false
}

// list returns the UIDs of which there is anything.
func (j *journal) list() ([]types.UID, error) {
	files, err := os.ReadDir(j.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the journal: %w", err)
	}
	seen := map[types.UID]bool{}
	for _, f := range files {
		name := strings.TrimSuffix(strings.TrimSuffix(f.Name(), unwritten), suffix)
		if podnetns.ValidUID(name) { // others are not ours
			seen[types.UID(name)] = true
		}
	}
	return slices.Collect(maps.Keys(seen)), nil
}

// note remembers why a pod has no entry. It tells the log when that begins.
func (j *journal) note(uid types.UID, err error) {
	if err == nil {
		delete(j.missing, uid)
		return
	}
	if len(j.missing) == 0 {
		j.log.Warn("a restart will have to find network namespaces anew", "error", truncate.Finding(err.Error()))
	}
	j.missing[uid] = err
}

func (j *journal) status() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.missing[""]; err != nil {
		return fmt.Errorf("there is no journal of network namespaces: %w", err)
	}
	for uid, err := range j.missing {
		return fmt.Errorf("%d network namespaces are not in the journal, such as that of pod %q: %w", len(j.missing), uid, err)
	}
	return nil
}

// read reads an entry.
func (j *journal) read(uid types.UID) (*handle, string, error) {
	f, err := os.Open(j.path(uid) + suffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("%w: it was being written", errStale)
	}
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil {
		return nil, "", err
	}
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, "", fmt.Errorf("%w: %w", errStale, err)
	}
	if e.Version != format || e.UID != uid || e.Boot != j.boot {
		return nil, "", fmt.Errorf("%w: it is of version %d, pod %s, boot %s", errStale, e.Version, e.UID, e.Boot)
	}
	ns, err := netnsexec.Open(j.path(uid))
	if err != nil {
		return nil, "", err
	}
	if id := (netnsexec.ID{Dev: e.Dev, Ino: e.Ino}); ns.ID() != id {
		return nil, "", errors.Join(fmt.Errorf("%w: %s is mounted, and not %s", errStale, ns.ID(), id), ns.Close())
	}
	return &handle{shared: &shared{ns: ns, count: 1}, uid: uid, source: Journal, named: e.Named, addrs: plain(e.Addrs), sysctls: e.Sysctls}, string(text), nil
}

func (j *journal) path(uid types.UID) string { return filepath.Join(j.dir, string(uid)) }

// sync writes or removes a pod's entry, according to what is held of it now. ok is false when that is not to be asked.
func (j *journal) sync(uid types.UID, held func() (h *handle, ok bool)) error {
	if j.dir == "" || !podnetns.ValidUID(string(uid)) { // another is never a path
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	h, ok := held()
	if !ok {
		return nil
	}
	if h == nil {
		delete(j.missing, uid)
		delete(j.written, uid)
		return j.at(func() error { return j.remove(uid) })
	}
	defer func() { _ = h.release() }()
	text, err := json.Marshal(entry{format, j.boot, uid, h.ns.ID().Dev, h.ns.ID().Ino, h.addrs, h.named, h.sysctls})
	if err == nil && j.written[uid] != string(text) {
		err = j.at(func() error { return j.write(uid, h.ns, text) })
	}
	if err != nil {
		delete(j.written, uid)
		err = fmt.Errorf("journal the network namespace of pod %s: %w", uid, err)
	} else {
		j.written[uid] = string(text)
		delete(j.missing, "")
	}
	j.note(uid, err)
	return err
}

// uids returns the UIDs of which there is anything.
func (j *journal) uids() (uids []types.UID, err error) {
	if j.dir == "" {
		return nil, nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	err = j.at(func() error {
		uids, err = j.list()
		return err
	})
	return uids, err
}
