//go:build linux

package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// errInterrupted: something changed while it was listed, so an entry may have been left out.
var errInterrupted = errors.New("it changed while it was listed")

// Limit bounds what is read of a namespace for one question.
type Limit struct {
	Messages, Bytes int
	Time            time.Duration
}

// Default is more than any pod has that does not try to hold up others. To list as much takes the kernel some 20 ms, so the time
// only counts where the kernel itself is held up. Beside others' work on a busy node two seconds were too few.
var Default = Limit{Messages: 1 << 16, Bytes: 8 << 20, Time: 10 * time.Second}

// Socketer opens sockets in a namespace.
type Socketer interface {
	Socket(domain, typ, proto int) (fd int, err error)
}

// Conn asks one namespace. It is for one goroutine. Its socket is opened for the first question. The caller calls Close.
type Conn struct {
	ns    Socketer
	proto int
	limit Limit
	fd    int
	seq   uint32
	read  Limit // for all questions
	most  Limit // what read may become by the present one
	until time.Time
}

// New returns a Conn with the limit.
func New(ns Socketer, limit Limit) *Conn {
	return &Conn{ns: ns, proto: unix.NETLINK_ROUTE, limit: limit, fd: -1}
}

// NewDiag returns a Conn with the limit that asks for sockets (sock_diag(7)), by [Conn.Dump] alone.
func NewDiag(ns Socketer, limit Limit) *Conn {
	return &Conn{ns: ns, proto: unix.NETLINK_SOCK_DIAG, limit: limit, fd: -1}
}

// Dump asks once, and calls fn with the body of each message of the answer type until it returns false. A kernel that has no such
// family or protocol has nothing of it.
func (c *Conn) Dump(what string, request, answer uint16, body []byte, fn func(body []byte) (more bool)) error {
	c.begin()
	if err := unless(c.once(request, answer, body, fn), unix.ENOENT); err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

// begin gives the next question the whole limit.
func (c *Conn) begin() {
	c.most = Limit{Messages: c.read.Messages + c.limit.Messages, Bytes: c.read.Bytes + c.limit.Bytes}
	c.until = time.Now().Add(c.limit.Time)
}

// Close closes the socket, and ends a list that was not read to its end.
func (c *Conn) Close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
}

// Read returns how many messages and bytes were read so far.
func (c *Conn) Read() (messages, bytes int) { return c.read.Messages, c.read.Bytes }

func (c *Conn) open() (err error) {
	if c.fd >= 0 {
		return nil
	}
	if c.fd, err = c.ns.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, c.proto); err != nil {
		c.fd = -1
		return fmt.Errorf("open netlink socket: %w", err)
	}
	// Kernels without it list everything, of which each reader takes what it wants.
	_ = unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return nil
}

// buffers are as large as the largest part of a list that the kernel sends at once. A small buffer gets small parts, for each of
// which the kernel goes through what it has sent already.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// maxAttempts bounds how often a list is read that changes meanwhile.
const maxAttempts = 5

// list asks for a list, and calls fn with the body of each message of the type until it returns false. A list that changed
// meanwhile, and in which fn did not find what it looks for, is asked for again.
func (c *Conn) list(what string, request, answer uint16, body []byte, fn func(body []byte) (more bool)) error {
	c.begin()
	for attempt := 1; ; attempt++ {
		err := c.once(request, answer, body, fn)
		if errors.Is(err, errInterrupted) && attempt < maxAttempts {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", what, err)
		}
		return nil
	}
}

func (c *Conn) once(request, answer uint16, body []byte, fn func([]byte) bool) error {
	if err := c.open(); err != nil {
		return err
	}
	c.seq++
	b := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	binary.NativeEndian.PutUint32(b, uint32(cap(b))) //nolint:gosec // under 100
	binary.NativeEndian.PutUint16(b[4:], request)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	binary.NativeEndian.PutUint32(b[8:], c.seq)
	if err := unix.Sendto(c.fd, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buf)
	interrupted := false
	for {
		n, err := c.receive(buf[:])
		if err != nil {
			c.Close()
			return err
		}
		for m, err := range messages(buf[:n]) {
			switch {
			case err != nil:
				c.Close()
				return err
			case m.seq != c.seq:
				continue
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				err := m.errno()
				if err == nil && interrupted {
					err = errInterrupted
				}
				return err
			case answer:
				if c.read.Messages++; c.read.Messages > c.most.Messages {
					c.Close()
					return fmt.Errorf("%w: it has over %d", ErrLong, c.limit.Messages)
				}
				if !fn(m.body) {
					c.Close() // what is left of the list is nobody's
					return nil
				}
			}
		}
	}
}

// receive reads the next part of a list. The kernel makes it meanwhile, so there is nothing to wait for. Whoever has CAP_NET_ADMIN in the
// namespace can send to this socket: what is not the kernel's counts for the limits and for nothing else.
func (c *Conn) receive(buf []byte) (n int, err error) {
	for {
		var from unix.Sockaddr
		n, from, err = unix.Recvfrom(c.fd, buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		interrupted := errors.Is(err, unix.EINTR)
		sender, ok := from.(*unix.SockaddrNetlink)
		kernel := ok && sender.Pid == 0
		c.read.Bytes += max(n, 0)
		switch {
		case err != nil && !interrupted:
			return 0, err
		case c.read.Bytes > c.most.Bytes:
			return 0, fmt.Errorf("%w: it has over %d bytes", ErrLong, c.limit.Bytes)
		case time.Now().After(c.until):
			return 0, fmt.Errorf("%w: it takes over %s", ErrLong, c.limit.Time)
		case interrupted, !kernel:
		case n > len(buf):
			return 0, fmt.Errorf("the kernel's answer has %d bytes, of at most %d", n, len(buf))
		default:
			return n, nil
		}
	}
}

// message is a netlink message.
type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte
}

func (m message) errno() error {
	if len(m.body) < 4 {
		return nil // a DONE of an old kernel
	}
	if code := int32(binary.NativeEndian.Uint32(m.body)); code < 0 { //nolint:gosec // two's complement
		return unix.Errno(-code)
	}
	return nil
}

func messages(b []byte) iter.Seq2[message, error] {
	return func(yield func(message, error) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				yield(message{}, fmt.Errorf("netlink message of %d bytes in %d", size, len(b)))
				return
			}
			m := message{
				typ: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
				seq: binary.NativeEndian.Uint32(b[8:]), body: b[unix.NLMSG_HDRLEN:size],
			}
			if !yield(m, nil) {
				return
			}
			b = b[min(len(b), align(size)):]
		}
	}
}

func align(n int) int { return (n + 3) &^ 3 }

// attrs calls fn with each attribute.
func attrs(b []byte, fn func(typ uint16, data []byte)) {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return
		}
		fn(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:size])
		b = b[min(len(b), align(size)):]
	}
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
