//go:build linux

package nfnetlink

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInterrupted says that the rules changed while they were listed or before they
// were written, or that an answer was lost. The call then starts again.
var ErrInterrupted = errors.New("it changed while it was read")

// Conn is a netlink socket to the kernel's netfilter in one namespace. It is for one goroutine.
type Conn struct {
	// FD is the socket, which the caller opens and closes.
	FD int
	// Seq is the number of the last message.
	Seq uint32
	// Limit bounds the bytes of answers that are read until the next Begin.
	Limit int
	// Time bounds how long answers are read, since Begin; 0 is 30 s. The kernel makes 64 MiB of them in half a second; beside others' work ten seconds were too few once.
	Time time.Duration

	read  int       // bytes since Begin
	lost  int       // answers that had no room in the socket's buffer, since Begin
	until time.Time // when the time since Begin is over; zero: nothing was read yet
	buf   []byte    // of received messages
}

// maxLost bounds how often the kernel may say that an answer was lost.
const maxLost = 16

// Begin lets the questions from now on read so many bytes of answers in all.
func (c *Conn) Begin(limit int) { c.Limit, c.read, c.lost, c.until = limit, 0, 0, time.Time{} }

// Read returns how many bytes were read since Begin.
func (c *Conn) Read() int { return c.read }

// Count adds to the bytes that were read, for answers that the caller holds in a larger form.
func (c *Conn) Count(n int) { c.read += n }

// MaxAttempts bounds how often a call starts again because of others' transactions.
const MaxAttempts = 100

// Session runs fn until it is not interrupted, at most MaxAttempts times and until the context ends. Each time it may read so many bytes of
// answers.
func (c *Conn) Session(ctx context.Context, limit int, fn func() error) error {
	wait := 50 * time.Microsecond
	for attempt := 1; ; attempt++ {
		c.Begin(limit)
		err := fn()
		if !errors.Is(err, ErrInterrupted) || attempt == MaxAttempts {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
			wait = min(2*wait, 10*time.Millisecond)
		}
	}
}

// Open opens a netfilter socket in the calling thread's namespace.
func Open() (fd int, err error) {
	return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
}

// Setup makes errors carry their reason instead of the message they are about.
// Kernels without these options work as well.
func (c *Conn) Setup() {
	_ = unix.SetsockoptInt(c.FD, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(c.FD, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
}

// sendBuffer bounds the bytes that a socket has under way by default: 212992 less the
// kernel's own overhead. Source: net.core.wmem_default.
const sendBuffer = 128 << 10

// Send sends messages to the kernel.
func (c *Conn) Send(b []byte) error {
	if len(b) > sendBuffer {
		_ = unix.SetsockoptInt(c.FD, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*len(b))
	}
	for {
		err := unix.Sendto(c.FD, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Message is a received message, without its header.
type Message struct {
	Typ   uint16
	Flags uint16
	Seq   uint32
	Body  []byte
	// Family and Attrs are of a message of netfilter's: of the nfgenmsg, and what follows it.
	Family byte
	Attrs  []byte
}

// Attr returns the attribute of the type, which is empty if there is none.
func (m Message) Attr(typ uint16) Attr { return Attr{Data: m.Attrs}.Attr(typ) }

// Text returns the attribute of the type as a string.
func (m Message) Text(typ uint16) string { return m.Attr(typ).Text() }

// Receive calls fn for each message of the next datagram, and returns unix.EAGAIN if
// there is none. The kernel answers while it is asked, so there is nothing to wait for. Whoever has CAP_NET_ADMIN in the namespace can
// send to this socket, so what is not the kernel's counts for the limits and for nothing else. Beyond these the error is [ErrLong].
func (c *Conn) Receive(fn func(Message) error) error {
	if c.buf == nil {
		c.buf = make([]byte, 32<<10) // the kernel fills no more at once
	}
	limit := cmp.Or(c.Time, 30*time.Second)
	if c.until.IsZero() {
		c.until = time.Now().Add(limit)
	}
	var n int
	for kernel := false; !kernel; {
		var from unix.Sockaddr
		var err error
		n, from, err = unix.Recvfrom(c.FD, c.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS) && c.lost < maxLost:
			c.lost++
			return err
		case errors.Is(err, unix.ENOBUFS):
			return fmt.Errorf("%w: over %d answers were lost", ErrLong, maxLost)
		case err != nil:
			return err
		default:
			sender, ok := from.(*unix.SockaddrNetlink)
			kernel = ok && sender.Pid == 0
			c.read += n
		}
		if c.read > c.Limit {
			return fmt.Errorf("%w: it has over %d bytes", ErrLong, c.Limit)
		}
		if time.Now().After(c.until) {
			return fmt.Errorf("%w: it takes over %s", ErrLong, limit)
		}
	}
	if n > len(c.buf) {
		return fmt.Errorf("netlink answer of %d bytes, of at most %d", n, len(c.buf))
	}
	for b := c.buf[:n]; len(b) >= unix.NLMSG_HDRLEN; {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return fmt.Errorf("netlink message of %d bytes in %d", size, len(b))
		}
		m := Message{
			Typ:   binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:]),
			Seq:   binary.NativeEndian.Uint32(b[8:]),
			Body:  b[unix.NLMSG_HDRLEN:size],
		}
		if len(m.Body) >= 4 {
			m.Family, m.Attrs = m.Body[0], m.Body[4:]
		}
		if err := fn(m); err != nil {
			return err
		}
		b = b[min(len(b), nlAlign(size)):]
	}
	return nil
}

func nlAlign(n int) int { return (n + 3) &^ 3 }

// Errno reads the payload of an NLMSG_ERROR or NLMSG_DONE; nil is an acknowledgement.
func (m *Message) Errno() error {
	switch {
	case len(m.Body) < 4 && m.Typ == unix.NLMSG_DONE:
		return nil // of an old kernel
	case len(m.Body) < 4:
		return unix.EBADMSG
	}
	code := int32(binary.NativeEndian.Uint32(m.Body))      //nolint:gosec // two's complement
	if code < 0 || code > 0 && m.Typ == unix.NLMSG_ERROR { // at the end of a list it may be a length
		return unix.Errno(max(code, -code))
	}
	return nil
}

// Reason is the kernel's own word about an error, if it has one.
func (m *Message) Reason() string {
	const head = 4 + unix.NLMSG_HDRLEN // the code, and the header of what it is about
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 || m.Flags&unix.NLM_F_CAPPED == 0 || len(m.Body) < head {
		return ""
	}
	for a := range Attrs(m.Body[head:]) {
		if a.Typ == unix.NLMSGERR_ATTR_MSG {
			return a.Text()
		}
	}
	return ""
}

// Request asks nf_tables for one thing, or with NLM_F_DUMP for a list, and calls fn with
// each answer. Absence, ENOENT, is the empty list.
func (c *Conn) Request(msg uint16, flags uint16, family byte, attrs func(*Writer), fn func(Message)) error {
	return c.Ask(TypeOf(msg), flags, family, attrs, fn)
}

// Ask is Request for a message of any of netfilter's subsystems, whose type it takes.
func (c *Conn) Ask(typ uint16, flags uint16, family byte, attrs func(*Writer), fn func(Message)) error {
	c.Seq++
	w := Writer{Seq: c.Seq}
	w.Begin(typ, unix.NLM_F_REQUEST|flags, family, 0)
	if attrs != nil {
		attrs(&w)
	}
	w.End()
	if err := c.Send(w.B); err != nil {
		return err
	}
	// A list is read to its end even when it is of no use: until then the kernel
	// takes no other request for one. One that is too long ends the session.
	done, interrupted := false, false
	var failure error
	for !done {
		err := c.Receive(func(m Message) error {
			if m.Seq != c.Seq {
				return nil
			}
			interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				done = true
				failure = m.Errno()
			default:
				fn(m)
				done = done || flags&unix.NLM_F_DUMP == 0
			}
			return nil
		})
		switch {
		case errors.Is(err, unix.ENOBUFS):
			interrupted = true
		case err != nil:
			return err
		}
	}
	switch {
	case interrupted, errors.Is(failure, unix.EINTR):
		return ErrInterrupted
	case errors.Is(failure, unix.ENOENT):
		return nil
	}
	return failure
}

// BatchError is the first message of a batch that the kernel refused.
type BatchError struct {
	Seq    uint32
	Errno  error
	reason string
}

// Error returns the error and, if the kernel gave one, its reason.
func (e *BatchError) Error() string {
	if e.reason != "" {
		return e.Errno.Error() + " (" + e.reason + ")"
	}
	return e.Errno.Error()
}

// Unwrap returns the error number.
func (e *BatchError) Unwrap() error { return e.Errno }

// Commit sends a batch and reads its answers: errors, and the acknowledgement
// that was asked for with the last message. All is done or nothing.
func (c *Conn) Commit(b []byte, last uint32) error {
	c.Seq = last + 1
	if err := c.Send(b); err != nil {
		return err
	}
	acknowledged, lost := false, false
	var failure *BatchError
	for {
		err := c.Receive(func(m Message) error {
			if m.Typ != unix.NLMSG_ERROR {
				return nil
			}
			if errno := m.Errno(); errno != nil {
				if failure == nil {
					failure = &BatchError{Seq: m.Seq, Errno: errno, reason: m.Reason()}
				}
			} else if m.Seq == last {
				acknowledged = true
			}
			return nil
		})
		if errors.Is(err, unix.ENOBUFS) {
			lost = true
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return err
		}
	}
	switch {
	case failure != nil && (errors.Is(failure, unix.ERESTART) || errors.Is(failure, unix.EINTR) || errors.Is(failure, unix.EAGAIN)):
		return ErrInterrupted
	case failure != nil:
		return failure
	case acknowledged:
		return nil
	case lost:
		return ErrInterrupted
	}
	return errors.New("the kernel did not acknowledge the transaction")
}
