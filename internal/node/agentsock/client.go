package agentsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/files/sockfile"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/status"
)

// Client asks the agent. Each call makes one connection. The caller's context limits it; without a deadline, it lasts as
// long as the agent takes. Safe for concurrent use.
//
// A call without an agent returns an error for which errors.Is(err, fs.ErrNotExist) or
// errors.Is(err, syscall.ECONNREFUSED) holds, one that takes too long an error for which
// errors.Is(err, context.DeadlineExceeded) holds, one whose agent ended meanwhile an error for which
// errors.Is(err, io.ErrUnexpectedEOF) holds, or that of the broken connection (ECONNRESET, EPIPE). What the agent answers is [ErrUnknown], [ErrUnsupported], [ErrBusy], a
// [*StepError], or another error in the agent's words.
type Client struct {
	// Path is the socket's, [Name] in run_dir.
	Path string
}

// Pod returns the pod. The answer is the agent's copy. It may be older than that of the API server, without bound while the
// agent cannot reach the API server.
func (c Client) Pod(ctx context.Context, id status.ID) (Pod, error) {
	body, err := c.ask(ctx, kindPod, id, nil)
	if err != nil {
		return Pod{}, err
	}
	p, err := parsePod(body)
	return p, c.wrap(kindPod, err)
}

// Attach has the pod captured, and returns once its proxy listens. ns is the pod's network namespace, such as
// a *netnsexec.NetNS or an *os.File. It stays open.
func (c Client) Attach(ctx context.Context, a Attachment, ns syscall.Conn) (Attached, error) {
	return answer[Attached](ctx, c, kindAttach, a, ns)
}

// Detach says that the attachment is gone.
func (c Client) Detach(ctx context.Context, id attachment.ID) error {
	_, err := c.ask(ctx, kindDetach, id, nil)
	return err
}

// Pods returns the state of each pod of the node.
func (c Client) Pods(ctx context.Context) ([]status.Pod, error) {
	return answer[[]status.Pod](ctx, c, kindPods, nil, nil)
}

// Release takes all pods out of the care of the node's proxy, and returns those that could not be taken out. An agent that does
// not know what the request asks for does nothing: [ErrUnsupported].
func (c Client) Release(ctx context.Context, r ReleaseOptions) ([]status.Pod, error) {
	if r == (ReleaseOptions{}) {
		return answer[[]status.Pod](ctx, c, kindRelease, nil, nil)
	}
	return answer[[]status.Pod](ctx, c, kindReleaseTo, r, nil)
}

// Ready returns nil if there is an agent and it serves Attach.
func (c Client) Ready(ctx context.Context) error {
	_, err := c.ask(ctx, kindReady, nil, nil)
	return err
}

func answer[T any](ctx context.Context, c Client, k kind, request any, file syscall.Conn) (v T, err error) {
	body, err := c.ask(ctx, k, request, file)
	if err != nil {
		return v, err
	}
	v, err = decode[T](body)
	return v, c.wrap(k, err)
}

func (c Client) wrap(k kind, err error) error {
	if err != nil {
		return fmt.Errorf("ask the agent at %s (%s): %w", c.Path, k, err)
	}
	return nil
}

// ask returns the body of the answer.
func (c Client) ask(ctx context.Context, k kind, request any, file syscall.Conn) ([]byte, error) {
	f, err := inJSON(k, request, maxRequest)
	if err == nil {
		var conn net.Conn
		if conn, err = (&net.Dialer{}).DialContext(ctx, "unix", c.Path); err == nil {
			defer func() { _ = conn.Close() }()
			// The deadline is the context's end, and not its Deadline alone: it may also be cancelled.
			defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
			var body []byte
			if body, err = exchange(conn.(*net.UnixConn), k, f, file); err == nil {
				return body, nil
			}
		}
		if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = context.Cause(ctx)
		}
	}
	return nil, c.wrap(k, err)
}

func exchange(conn *net.UnixConn, k kind, request []byte, file syscall.Conn) ([]byte, error) {
	if uid, err := peer(conn); err != nil {
		return nil, err
	} else if uid != 0 && uid != uint32(os.Geteuid()) { //nolint:gosec // the kernel's ids are 32 bits
		return nil, fmt.Errorf("it belongs to user %d", uid)
	}
	if err := send(conn, request, file); err != nil {
		// The agent answers some requests before it has read them.
		if body, refused := receive(conn, k); refused != nil {
			return body, errors.Join(refused, err)
		}
		return nil, err
	}
	return receive(conn, k)
}

// send writes a request, with the file beside its first byte.
func send(conn *net.UnixConn, request []byte, file syscall.Conn) error {
	if file == nil {
		_, err := conn.Write(request)
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var unsent error
	if err = raw.Control(func(fd uintptr) { n, _, unsent = conn.WriteMsgUnix(request, unix.UnixRights(int(fd)), nil) }); err == nil {
		err = unsent
	}
	if err == nil && n < len(request) {
		_, err = conn.Write(request[n:])
	}
	return err
}

func receive(conn io.Reader, k kind) ([]byte, error) {
	var h [headerBytes]byte
	if _, err := io.ReadFull(conn, h[:]); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("it gave no answer: %w", io.ErrUnexpectedEOF)
		}
		return nil, err
	}
	version, got, size, err := header(h, maxAnswer)
	if err != nil {
		return nil, fmt.Errorf("malformed answer: %w", err)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	switch {
	case got == kindFailed:
		p, err := decode[problem](body)
		if err != nil {
			return nil, fmt.Errorf("malformed answer: %w", err)
		}
		return nil, p.err()
	case version != protocolVersion:
		return nil, fmt.Errorf("it answers in version %d of the protocol, and only %d is known here", version, protocolVersion)
	case got != answers+k:
		return nil, fmt.Errorf("malformed answer: it is of kind %d", got)
	}
	return body, nil
}

// peer returns the user of the process at the other end, as of when the connection was made.
func peer(conn *net.UnixConn) (uid uint32, err error) {
	cred, err := sockfile.Peer(conn)
	return cred.Uid, err
}
