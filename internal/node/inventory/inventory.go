// Package inventory is what a node knows of its pods' networks: one row for each word of a source on an attachment. It is the one
// reader of libcni's cache and of the plugin's records, and the one program beside the plugin's ADD that writes records.
//
//	i := inventory.New(inventory.Options{Records: attachment.Open("/var/run/meshcni"), CacheDir: "/var/lib/cni"})
//	now := i.Look()
//	sandbox, record := now.Sandbox(pod), now.Record(pod)
//
// All that a row says is the runtime's word, as it gave it to us, to the plugin or to libcni; only root writes the files. A source that says
// nothing of a pod says just that: neither that the pod has no network nor that it was passed over.
package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/meshcni/meshcni/internal/files/filememo"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory/cnicache"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/status"
)

// Source names the origin of a row.
type Source string

// The sources, in the order in which their words count.
const (
	Runtime Source = "runtime" // itself, by its hook: Options.Runtime
	Record  Source = "record"  // the plugin's record of an ADD
	Cache   Source = "cache"   // libcni's cache
	Multus  Source = "multus"  // that of the attachments that Multus makes by itself
)

var order = []Source{Runtime, Record, Cache, Multus}

// Row is a source's word on one attachment. What the source does not say is zero.
type Row struct {
	// ID is the attachment's. The runtime's hook names the container alone.
	attachment.ID

	Source Source
	// Pod is the pod that the runtime named.
	Pod status.ID
	// NetNS is the network namespace: by its path, and by its numbers if it was looked at.
	NetNS attachment.NetNS
	// Addrs are the addresses that the attachment was given.
	Addrs []netip.Addr
	// Types are those of the plugins that made it, sorted.
	Types []string
	// Made dates the attachment's making, or its last write.
	Made time.Time
	// Record is the plugin's, without Rules and Unusable: [Inventory.Records] has them. nil: the row is none of [Record].
	Record *attachment.Record
}

// Rows are rows of a node: by source, in the order in which they count, and of one source the latest first.
type Rows []Row

// Reading holds the rows of all sources at one time.
type Reading struct {
	Rows
	// Unread says of a source why not all that it has could be read.
	Unread map[Source]error
}

// Err joins what could not be read.
func (r Reading) Err() error {
	var errs []error
	for _, s := range order {
		errs = append(errs, r.Unread[s])
	}
	return errors.Join(errs...)
}

// Options say where a node has what it knows. The zero value is a node that knows nothing.
type Options struct {
	// Records are the plugin's.
	Records attachment.Store
	// CacheDir is libcni's cache, as we see it; usually /var/lib/cni. Empty: not read.
	CacheDir string
	// Runtime returns the rows that the runtime's hook has told, of sandboxes that are there. Their Source is set here. nil: there is no hook.
	Runtime func() []Row
}

// Inventory reads what a node knows, and remembers it: a look pays for what has changed. Make one with [New], and one for a node: it is
// safe for concurrent use.
type Inventory struct {
	o Options

	mu      sync.Mutex
	records filememo.Memo[Row]
	cache   filememo.Memo[Row]
	last    Reading
	at      time.Time // of last
	looks   int
}

// New returns the inventory of a node. It reads nothing yet.
func New(o Options) *Inventory { return &Inventory{o: o} }

// Dir is the directory in which the plugin writes its records, for who waits for one.
func (i *Inventory) Dir() string { return i.o.Records.Dir }

// recently is for how long [Inventory.Recent] repeats a look: pods change in bursts, and rounds over them begin together.
const recently = time.Second

// Recent returns the last look, if that is less than a second old and is enough, and else looks. A nil function: any is.
func (i *Inventory) Recent(enough func(Reading) bool) Reading {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.at.IsZero() && time.Since(i.at) < recently && (enough == nil || enough(i.last)) {
		return i.last
	}
	return i.look()
}

// Look returns what the sources say now. The rows are not the caller's to change.
func (i *Inventory) Look() Reading {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.look()
}

// Has reports whether there is a row as wanted.
func (i *Inventory) Has(wanted func(Row) bool) bool {
	has := func(r Reading) bool { return slices.ContainsFunc(r.Rows, wanted) }
	return has(i.Recent(has))
}

// look needs the lock.
func (i *Inventory) look() Reading {
	now := Reading{Unread: map[Source]error{}}
	if i.o.Runtime != nil {
		for _, r := range i.o.Runtime() {
			r.Source = Runtime
			now.Rows = append(now.Rows, r)
		}
	}
	if i.o.Records.Dir != "" {
		now.add(Record, "records", i.o.Records.Dir, &i.records, []string{"."}, i.readRecord)
	}
	if i.o.CacheDir != "" {
		now.add(Cache, "attachments of the runtime's cache", i.o.CacheDir, &i.cache, append([]string{cnicache.MultusDir}, cnicache.Dirs...), readRow)
		if _, err := os.Stat(i.o.CacheDir); err != nil {
			now.Unread[Cache] = fmt.Errorf("read the runtime's cache of attachments: %w", err)
		}
	}
	slices.SortStableFunc(now.Rows, func(a, b Row) int {
		if a.Source != b.Source {
			return slices.Index(order, a.Source) - slices.Index(order, b.Source)
		}
		return b.Made.Compare(a.Made)
	})
	i.last, i.at = now, time.Now()
	i.looks++
	return now
}

func (r *Reading) add(s Source, what, at string, memo *filememo.Memo[Row], dirs []string, read func(fs.FS, string) (Row, error)) {
	fsys := os.DirFS(at)
	files, err := memo.Refresh(fsys, dirs, func(name string) (Row, error) { return read(fsys, name) })
	for _, row := range files {
		if row.Source != "" {
			r.Rows = append(r.Rows, row)
		}
	}
	if err == nil {
		return
	}
	several := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		several = joined.Unwrap()
	}
	r.Unread[s] = fmt.Errorf("%d %s cannot be read: %w", len(several), what, several[0])
}

// readRow reads a file of the cache. The zero Row is none.
func readRow(fsys fs.FS, name string) (Row, error) {
	info, err := fs.Stat(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return Row{}, nil
	}
	if err != nil {
		return Row{}, err
	}
	a, err := cnicache.Read(fsys, name)
	if err != nil || a.ContainerID == "" || a.IfName == "lo" { // containerd sets lo up by a network of its own, cni-loopback, and before the pod's
		return Row{}, err
	}
	r := Row{
		ID:     attachment.ID{Network: a.NetworkName, ContainerID: a.ContainerID, IfName: a.IfName},
		Source: Cache, Pod: a.Pod(), NetNS: attachment.NetNS{Path: a.Sandbox()}, Addrs: a.Addrs(), Types: a.Types(), Made: info.ModTime(),
	}
	if strings.HasPrefix(name, cnicache.MultusDir+"/") {
		r.Source = Multus
	}
	return r, nil
}

func (i *Inventory) readRecord(_ fs.FS, name string) (Row, error) {
	r, err := i.o.Records.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) { // it is none, or its DEL came just now
		return Row{}, nil
	}
	if err != nil {
		return Row{}, err
	}
	r.Rules, r.Unusable = attachment.Record{}.Rules, nil
	return Row{ID: r.ID, Source: Record, Pod: r.Pod, NetNS: r.NetNS, Made: r.Time, Record: &r}, nil
}

// Records returns the whole records of which the rows are as wanted, the oldest first. The error says what cannot be read; it may be one of
// them.
func (i *Inventory) Records(wanted func(Row) bool) (all []attachment.Record, err error) {
	now := i.Look()
	errs := []error{now.Unread[Record]}
	for _, row := range now.Rows {
		if row.Record == nil || !wanted(row) {
			continue
		}
		r, err := i.o.Records.Read(row.ID)
		switch {
		case err == nil:
			all = append(all, r)
		case !errors.Is(err, fs.ErrNotExist): // its DEL came just now
			errs = append(errs, err)
		}
	}
	slices.SortFunc(all, func(a, b attachment.Record) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Network, b.Network), cmp.Compare(a.IfName, b.IfName))
	})
	return all, errors.Join(errs...)
}

// Change calls the function for the records of a pod, by its UID, that are of a namespace, and writes those for which it returns true, as
// the writer's. found: there is one. unread says what cannot be read, and so may be one; err, what could not be written.
func (i *Inventory) Change(uid string, netns netnsexec.ID, writer string, change func(*attachment.Record) bool) (found bool, unread, err error) {
	all, unread := i.Records(func(r Row) bool { return r.Pod.UID == uid && r.NetNS.Is(netns) })
	var errs []error
	for _, r := range all {
		found = true
		if change(&r) {
			errs = append(errs, i.Write(r, writer))
		}
	}
	return found, unread, errors.Join(errs...)
}

// Write writes a record as the writer's, in place of the attachment's before.
func (i *Inventory) Write(r attachment.Record, writer string) error {
	r.By, r.Program, r.Time = writer, "", time.Now().UTC()
	return i.o.Records.Write(r)
}

// As returns the records, for a writer.
func (i *Inventory) As(writer string) attachment.Store {
	records := i.o.Records
	records.By = writer
	return records
}

// Recorded reports whether a container has a record as wanted, now. No other source is read, and of the records no other.
func (i *Inventory) Recorded(containerID string, wanted func(attachment.Record) bool) bool {
	return i.o.Records.Has(containerID, wanted)
}

// Remove removes an attachment's record, if there is one.
func (i *Inventory) Remove(id attachment.ID) error { return i.o.Records.Remove(id) }

// Retain removes the records of a network's attachments but these, and those that were written since.
func (i *Inventory) Retain(network string, attachments []attachment.ID, since time.Time) error {
	return i.o.Records.Retain(network, attachments, since)
}
