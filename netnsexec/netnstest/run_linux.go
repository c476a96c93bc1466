package netnstest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
	"github.com/meshcni/meshcni/netnsexec"
)

// Run makes all probes at once and returns their fates by the probes' names; the package documentation describes fates.
// It takes as long as the slowest answer, at most Options.Patience.
//
// With Options.Echo each probe is a conversation: it sends two messages, and gets each of them back. Its fate then ends in
// " peer=" and the address that the server sees, and is that of a packet that was lost if any message was.
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

// exchange makes probes from one namespace and returns their fates in the same order.
func (w *World) exchange(from string, probes []Probe) []string {
	fates := make([]string, len(probes))
	ns := map[string]*netnsexec.NetNS{fromPod: w.Pod, fromOut: w.Out, fromVM: w.VM}[from]
	if ns == nil {
		return slices.Repeat([]string{fmt.Sprintf("error: no namespace %q", from)}, len(probes))
	}
	deadline := time.Now().Add(w.opts.Patience)
	var wg sync.WaitGroup
	err := ns.Do(func() error {
		for i, p := range probes {
			socket, err := launch(p, w.opts.Echo)
			if err != nil {
				fates[i] = fateOf(err)
				continue
			}
			wg.Go(func() { fates[i] = w.await(socket, p.Proto, deadline) })
		}
		return nil
	})
	wg.Wait()
	if err != nil {
		return slices.Repeat([]string{fateOf(err)}, len(probes))
	}
	return fates
}

var question = []byte("who?")

// launch opens p's socket and starts its connection or sends its datagram.
func launch(p Probe, echo bool) (*os.File, error) {
	typ := unix.SOCK_STREAM
	if p.Proto == "udp" {
		typ = unix.SOCK_DGRAM
	}
	fd, err := ownsock.Open(p.UID, p.GID, p.Dst.Addr(), typ)
	if err != nil {
		return nil, err
	}
	if err := send(fd, typ, p, echo); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), p.String()), nil
}

func send(fd, typ int, p Probe, echo bool) error {
	if p.Mark != 0 {
		if err := mark(fd, p); err != nil {
			return err
		}
	}
	if p.Src.IsValid() {
		if err := unix.Bind(fd, ownsock.Sockaddr(netip.AddrPortFrom(p.Src, p.Port))); err != nil {
			return fmt.Errorf("bind %s: %w", p.Src, err)
		}
	}
	if typ == unix.SOCK_STREAM {
		// Close by reset: no TIME_WAIT piles up, however long a stream runs.
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, ownsock.Sockaddr(p.Dst)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	if typ == unix.SOCK_DGRAM && !echo {
		_, err := unix.Write(fd, question)
		return err
	}
	return nil
}

// mark gives a socket its mark, and lets it have any source address.
func mark(fd int, p Probe) error {
	level, transparent := unix.SOL_IP, unix.IP_TRANSPARENT
	if p.Dst.Addr().Is6() {
		level, transparent = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(p.Mark))
	if p.Src.IsValid() {
		err = errors.Join(err, unix.SetsockoptInt(fd, level, transparent, 1))
	}
	return err
}

// resend is when a datagram without answer is sent again. Only a full queue loses datagrams here.
const resend = 500 * time.Millisecond

// await returns a probe's fate, and closes its socket.
func (w *World) await(socket *os.File, proto string, deadline time.Time) string {
	defer func() { _ = socket.Close() }()
	if w.opts.Echo {
		line, err := converse(socket, proto, deadline)
		if err != nil {
			return fateOf(err)
		}
		return line
	}
	if proto == "tcp" {
		_ = socket.SetReadDeadline(deadline)
		line, err := bufio.NewReader(socket).ReadString('\n')
		if err != nil {
			return fateOf(err)
		}
		return strings.TrimSuffix(line, "\n")
	}
	for buf := make([]byte, 256); ; {
		_ = socket.SetReadDeadline(time.Now().Add(min(resend, time.Until(deadline))))
		n, err := socket.Read(buf)
		switch {
		case err == nil:
			return string(buf[:n])
		case !errors.Is(err, os.ErrDeadlineExceeded) || !time.Now().Before(deadline):
			return fateOf(err)
		}
		_, _ = socket.Write(question)
	}
}

// fateOf names what went wrong.
func fateOf(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, io.EOF): // EOF: before the line's end
		return "reset"
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH):
		return "unreachable"
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.EPERM): // EPERM: a datagram dropped on its way out
		return "timeout"
	}
	var path *os.PathError // names the probe
	if errors.As(err, &path) {
		err = path.Err
	}
	return fmt.Sprintf("error: %v", err)
}
