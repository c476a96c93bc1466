package conntables

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/internal/kernel/podnetns"
	"github.com/meshcni/meshcni/status"
)

// Options configures [Tables]. Pods is required.
type Options struct {
	// Identity is the product's, for the names of metrics.
	Identity meshcni.Identity
	// Pods returns the pods to look at, by the UIDs that the runtime knows them by. It is called without a lock.
	Pods func() []status.ID
	// Want returns what is known of the network namespace of one of them. nil: nothing is.
	Want func(uid string) podnetns.Wanted
	// ProcRoot is a proc file system that shows the pods' processes. Empty means /proc.
	ProcRoot string
	// Log receives why no table can be read, once. nil discards it.
	Log *slog.Logger
}

const (
	// recent bounds the age of a result of [Tables.Recent]. A client that opens thousands of connections a second fills a table
	// in a minute.
	recent = 10 * time.Second
	// searchAgain is the interval of searches for the processes of pods that had none. A search reads a file of each process of the node.
	searchAgain = time.Minute
)

// Nearly is the fill in percent from which a table is nearly full: then new connections are close to stalling, and the kernel
// itself, from 95 on, begins to drop entries of connections that are ending.
const Nearly = 90

// half is the fill in percent from which a table is worth a look.
const half = 50

// Table is a pod's table.
type Table struct {
	Pod status.ID
	// Entries counts the tracked connections, Limit bounds them. A limit of 0 means any number.
	Entries, Limit int
	// Dropped counts the packets that the pod's connection tracking has dropped since the pod's start: nearly all because the table was
	// full.
	Dropped uint64
}

// Percent is the used share of the table, rounded down. It is 0 without a limit.
func (t Table) Percent() int {
	if t.Limit <= 0 {
		return 0
	}
	return int(100 * int64(t.Entries) / int64(t.Limit))
}

// Reading is the result of [Tables.Read].
type Reading struct {
	// Limit is the kernel's, for each table. 0 means none.
	Limit int
	// Tables are the pods' that could be read, the fullest first.
	Tables []Table
	// Unread counts the pods whose table could not be read, and Err joins the different reasons why. Processes that end meanwhile are among them, so
	// some are always possible.
	Unread int
	Err    error

	noLimit bool // the limit could not be read
}

// Nearly returns the tables that are nearly full.
func (r Reading) Nearly() []Table {
	n := slices.IndexFunc(r.Tables, func(t Table) bool { return t.Percent() < Nearly })
	if n < 0 {
		n = len(r.Tables)
	}
	return r.Tables[:n]
}

// Tables reads the tables of a node's pods. Make one with [New]. Its methods are safe for concurrent use.
type Tables struct {
	o       Options
	desc    descriptions
	now     func() time.Time
	netlink bool // even where the kernel shows the file; for tests
	proc    func(root string) podnetns.Proc

	mu       sync.Mutex
	found    map[string]sought // by the pod's UID
	searched time.Time
	last     Reading
	read     time.Time
	dropped  uint64 // in all tables so far, also those that are gone
	said     bool
}

// sought is the result of a search for a pod.
type sought struct {
	podnetns.Found // zero: nothing

	err     error
	dropped uint64 // by the table, when it was read last
}

// New returns what reads the tables. It reads nothing yet.
func New(o Options) *Tables {
	o.ProcRoot = cmp.Or(o.ProcRoot, "/proc")
	if o.Want == nil {
		o.Want = func(string) (w podnetns.Wanted) { return w }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Tables{o: o, desc: describe(o.Identity), now: time.Now, proc: podnetns.At, found: map[string]sought{}}
}

// Recent is [Tables.Read], unless the last reading is less than ten seconds old: it then returns that.
func (t *Tables) Recent() Reading {
	t.mu.Lock()
	last, read := t.last, t.read
	t.mu.Unlock()
	if !read.IsZero() && t.now().Sub(read) < recent {
		return last
	}
	return t.Read()
}

// Read reads all tables.
func (t *Tables) Read() Reading {
	pods := t.o.Pods()
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.readAll(pods)
	t.last, t.read = r, t.now()
	if nothing := len(r.Tables) == 0 && r.Unread > 0; nothing && !t.said {
		t.o.Log.Info("how full the pods' connection tracking tables are is not known", "pods", r.Unread, "error", r.Err.Error())
		t.said = true
	} else if !nothing {
		t.said = false
	}
	return r
}

func (t *Tables) readAll(pods []status.ID) (r Reading) {
	limit, err := readLimit(t.o.ProcRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return r // nothing on this machine tracks connections
	}
	if err != nil {
		return Reading{Unread: len(pods), Err: err, noLimit: true}
	}
	r.Limit = limit
	t.keep(pods)
	reasons := map[string]error{}
	var again []status.ID
	for _, pod := range pods {
		if !t.readInto(&r, pod) {
			again = append(again, pod)
		}
	}
	t.search(again)
	for _, pod := range again {
		if !t.readInto(&r, pod) {
			r.Unread++
			why := t.found[pod.UID].err
			reasons[class(why)] = why
		}
	}
	for _, why := range reasons {
		r.Err = errors.Join(r.Err, why)
	}
	slices.SortStableFunc(r.Tables, func(a, b Table) int { return cmp.Compare(b.Entries, a.Entries) })
	return r
}

// class tells reasons apart: those that differ in the pod alone are the same.
func class(err error) string {
	for _, known := range []error{podnetns.ErrNoProcess, podnetns.ErrUID, podnetns.ErrChanged, fs.ErrPermission} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "other"
}

// keep forgets pods that are gone.
func (t *Tables) keep(pods []status.ID) {
	there := make(map[string]bool, len(pods))
	for _, pod := range pods {
		there[pod.UID] = true
	}
	for uid := range t.found {
		if !there[uid] {
			delete(t.found, uid)
		}
	}
}

// readInto adds the pod's table, if the process that leads to it is known and still runs.
func (t *Tables) readInto(r *Reading, pod status.ID) bool {
	s := t.found[pod.UID]
	if s.PID == 0 {
		return false
	}
	c, err := t.count(s.Found)
	// Only afterwards is it sure whose table it was: the number may be that of another process by now.
	if err == nil && !s.Same(os.DirFS(t.o.ProcRoot)) {
		err = podnetns.ErrChanged
	}
	if err != nil {
		// Its counts are kept: the next process may be in the same namespace.
		s.err = err
		if errors.Is(err, podnetns.ErrChanged) || errors.Is(err, fs.ErrNotExist) {
			s.Found = podnetns.Found{}
		}
		t.found[pod.UID] = s
		return false
	}
	if c.dropped < s.dropped { // another namespace: the pod's sandbox was made anew
		s.dropped = 0
	}
	t.dropped += c.dropped - s.dropped
	s.dropped, s.err = c.dropped, nil
	t.found[pod.UID] = s
	r.Tables = append(r.Tables, Table{Pod: pod, Entries: c.entries, Limit: r.Limit, Dropped: c.dropped})
	return true
}

// search looks for processes of pods: at once if one of them is new, otherwise now and then.
func (t *Tables) search(pods []status.ID) {
	news := slices.ContainsFunc(pods, func(pod status.ID) bool { _, known := t.found[pod.UID]; return !known })
	if len(pods) == 0 || !news && t.now().Sub(t.searched) < searchAgain {
		return
	}
	t.searched = t.now()
	uids := make(map[string]podnetns.Wanted, len(pods))
	for _, pod := range pods {
		if t.found[pod.UID].PID == 0 {
			uids[pod.UID] = t.o.Want(pod.UID)
		}
	}
	all, err := podnetns.FindAll(context.Background(), t.proc(t.o.ProcRoot), uids)
	for uid := range uids {
		s := t.found[uid]
		s.Found, s.err = all[uid].Found, cmp.Or(err, all[uid].Err)
		t.found[uid] = s
	}
}
