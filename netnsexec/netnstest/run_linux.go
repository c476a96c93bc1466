package netnstest

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// Run makes all the probes at once and returns their fates by the probes' names; see the package documentation for
// what a fate looks like. It takes as long as the slowest answer, at most Options.Patience.
func (w *World) Run(probes []Probe) map[string]string {
	byOrigin := map[string][]Probe{}
	for _, p := range probes {
		byOrigin[p.From] = append(byOrigin[p.From], p)
	}
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		fates = make(map[string]string, len(probes))
	)
	for from, batch := range byOrigin {
		wg.Go(func() {
			answers := w.exchange(from, batch)
			mu.Lock()
			defer mu.Unlock()
			for i, p := range batch {
				fates[p.String()] = answers[i]
			}
		})
	}
	wg.Wait()
	return fates
}

// streamWidth is how many connections a stream has open at once.
const streamWidth = 4

// Stream makes one probe over and over, a few at a time, and counts the fates, to show that none escapes while rules
// are being replaced. When Stream returns the first ones have ended; stop makes a few more, ends the stream, and
// returns how often each fate was met. stop may be called again and returns the same counts.
//
// Begin with rules in place that track connections (any NAT rule does). The first such rule in a namespace also takes
// hold of connections that are half open, whose later packets then go another way than their first: "reset" or "timeout".
func (w *World) Stream(p Probe) (stop func() map[string]int) {
	batch := make([]Probe, streamWidth)
	for i := range batch {
		batch[i] = p
	}
	var (
		counts   = map[string]int{}
		stopping = make(chan struct{})
		done     = make(chan struct{})
		started  = make(chan struct{})
		once     sync.Once
	)
	round := func() {
		for _, fate := range w.exchange(p.From, batch) {
			counts[fate]++
		}
	}
	go func() {
		defer close(done)
		round()
		close(started)
		for {
			select {
			case <-stopping:
				round()
				return
			default:
				round()
			}
		}
	}()
	stop = func() map[string]int {
		once.Do(func() { close(stopping) })
		<-done
		return counts
	}
	<-started
	w.tb.Cleanup(func() { stop() })
	return stop
}

// exchange makes probes from one namespace and returns their fates in the same order.
func (w *World) exchange(from string, probes []Probe) []string {
	fates := make([]string, len(probes))
	ns := map[string]*netnsexec.NetNS{FromPod: w.Pod, FromOut: w.Out, FromVM: w.VM}[from]
	err := fmt.Errorf("no namespace %q", from)
	if ns != nil {
		err = ns.Do(func() error { return exchange(probes, fates, w.opts.Patience) })
	}
	for i := range fates {
		if fates[i] == "" {
			fates[i] = fateOf(err)
		}
	}
	return fates
}

// resend is after how long a datagram without answer is sent again. Nothing loses datagrams here but a full queue.
const resend = 500 * time.Millisecond

// exchange opens every probe's socket in the calling thread's namespace, then waits for the answers. Fates that stay
// empty had none.
func exchange(probes []Probe, fates []string, patience time.Duration) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	open := map[int32]int{} // socket to index
	defer func() {
		for fd := range open {
			_ = unix.Close(int(fd))
		}
		_ = unix.Close(epoll)
	}()
	for i, p := range probes {
		fd, err := launch(p)
		if fd >= 0 {
			open[int32(fd)] = i //nolint:gosec // descriptors are small
		}
		if err == nil {
			err = watch(epoll, fd, unix.EPOLLIN)
		}
		if err != nil {
			fates[i] = fateOf(err)
		}
	}
	left := 0
	for _, f := range fates {
		if f == "" {
			left++
		}
	}
	text := make([]bytes.Buffer, len(probes)) // what arrived so far
	events := make([]unix.EpollEvent, 64)
	deadline := time.Now().Add(patience)
	for left > 0 {
		wait := min(time.Until(deadline), resend)
		if wait <= 0 {
			return unix.ETIMEDOUT
		}
		n, err := unix.EpollWait(epoll, events, int(wait.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for _, e := range events[:max(n, 0)] {
			i := open[e.Fd]
			if fates[i] = receive(int(e.Fd), probes[i].Proto, &text[i]); fates[i] != "" {
				left--
				delete(open, e.Fd)
				// Not left to close: a child that is being forked elsewhere holds the socket open until its exec,
				// and epoll would go on reporting it.
				_ = unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, int(e.Fd), nil)
				_ = unix.Close(int(e.Fd))
			}
		}
		if n > 0 {
			continue
		}
		for fd, i := range open {
			if fates[i] == "" && probes[i].Proto == "udp" {
				_, _ = unix.Write(int(fd), question)
			}
		}
	}
	return nil
}

var question = []byte("who?")

// launch opens p's socket and starts its connection or sends its datagram.
func launch(p Probe) (fd int, err error) {
	typ := unix.SOCK_STREAM
	if p.Proto == "udp" {
		typ = unix.SOCK_DGRAM
	}
	fd, err = ownedSocket(Owner{p.UID, p.GID}, p.Dst.Addr(), typ)
	if err != nil {
		return -1, err
	}
	if p.Src.IsValid() {
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.Src, 0))); err != nil {
			return fd, fmt.Errorf("bind %s: %w", p.Src, err)
		}
	}
	if typ == unix.SOCK_STREAM {
		// Close by reset: no TIME_WAIT piles up, however long a stream runs.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return fd, err
		}
	}
	if err := unix.Connect(fd, sockaddr(p.Dst)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fd, err
	}
	if typ == unix.SOCK_DGRAM {
		_, err = unix.Write(fd, question)
	}
	return fd, err
}

// receive reads what there is and returns the fate once it is known.
func receive(fd int, proto string, text *bytes.Buffer) string {
	var buf [256]byte
	n, err := unix.Read(fd, buf[:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return ""
	case err != nil:
		return fateOf(err)
	case proto == "udp":
		return string(buf[:n])
	case n == 0:
		return fateOf(unix.ECONNRESET) // ended before its line did
	}
	text.Write(buf[:n])
	line, _, whole := bytes.Cut(text.Bytes(), []byte("\n"))
	if !whole {
		return ""
	}
	return string(line)
}

// fateOf names what went wrong.
func fateOf(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return "reset"
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return "unreachable"
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.EPERM): // EPERM: a datagram dropped on its way out
		return "timeout"
	}
	return fmt.Sprintf("error: %v", err)
}
