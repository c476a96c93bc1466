package netnstest

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec"
)

// Run makes all probes at once and returns their fates by the probes' names; the package documentation describes fates.
// It takes as long as the slowest answer, at most Options.Patience.
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

// streamWidth is how many probes a stream makes at once.
const streamWidth = 4

// Stream makes one probe over and over, a few at a time, and counts the fates, to show that none escapes while rules are
// replaced. The first few have ended when it returns. stop makes a few more and returns how often each fate was met; it
// may be called again and returns the same counts.
//
// Begin with rules in place that track connections, as any NAT rule does. The first such rule in a namespace also affects
// half-open connections, whose later packets then take another way than their first: "reset" or "timeout".
func (w *World) Stream(p Probe) (stop func() map[string]int) {
	batch := slices.Repeat([]Probe{p}, streamWidth)
	counts := map[string]int{}
	round := func() {
		for _, fate := range w.exchange(p.From, batch) {
			counts[fate]++
		}
	}
	round()
	stopping, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			round()
			select {
			case <-stopping:
				round()
				return
			default:
			}
		}
	}()
	stop = sync.OnceValue(func() map[string]int {
		close(stopping)
		<-done
		return counts
	})
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

// resend is when a datagram without answer is sent again. Only a full queue loses datagrams here.
const resend = 500 * time.Millisecond

// pending is a probe that has no fate yet.
type pending struct {
	index int          // of the probe
	text  bytes.Buffer // what has arrived
}

// exchange opens every probe's socket in the calling thread's namespace, then waits for the answers. Fates that stay
// empty had none.
func exchange(probes []Probe, fates []string, patience time.Duration) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	open := map[int]*pending{} // by socket
	defer func() {
		for fd := range open {
			_ = unix.Close(fd)
		}
		_ = unix.Close(epoll)
	}()
	for i, p := range probes {
		fd, err := launch(p)
		if err == nil {
			err = watch(epoll, fd, unix.EPOLLIN)
		}
		if err == nil {
			open[fd] = &pending{index: i}
			continue
		}
		fates[i] = fateOf(err)
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	events := make([]unix.EpollEvent, 64)
	for deadline := time.Now().Add(patience); len(open) > 0; {
		wait := min(time.Until(deadline), resend)
		if wait <= 0 {
			return unix.ETIMEDOUT
		}
		n, err := unix.EpollWait(epoll, events, int(wait.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for _, e := range events[:max(n, 0)] {
			fd := int(e.Fd)
			p := open[fd]
			if fates[p.index] = receive(fd, probes[p.index].Proto, &p.text); fates[p.index] != "" {
				delete(open, fd)
				// Close alone is not enough: a child that is being forked elsewhere holds the socket open until its
				// exec, and epoll would go on reporting it.
				_ = unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, fd, nil)
				_ = unix.Close(fd)
			}
		}
		for fd, p := range open {
			if n <= 0 && probes[p.index].Proto == "udp" {
				_, _ = unix.Write(fd, question)
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
