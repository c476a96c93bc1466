package validate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// try makes the trials that the planner chooses, all at once. Sockets are opened in
// the namespace and watched from outside it.
func try(ctx context.Context, in func(func() error) error, p *planner) (trials []*trial, err error) {
	t := tryer{listeners: map[listenKey]int{}}
	defer func() { t.close(trials) }()
	err = in(func() (err error) {
		if p.surroundings, err = look(p.redirect); err != nil {
			return err
		}
		trials = p.plan()
		for _, trial := range trials {
			if trial.Outcome == "" {
				if err := t.listen(trial); err != nil {
					return err
				}
			}
		}
		t.pending = unsettled(trials)
		// Every listener is there before anything is sent.
		for _, trial := range t.pending {
			t.launch(trial)
		}
		return nil
	})
	if err != nil {
		return trials, err
	}
	return trials, t.wait(ctx)
}

type listenKey struct {
	family ruleset.Family
	proto  string
	port   uint16
}

// tryer watches the trials that have not ended.
type tryer struct {
	pending []*trial
	// listeners are the sockets that stand in for the proxy on its ports; -1 is a port that is taken.
	listeners map[listenKey]int
}

func (t *tryer) close(trials []*trial) {
	for _, fd := range t.listeners {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	for _, s := range trials {
		if s.open {
			_ = unix.Close(s.fd)
		}
	}
}

func keyOf(s *trial) listenKey { return listenKey{s.Family, s.Proto, s.port} }

// listen opens the proxy's port on the loopback address, to which the kernel
// redirects what a process of the same host sent.
func (t *tryer) listen(s *trial) error {
	key := keyOf(s)
	if _, open := t.listeners[key]; open {
		return nil
	}
	at := netip.AddrPortFrom(loopback(key.family), key.port)
	fd, err := socket(self(), key.family, key.proto)
	if err != nil {
		return fmt.Errorf("open %s socket: %w", key.proto, err)
	}
	t.listeners[key] = fd
	if key.proto == tcp {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, ownsock.Sockaddr(at))
	}
	if err == nil && key.proto == tcp {
		err = unix.Listen(fd, 64)
	}
	if errors.Is(err, unix.EADDRINUSE) {
		t.listeners[key] = -1
		return unix.Close(fd)
	}
	if errors.Is(err, unix.EADDRNOTAVAIL) && key.family == ruleset.IPv6 {
		delete(t.listeners, key)
		s.settle(untested, "lo has no ::1: IPv6 is switched off there")
		return unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("listen on %s %s: %w", key.proto, at, err)
	}
	return nil
}

const tcp = "tcp"

func socket(id Identity, f ruleset.Family, proto string) (int, error) {
	typ := unix.SOCK_STREAM
	if proto != tcp {
		typ = unix.SOCK_DGRAM
	}
	return ownsock.Open(id.UID, id.GID, loopback(f), typ)
}

// launch sends what the trial is about.
func (t *tryer) launch(s *trial) {
	var err error
	if s.fd, err = socket(*s.As, s.Family, s.Proto); err != nil {
		s.settle(untested, "open socket: "+err.Error())
		return
	}
	s.open = true
	// What is not redirected ends at the first router.
	level, hops, errs := unix.SOL_IP, unix.IP_TTL, unix.IP_RECVERR
	if s.Family == ruleset.IPv6 {
		level, hops, errs = unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_RECVERR
	}
	err = unix.SetsockoptInt(s.fd, level, hops, 1)
	if err == nil && s.Proto != tcp {
		err = unix.SetsockoptInt(s.fd, level, errs, 1) // else a datagram's end there would not be told
	}
	if err == nil {
		if err = unix.Connect(s.fd, ownsock.Sockaddr(s.Destination)); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
	}
	if err == nil {
		s.local, err = name(s.fd)
	}
	if err == nil && s.Proto != tcp {
		s.question = question(s.local.Port())
		_, err = unix.Write(s.fd, s.question)
	}
	if err != nil {
		t.failed(s, err)
	}
}

// settle ends a trial. The first end counts.
func (s *trial) settle(outcome, detail string) {
	if s.Outcome == "" {
		s.Outcome, s.Detail = outcome, detail
	}
}

// failed is a connection that was not accepted.
func (t *tryer) failed(s *trial, err error) {
	if s.exempt {
		s.settle(works, "left alone: "+err.Error())
		return
	}
	s.settle(missing, fmt.Sprintf("did not arrive at port %d: %v", s.port, err))
}

// wait watches all sockets until every trial is settled or ctx ends.
func (t *tryer) wait(ctx context.Context) error {
	for {
		t.pending = unsettled(t.pending)
		if len(t.pending) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			t.expire()
			if errors.Is(ctx.Err(), context.Canceled) {
				return context.Cause(ctx)
			}
			return nil
		}
		fds, handlers := t.watched()
		begin := time.Now()
		if _, err := unix.Poll(fds, tick(ctx)); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for connections: %w", err)
		}
		// Arrivals before departures: a client that is connected may have arrived in the same moment.
		for i := range fds {
			if fds[i].Revents != 0 {
				handlers[i]()
			}
		}
		t.elsewhere(begin)
	}
}

// tick is the longest wait for events between two looks at ctx, in ms.
func tick(ctx context.Context) int {
	const most = 50 * time.Millisecond
	wait := most
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Until(deadline), 0))
	}
	return int(wait.Milliseconds()) + 1
}

func unsettled(all []*trial) []*trial {
	var left []*trial
	for _, s := range all {
		if s.Outcome == "" {
			left = append(left, s)
		}
	}
	return left
}

// watched lists the sockets that may tell something, listeners first.
func (t *tryer) watched() ([]unix.PollFd, []func()) {
	var fds []unix.PollFd
	var handlers []func()
	add := func(fd int, events int16, handle func()) {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: events}) //nolint:gosec // descriptors are small
		handlers = append(handlers, handle)
	}
	for key, fd := range t.listeners {
		if fd >= 0 {
			add(fd, unix.POLLIN, func() { t.arrival(key, fd) })
		}
	}
	for _, s := range t.pending {
		switch {
		case s.Proto != tcp:
			add(s.fd, unix.POLLIN, func() { t.answer(s) })
		case s.connected.IsZero():
			add(s.fd, unix.POLLOUT, func() { t.connected(s) })
		}
	}
	return fds, handlers
}

// arrival takes one connection or datagram at a port of the proxy.
func (t *tryer) arrival(key listenKey, listener int) {
	if key.proto != tcp {
		var buf [512]byte
		n, _, err := unix.Recvfrom(listener, buf[:], 0)
		for _, s := range t.pending {
			if err == nil && keyOf(s) == key && string(s.question) == string(buf[:n]) {
				s.settle(works, fmt.Sprintf("arrived at port %d", s.port))
			}
		}
		return
	}
	fd, from, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	for _, s := range t.pending {
		if keyOf(s) != key || s.local != ownsock.AddrPort(from) {
			continue
		}
		dst, err := ownsock.OriginalDst(fd, s.Family == ruleset.IPv6)
		switch {
		case s.exempt:
			s.settle(missing, fmt.Sprintf("arrived at port %d: the rules in force capture no look-ups", s.port))
		case err != nil:
			s.settle(missing, fmt.Sprintf("arrived at port %d, but its original destination is unknown: %v", s.port, err))
		case dst != s.Destination:
			s.settle(missing, fmt.Sprintf("arrived at port %d, but with %s as its original destination", s.port, dst))
		default:
			s.settle(works, fmt.Sprintf("arrived at port %d, with its original destination", s.port))
		}
	}
}

// connected learns whether a connection was accepted, by whomever.
func (t *tryer) connected(s *trial) {
	errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		s.settle(untested, "ask for the connection's state: "+err.Error())
	case errno != 0:
		t.failed(s, unix.Errno(errno))
	case t.listeners[keyOf(s)] >= 0:
		s.connected = time.Now() // its arrival at our listener, if that is where it went, is still to be read
	case s.exempt:
		s.settle(untested, fmt.Sprintf("accepted, but port %d is in use, so not told by whom", s.port))
	default:
		s.settle(works, fmt.Sprintf("accepted, presumably by what listens on port %d already", s.port))
	}
}

// answer is something that came back to a datagram.
func (t *tryer) answer(s *trial) {
	var buf [512]byte
	_, err := unix.Read(s.fd, buf[:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
	case err != nil:
		t.failed(s, err)
	case t.listeners[keyOf(s)] >= 0:
		s.settle(missing, fmt.Sprintf("did not arrive at port %d: somebody else answered", s.port))
	default:
		s.settle(works, fmt.Sprintf("answered, presumably by what listens on port %d already", s.port))
	}
}

// arrivalGrace bounds the time that an accepted connection takes to show
// at our listener. Both happen within the same host, in microseconds.
const arrivalGrace = time.Second

// elsewhere settles connections that somebody else must have accepted: they had been accepted for long enough when the listeners were
// last looked at. What passes between two looks is no sign, since this process may not have run.
func (t *tryer) elsewhere(looked time.Time) {
	for _, s := range t.pending {
		switch {
		case s.connected.IsZero() || looked.Sub(s.connected) < arrivalGrace:
		case s.exempt:
			s.settle(works, "left alone: accepted by what listens there")
		default:
			s.settle(missing, fmt.Sprintf("did not arrive at port %d: somebody else accepted it", s.port))
		}
	}
}

// expire settles what nothing was heard of.
func (t *tryer) expire() {
	for _, s := range t.pending {
		if s.exempt || t.listeners[keyOf(s)] < 0 && s.Proto != tcp {
			s.settle(untested, "no answer in time")
			continue
		}
		s.settle(missing, fmt.Sprintf("did not arrive at port %d: no answer in time", s.port))
	}
}
