package conntables

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/kernel/podnetns"
)

// counts are the kernel's figures of one table.
type counts struct {
	entries int
	dropped uint64
}

// readLimit reads the kernel's limit. The file is that of the reader's own namespace, and shows the machine's number in each.
func readLimit(procRoot string) (int, error) {
	text, err := os.ReadFile(filepath.Join(procRoot, "sys/net/netfilter/nf_conntrack_max"))
	if err != nil {
		return 0, fmt.Errorf("read the limit of connection tracking: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the limit of connection tracking: %w", err)
	}
	return limit, nil
}

// count reads the table of the process's network namespace.
func (t *Tables) count(f podnetns.Found) (counts, error) {
	if !t.netlink {
		text, err := os.ReadFile(filepath.Join(t.o.ProcRoot, strconv.Itoa(f.PID), "net/stat/nf_conntrack"))
		switch {
		case err == nil:
			c, err := parse(string(text))
			if err != nil {
				err = fmt.Errorf("connection tracking of process %d: %w", f.PID, err)
			}
			return c, err
		case errors.Is(err, syscall.ESRCH):
			return counts{}, podnetns.ErrChanged
		case !errors.Is(err, fs.ErrNotExist):
			return counts{}, fmt.Errorf("read connection tracking of process %d: %w", f.PID, err)
		}
		// The process is gone, which the netlink way sees too, or the kernel has no such file.
	}
	return t.ask(f)
}

// errForm: the kernel's answer has another form than is known.
var errForm = errors.New("nf_conntrack has another form")

// parse reads the file: a line of names, and one of hexadecimal numbers for each processor, in which the entries are those of the
// whole table (net/netfilter/nf_conntrack_standalone.c, ct_cpu_seq_show).
func parse(text string) (c counts, err error) {
	var names []string
	rows := 0
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if names == nil {
			names = fields
			continue
		}
		entries, err := column(names, fields, "entries")
		if err != nil {
			return counts{}, err
		}
		dropped, err := column(names, fields, "drop")
		if err != nil {
			return counts{}, err
		}
		c.entries = int(entries)
		c.dropped += uint64(dropped)
		rows++
	}
	if rows == 0 {
		return counts{}, fmt.Errorf("%w: no numbers", errForm)
	}
	return c, nil
}

func column(names, fields []string, name string) (uint32, error) {
	i := slices.Index(names, name)
	if i < 0 || i >= len(fields) {
		return 0, fmt.Errorf("%w: no %s", errForm, name)
	}
	n, err := strconv.ParseUint(fields[i], 16, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %w", errForm, name, err)
	}
	return uint32(n), nil
}

// From linux/netfilter/nfnetlink_conntrack.h.
const (
	getStatsCPU   = unix.NFNL_SUBSYS_CTNETLINK<<8 | 4 // IPCTNL_MSG_CT_GET_STATS_CPU
	getStats      = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5 // IPCTNL_MSG_CT_GET_STATS
	globalEntries = 1                                 // CTA_STATS_GLOBAL_ENTRIES
	statsDrop     = 10                                // CTA_STATS_DROP
)

// maxAnswers bounds what is read of the answers, in bytes: some 200 for each of 5,000 processors.
const maxAnswers = 1 << 20

// ask asks the kernel over netlink, by a socket in the process's network namespace.
func (t *Tables) ask(f podnetns.Found) (c counts, err error) {
	ns, err := f.Open(t.o.ProcRoot)
	if err != nil {
		return counts{}, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	fd, err := ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return counts{}, fmt.Errorf("ask for connection tracking of process %d: %w", f.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	conn := nfnetlink.Conn{FD: fd, Limit: maxAnswers}
	conn.Setup()
	entries, err := sum(&conn, getStats, 0, globalEntries, "entries")
	var dropped uint64
	if err == nil {
		dropped, err = sum(&conn, getStatsCPU, unix.NLM_F_DUMP, statsDrop, "drop")
	}
	if err != nil {
		return counts{}, fmt.Errorf("ask for connection tracking of process %d: %w", f.PID, err)
	}
	return counts{entries: int(entries), dropped: dropped}, nil
}

// sum asks, and adds up an attribute of the answers. That none has it is an error, because it would be taken for an empty table.
func sum(conn *nfnetlink.Conn, request, flags, attr uint16, name string) (total uint64, err error) {
	missing := fmt.Errorf("%w: no %s", errForm, name)
	err = conn.Ask(request, flags, unix.AF_UNSPEC, nil, func(m nfnetlink.Message) {
		if a := m.Attr(attr); len(a.Data) == 4 {
			total += uint64(binary.BigEndian.Uint32(a.Data))
			missing = nil
		}
	})
	return total, cmp.Or(err, missing)
}
