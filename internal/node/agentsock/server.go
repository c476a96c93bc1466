package agentsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/files/sockfile"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/status"
)

// Server serves a [Handler] on sockets. Set the fields before Serve.
type Server struct {
	// Handler is required. Several requests call it at once.
	Handler Handler
	// MayConnect admits peers by their user. Default: user 0 alone.
	MayConnect func(uid uint32) bool
	// MaxRequests bounds the requests that are worked on at once; more are answered with [ErrBusy]. Default: 256, more than twice
	// the pods that a kubelet starts by default.
	MaxRequests int
	// Patience bounds the time that a peer takes to send its request, and to read its answer. Default: 2 s; peers are on this node.
	Patience time.Duration
	// OnRequest is called after each request. Default: nothing.
	OnRequest func(RequestInfo)
}

// RequestInfo is the record of a request, for metrics.
type RequestInfo struct {
	// Kind is pod, attach, detach, pods, release, ready or release-to; empty: the request was not read.
	Kind string
	// Outcome is ok, refused (the peer may not connect), or why it failed: unknown, unsupported, step, busy, version, malformed, failed.
	Outcome string
	// Duration is the time that the handler took.
	Duration time.Duration
	// Err is the error that was answered, or nil.
	Err error
}

// Defaults of a Server.
const (
	defaultMaxRequests = 256
	defaultPatience    = 2 * time.Second
	// maxSilent bounds the connections whose request is not read yet.
	maxSilent = 64
)

// Serve listens at the path until the context ends, and then returns nil once all requests have ended. It makes the socket
// anew when the file is gone, or when whoever replaced it is. A newer Serve at the same path takes the place of an older one,
// also of another process, and the older one leaves the file alone.
//
// An error means that it could not listen in the first place.
func (s *Server) Serve(ctx context.Context, path string) error {
	w := &worker{Server: s, slots: make(chan struct{}, orElse(s.MaxRequests, defaultMaxRequests))}
	return sockfile.Own(ctx, path, func(l *net.UnixListener) { w.accept(ctx, l) }, w.requests.Wait)
}

func orElse[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

type worker struct {
	*Server
	slots    chan struct{}
	requests sync.WaitGroup

	mu     sync.Mutex
	silent []*net.UnixConn // whose request is not read yet, oldest first
}

// accept serves connections until the listener is closed.
func (w *worker) accept(ctx context.Context, l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil { // too many open files, for example
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		w.enter(conn)
		w.requests.Go(func() { w.serve(ctx, conn) })
	}
}

// enter counts a connection whose request is not read yet. Beyond the bound the oldest is closed: a peer of ours sends at once.
func (w *worker) enter(conn *net.UnixConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = append(w.silent, conn)
	if len(w.silent) > maxSilent {
		_ = w.silent[0].Close()
		w.silent = slices.Delete(w.silent, 0, 1)
	}
}

// leave ends what enter began: the request is read, or none comes.
func (w *worker) leave(conn *net.UnixConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = slices.DeleteFunc(w.silent, func(c *net.UnixConn) bool { return c == conn })
}

func (w *worker) serve(ctx context.Context, conn *net.UnixConn) {
	defer func() {
		w.leave(conn)
		_ = conn.Close()
	}()
	allowed := w.MayConnect
	if allowed == nil {
		allowed = func(uid uint32) bool { return uid == 0 }
	}
	if uid, err := peer(conn); err != nil || !allowed(uid) {
		w.tell(RequestInfo{Outcome: outcomeRefused, Err: fmt.Errorf("user %d may not connect", uid)})
		return
	}
	patience := orElse(w.Patience, defaultPatience)
	_ = conn.SetDeadline(time.Now().Add(patience))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	in, err := readRequest(conn)
	stop()
	w.leave(conn)
	if errors.Is(err, io.EOF) && in == nil || err != nil && ctx.Err() != nil {
		return // whoever connected wanted to know whether anybody listens
	}
	if err != nil {
		w.answer(conn, RequestInfo{Outcome: problemOf(err).Code, Err: err}, nil)
		return
	}
	defer in.closeFile()
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	default:
		w.answer(conn, RequestInfo{Kind: in.kind.String(), Outcome: problemOf(ErrBusy).Code, Err: ErrBusy}, nil)
		return
	}

	// The client says nothing more. What ends the read is that it goes away, or that the answer is there.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_ = conn.SetReadDeadline(time.Time{})
	w.requests.Go(func() {
		defer cancel()
		_, _ = conn.Read(make([]byte, 1))
	})

	begin := time.Now()
	f, err := w.handle(ctx, in)
	done := RequestInfo{Kind: in.kind.String(), Outcome: outcomeOK, Duration: time.Since(begin), Err: err}
	if err != nil {
		done.Outcome = problemOf(err).Code
	}
	_ = conn.SetWriteDeadline(time.Now().Add(patience))
	w.answer(conn, done, f)
}

// answer sends the frame, or the request's error.
func (w *worker) answer(conn io.Writer, done RequestInfo, f []byte) {
	if done.Err != nil {
		p := problemOf(done.Err)
		f, _ = inJSON(kindFailed, p, maxAnswer) // strings always marshal
	}
	_, _ = conn.Write(f)
	w.tell(done)
}

func (w *worker) tell(r RequestInfo) {
	if w.OnRequest != nil {
		w.OnRequest(r)
	}
}

// handle returns the frame of the answer. A panic of the handler is an error: others' requests go on.
func (w *worker) handle(ctx context.Context, in *incoming) (f []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("internal error: %v", v)
		}
	}()
	var v any
	switch in.kind {
	case kindPod:
		id, err := decode[status.ID](in.body)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		pod, err := w.Handler.Pod(ctx, id)
		if err != nil {
			return nil, err
		}
		return podFrame(pod)
	case kindAttach:
		a, err := decode[Attachment](in.body)
		if err == nil {
			err = a.check()
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		v, err = w.Handler.Attach(ctx, a, in.takeFile(a.NetNS))
		if err != nil {
			return nil, err
		}
	case kindDetach:
		id, err := decode[attachment.ID](in.body)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		if err := w.Handler.Detach(ctx, id); err != nil {
			return nil, err
		}
	case kindPods:
		if v, err = w.Handler.Pods(ctx); err != nil {
			return nil, err
		}
	case kindRelease:
		if v, err = w.Handler.Release(ctx, ReleaseOptions{}); err != nil {
			return nil, err
		}
	case kindReleaseTo:
		r, err := decode[ReleaseOptions](in.body)
		if err == nil && r == (ReleaseOptions{}) {
			err = errors.New("it says neither to nor undo") // what a later client may want instead is not to release all
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		if v, err = w.Handler.Release(ctx, r); err != nil {
			return nil, err
		}
	case kindReady:
		if h, ok := w.Handler.(interface{ Ready(context.Context) error }); ok {
			if err := h.Ready(ctx); err != nil {
				return nil, err
			}
		}
	}
	return inJSON(answers+in.kind, v, maxAnswer)
}

// incoming is a request that was read.
type incoming struct {
	kind kind
	body []byte
	file int // -1: none
}

// takeFile returns the file, which is the caller's from now on.
func (in *incoming) takeFile(name string) *os.File {
	fd := in.file
	in.file = -1
	return os.NewFile(uintptr(fd), name) //nolint:gosec // a descriptor
}

func (in *incoming) closeFile() {
	if in.file >= 0 {
		_ = unix.Close(in.file)
		in.file = -1
	}
}

// versionError is a request in another version.
type versionError byte

func (e versionError) Error() string {
	return fmt.Sprintf("the agent speaks version %d of the protocol, and the request is in version %d", protocolVersion, byte(e))
}

// readRequest reads one request. Files that it should not have are closed.
func readRequest(conn *net.UnixConn) (in *incoming, err error) {
	r := &fileReader{conn: conn}
	defer func() {
		if err != nil {
			r.closeAll()
		}
	}()
	malformed := func(format string, args ...any) (*incoming, error) {
		return nil, fmt.Errorf("%w: %w", errMalformed, fmt.Errorf(format, args...))
	}
	var h [headerBytes]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return malformed("read it: %w", err)
	}
	version, k, size, err := header(h, maxRequest)
	switch {
	case err != nil:
		return malformed("%w", err)
	case version != protocolVersion:
		return nil, versionError(version)
	case !k.known():
		return nil, fmt.Errorf("%w: %s", ErrUnsupported, k)
	}
	in = &incoming{kind: k, body: make([]byte, size), file: -1}
	if _, err := io.ReadFull(r, in.body); err != nil {
		return malformed("read it: %w", err)
	}
	wanted := 0
	if k == kindAttach {
		wanted = 1
	}
	if len(r.fds) != wanted || r.more {
		return malformed("%s has %d files or more, and should have %d", k, len(r.fds), wanted)
	}
	if wanted == 1 {
		in.file = r.fds[0]
	}
	return in, nil
}

// fileReader reads bytes and keeps the files that come beside them.
type fileReader struct {
	conn *net.UnixConn
	fds  []int
	more bool // there were others, which the kernel has closed
}

// maxFiles bounds the files that are received of a request, to tell it apart from one that has the right number.
const maxFiles = 2

// Read implements io.Reader. The runtime's ReadMsgUnix sets MSG_CMSG_CLOEXEC.
func (r *fileReader) Read(b []byte) (int, error) {
	var oob [unix.SizeofCmsghdr + 4*maxFiles + 4]byte
	n, oobn, flags, _, err := r.conn.ReadMsgUnix(b, oob[:])
	r.more = r.more || flags&unix.MSG_CTRUNC != 0
	if oobn > 0 {
		messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for i := range messages {
			if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
				r.fds = append(r.fds, fds...)
			}
		}
	}
	if len(r.fds) > maxFiles {
		r.closeAll()
		return 0, errors.New("too many files")
	}
	if err == nil && n == 0 && len(b) > 0 {
		err = io.EOF
	}
	return n, err
}

func (r *fileReader) closeAll() {
	for _, fd := range r.fds {
		_ = unix.Close(fd)
	}
	r.fds = nil
}
