package zds

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// link is a connection to a proxy on which there is at most one request without an answer.
type link struct {
	conn *net.UnixConn
	raw  syscall.RawConn

	// mu is held around each system call that receives or sends, with the change of awaiting that goes with it. So a packet that
	// was there before a request was sent is never taken for its answer.
	mu       sync.Mutex
	awaiting bool
	answers  chan string // the reason of the ack, "" accepts; room for one
}

func newLink(conn *net.UnixConn) (*link, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &link{conn: conn, raw: raw, answers: make(chan string, 1)}, nil
}

// hello waits for the proxy's first packet.
func (l *link) hello(patience time.Duration) error {
	if err := l.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := l.receive(parseHello); err != nil {
		return err
	}
	return l.conn.SetReadDeadline(time.Time{})
}

// watch receives until the connection ends, and returns why. It always returns an error.
func (l *link) watch() error {
	for {
		if err := l.receive(l.answer); err != nil {
			return err
		}
	}
}

// answer takes a packet. mu is held.
func (l *link) answer(packet []byte) error {
	if !l.awaiting {
		return errors.New("the proxy sent what no request had asked for")
	}
	reason, err := parseResponse(packet)
	if err != nil {
		return err
	}
	l.awaiting = false
	l.answers <- reason
	return nil
}

// receive waits for one packet, and calls take with it. The error is io.EOF if the proxy has closed the connection.
func (l *link) receive(take func(packet []byte) error) error {
	var failed error
	err := l.raw.Read(func(fd uintptr) (done bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		var packet [maxMessage]byte
		// Without room for control messages, the kernel drops files that come along, and says so.
		n, _, flags, _, err := unix.Recvmsg(int(fd), packet[:], nil, unix.MSG_DONTWAIT) // which signals don't interrupt
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			failed = err
		case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
			failed = fmt.Errorf("%w: a packet is too long, or has files", errMalformed)
		case n == 0: // an empty packet looks the same, and is none of this protocol either
			failed = io.EOF
		default:
			failed = take(packet[:n])
		}
		return true
	})
	return errors.Join(err, failed)
}

// send sends a request, with the file if there is one. It fails if the proxy has spoken first.
func (l *link) send(packet []byte, fd int, patience time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var waiting error
	if err := l.raw.Control(func(fd uintptr) {
		var first [1]byte
		n, _, err := unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == nil && n > 0:
			waiting = errors.New("the proxy sent what no request had asked for")
		case err == nil:
			waiting = io.EOF
		}
	}); err != nil {
		return err
	}
	if waiting != nil {
		return waiting
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, _, err := l.conn.WriteMsgUnix(packet, rights, nil); err != nil {
		return err
	}
	l.awaiting = true
	return nil
}
