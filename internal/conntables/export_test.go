//go:build linux

package conntables

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/nfnetlink"
)

// SearchAgain has the next reading search for processes.
func (t *Tables) SearchAgain() { t.searched = time.Time{} }

// Netlink has the kernel asked over netlink, as where it does not show the file.
func (t *Tables) Netlink() *Tables {
	t.netlink = true
	return t
}

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
