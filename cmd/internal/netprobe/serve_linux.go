package netprobe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/ownsock"
)

// Options are for [Serve].
type Options struct {
	// Name is told to whoever connects.
	Name string
	// Listen are the ports that answer, on all addresses of both families.
	Listen []uint16
	// Control is the port on 127.0.0.1 that serves the paths.
	Control uint16
}

// Serve answers until ctx ends, or returns why it cannot.
func Serve(ctx context.Context, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for _, port := range o.Listen {
		for _, family := range []string{"tcp4", "tcp6"} {
			l, err := net.Listen(family, ":"+strconv.Itoa(int(port)))
			if family == "tcp6" && (errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL)) {
				continue // the kernel has no IPv6
			}
			if err != nil {
				return fmt.Errorf("listen on port %d: %w", port, err)
			}
			context.AfterFunc(ctx, func() { _ = l.Close() })
			all.Go(func() { accept(l, o.Name, port) })
		}
	}
	control, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(o.Control))))
	if err != nil {
		return fmt.Errorf("listen for questions: %w", err)
	}
	server := &http.Server{Handler: handler(), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(control); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("answer questions: %w", err)
	}
	return nil
}

func accept(l net.Listener, name string, port uint16) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // such as too many files; a listener that is open goes on
			continue
		}
		go answer(conn.(*net.TCPConn), name, port)
	}
}

func answer(conn *net.TCPConn, name string, port uint16) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(Patience))
	from := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	a := Answer{Name: name, Port: port, From: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			a.Original, _ = ownsock.OriginalDst(int(fd), a.From.Addr().Is6()) //nolint:gosec // descriptors are small
		})
	}
	_ = json.NewEncoder(conn).Encode(a)
}

func handler() http.Handler {
	mux := http.NewServeMux()
	write := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET "+ReadyPath, func(w http.ResponseWriter, _ *http.Request) { write(w, struct{}{}) })
	mux.HandleFunc("GET "+DialPath, func(w http.ResponseWriter, r *http.Request) {
		to, err := netip.ParseAddrPort(r.URL.Query().Get("to"))
		if err != nil {
			http.Error(w, "the query \"to\" is no address and port", http.StatusBadRequest)
			return
		}
		a, err := dial(r.Context(), to)
		if err != nil {
			write(w, Dialed{Error: err.Error()})
			return
		}
		write(w, Dialed{Answer: &a})
	})
	return mux
}

// maxAnswer bounds the line, in bytes. Others than our own may answer.
const maxAnswer = 4096

func dial(ctx context.Context, to netip.AddrPort) (a Answer, err error) {
	ctx, stop := context.WithTimeout(ctx, Patience)
	defer stop()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return a, reason(ctx, err)
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	line, err := bufio.NewReader(io.LimitReader(conn, maxAnswer)).ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("accepted, but not answered: %w", reason(ctx, err))
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, errors.New("accepted, but answered by something else than the test's own")
	}
	return a, nil
}

// reason is an error without the addresses, which whoever asked knows.
func reason(ctx context.Context, err error) error {
	var errno unix.Errno
	switch {
	case errors.As(err, &errno):
		return errno
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("nothing came within %s", Patience)
	}
	return err
}
