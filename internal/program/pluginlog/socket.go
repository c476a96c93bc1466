package pluginlog

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// socket sends records to the agent and drops those that it cannot take at once. The kernel queues net.unix.max_dgram_qlen
// datagrams (10 by default), so a burst may lose some; the file has them all.
type socket struct {
	path    string
	fd      int
	open    bool
	dropped int // since the last record that got through
}

// write returns an error only if the socket exists and cannot work; absent and full are no errors.
func (s *socket) write(record []byte) error {
	for range 2 {
		if !s.open {
			if err := s.connect(); err != nil {
				s.dropped++
				for _, gone := range []error{unix.ENOENT, unix.ENOTDIR, unix.ECONNREFUSED, unix.EAGAIN} {
					if errors.Is(err, gone) {
						return nil // no agent, or one that has just gone, or is busy
					}
				}
				return fmt.Errorf("connect to the agent's log socket: %w", err)
			}
		}
		switch unix.Send(s.fd, s.counted(record), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) {
		case nil:
			s.dropped = 0
			return nil
		case unix.EAGAIN, unix.EMSGSIZE, unix.ENOBUFS:
			s.dropped++
			return nil
		}
		s.close() // ECONNREFUSED, ENOTCONN: the agent has restarted, on a new socket of the same name
	}
	s.dropped++
	return nil
}

func (s *socket) prepare() {
	if !s.open {
		_ = s.connect() // if it fails, write finds out too
	}
}

// counted adds "dropped":n in front of the record's own keys when n records before it were lost.
func (s *socket) counted(record []byte) []byte {
	if s.dropped == 0 || len(record) < 2 || record[0] != '{' {
		return record
	}
	return append(fmt.Appendf(nil, `{"dropped":%d,`, s.dropped), record[1:]...)
}

func (s *socket) connect() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s.path}); err != nil {
		_ = unix.Close(fd)
		return err
	}
	s.fd, s.open = fd, true
	return nil
}

func (s *socket) close() {
	if s.open {
		_ = unix.Close(s.fd)
		s.open = false
	}
}
