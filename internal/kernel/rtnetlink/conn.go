//go:build linux

package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
)

// Limit bounds what is read of a namespace for one question.
type Limit struct {
	Messages, Bytes int
	Time            time.Duration
}

// Default is more than any pod has that does not try to hold up others. To list as much takes the kernel some 20 ms, so the time
// only counts where the kernel itself is held up. Beside others' work on a busy node two seconds were too few, and once ten.
var Default = Limit{Messages: 1 << 16, Bytes: 8 << 20, Time: 30 * time.Second}

// Socketer opens sockets in a namespace.
type Socketer interface {
	Socket(domain, typ, proto int) (fd int, err error)
}

// Conn asks one namespace. It is for one goroutine. Its socket is opened for the first question. The caller calls Close.
type Conn struct {
	ns              Socketer
	proto           int
	limit           Limit
	conn            nfnetlink.Conn
	messages, bytes int // of all questions but, for the bytes, the present one
	most            int // what messages may become by the present one
}

// New returns a Conn with the limit.
func New(ns Socketer, limit Limit) *Conn { return newConn(ns, unix.NETLINK_ROUTE, limit) }

// NewDiag returns a Conn with the limit that asks for sockets (sock_diag(7)), by [Conn.Dump] alone.
func NewDiag(ns Socketer, limit Limit) *Conn { return newConn(ns, unix.NETLINK_SOCK_DIAG, limit) }

func newConn(ns Socketer, proto int, limit Limit) *Conn {
	return &Conn{ns: ns, proto: proto, limit: limit, conn: nfnetlink.Conn{FD: -1, Time: limit.Time}}
}

// Dump asks once, and calls fn with the body of each message of the answer type until it returns false. A kernel that has no such
// family or protocol has nothing of it.
func (c *Conn) Dump(what string, request, answer uint16, body []byte, fn func(body []byte) (more bool)) error {
	c.begin()
	if err := unless(c.once(request, unix.NLM_F_DUMP, answer, body, fn), unix.ENOENT); err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

// begin gives the next question the whole limit.
func (c *Conn) begin() {
	c.most = c.messages + c.limit.Messages
	c.bytes += c.conn.Read()
	c.conn.Begin(c.limit.Bytes)
}

// Close closes the socket, and ends a list that was not read to its end.
func (c *Conn) Close() {
	if c.conn.FD >= 0 {
		_ = unix.Close(c.conn.FD)
		c.conn.FD = -1
	}
}

// Read returns how many messages and bytes were read so far.
func (c *Conn) Read() (messages, bytes int) { return c.messages, c.bytes + c.conn.Read() }

func (c *Conn) open() error {
	if c.conn.FD >= 0 {
		return nil
	}
	fd, err := c.ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, c.proto)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	c.conn.FD = fd
	// Kernels without it list everything, of which each reader takes what it wants.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return nil
}

// maxAttempts bounds how often a list is read that changes meanwhile.
const maxAttempts = 5

// list asks for a list, and calls fn with the body of each message of the type until it returns false. A list that changed
// meanwhile, and in which fn did not find what it looks for, is asked for again.
func (c *Conn) list(what string, request, answer uint16, body []byte, fn func(body []byte) (more bool)) error {
	c.begin()
	for attempt := 1; ; attempt++ {
		err := c.once(request, unix.NLM_F_DUMP, answer, body, fn)
		if errors.Is(err, nfnetlink.ErrInterrupted) && attempt < maxAttempts {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", what, err)
		}
		return nil
	}
}

// errEnough ends a list of which the rest is nobody's.
var errEnough = errors.New("enough was read")

// once sends one request, and calls fn with the body of each message of the answer type, until the kernel says that this was all.
func (c *Conn) once(request, flags, answer uint16, body []byte, fn func([]byte) bool) error {
	if err := c.open(); err != nil {
		return err
	}
	c.conn.Seq++
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body))) //nolint:gosec // under 100
	b = binary.NativeEndian.AppendUint16(b, request)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = binary.NativeEndian.AppendUint32(b, c.conn.Seq)
	b = binary.NativeEndian.AppendUint32(b, 0) // to the kernel
	if err := c.conn.Send(append(b, body...)); err != nil {
		return err
	}
	done, interrupted := false, false
	var failure error
	for !done {
		err := c.conn.Receive(func(m nfnetlink.Message) error {
			if m.Seq != c.conn.Seq {
				return nil
			}
			interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done, failure = true, m.Errno()
			case answer:
				if c.messages++; c.messages > c.most {
					return fmt.Errorf("%w: it has over %d", nfnetlink.ErrLong, c.limit.Messages)
				}
				if !fn(m.Body) {
					return errEnough
				}
			}
			return nil
		})
		if err != nil {
			c.Close() // the kernel has more of the list
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		}
	}
	if interrupted && failure == nil {
		return nfnetlink.ErrInterrupted
	}
	return failure
}

func u32(data []byte) uint32 {
	if len(data) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(data)
}

// unless returns the error if it is none of those that say that there is no such table, link or family.
func unless(err error, none ...error) error {
	if slices.ContainsFunc(none, func(n error) bool { return errors.Is(err, n) }) {
		return nil
	}
	return err
}
