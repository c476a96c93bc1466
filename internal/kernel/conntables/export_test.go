//go:build linux

package conntables

import (
	"context"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/podnetns"
)

// SearchAgain has the next reading search for processes.
func (t *Tables) SearchAgain() { t.searched = time.Time{} }

// Netlink has the kernel asked over netlink, as where it does not show the file.
func (t *Tables) Netlink() *Tables {
	t.netlink = true
	return t
}

// Believing has a proc file system that a test wrote believed in: whose the control groups and the namespaces are it cannot show.
func (t *Tables) Believing() *Tables {
	t.proc = func(root string) podnetns.Proc { return believed{podnetns.At(root)} }
	return t
}

type believed struct{ podnetns.Proc }

func (believed) Has(context.Context, podnetns.Found, podnetns.Wanted) (h podnetns.Held, err error) {
	return h, nil
}

func (believed) Groups(fn func(podnetns.Made) error) error {
	return fn(func(string, string) error { return nil })
}

func (b believed) ReadLink(name string) (string, error) { return fs.ReadLink(b.Proc, name) }

func (b believed) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(b.Proc, name) }

// Ask asks this thread's namespace for the entries of its table (CTA_STATS_GLOBAL_ENTRIES), or for another attribute of that answer.
func Ask(attr uint16) (total uint64, err error) {
	fd, err := nfnetlink.Open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(fd) }()
	return sum(&nfnetlink.Conn{FD: fd, Limit: maxAnswers}, getStats, 0, attr, "entries")
}

// GlobalEntries is the attribute that has them.
const GlobalEntries = globalEntries
