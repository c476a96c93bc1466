package zds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
)

// tell sends a request, waits for the answer, and ends the request. An error ends the connection.
func (p *proxy) tell(o *op) error {
	if p.answered(o) {
		return nil
	}
	id, err := p.exchange(o)
	var nack *NackError
	var closed *closedError
	refused := errors.As(err, &nack)
	fatal := err != nil && !refused && !errors.As(err, &closed) || refused && o.req.Kind == SnapshotSent
	switch {
	case fatal && !errors.Is(err, ErrTimeout):
		err = fmt.Errorf("%w: %w", errGone, err)
	case !fatal && err != nil && o.snapshot:
		p.refused(types.UID(o.req.UID), err)
	}

	p.s.mu.Lock()
	p.sending = nil
	switch {
	case fatal:
	case o.req.Kind == SnapshotSent:
		p.told = true
	case o.req.Kind == Keep && err == nil:
		p.has[o.req.UID] = netnsexec.ID{}
	case o.req.Kind == Del:
		delete(p.has, o.req.UID)
		err = nil // that it has the pod no longer is all that was asked
	case o.req.Kind == Add:
		p.settle(o, id, err)
	}
	o.end(err) // with the lock: who gives up waiting sees whether it is too late for that
	p.s.mu.Unlock()
	if o.req.Kind == SnapshotSent && !fatal {
		p.s.log(p.group, p.cred.Pid, slog.LevelInfo, "a proxy was told the snapshot")
		p.s.crowd.changed(p.s.opts.OnChange)
	}
	if fatal {
		return err
	}
	return nil
}

// answered ends an Add that was asked for while the same was on its way, if the proxy has accepted that one since.
func (p *proxy) answered(o *op) bool {
	if o.follows == nil || o.instead != nil {
		return false
	}
	var id netnsexec.ID
	if err := withFile(o.netns, func(fd int) (err error) {
		id, err = identify(fd)
		return err
	}); err != nil {
		return false
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if has, ok := p.has[o.req.UID]; !ok || has != id || o.abandoned {
		return false
	}
	p.sending, o.had = nil, true
	close(o.sent)
	o.end(nil)
	return true
}

// settle does what an answered Add leaves to do. s.mu is held.
func (p *proxy) settle(o *op, id netnsexec.ID, err error) {
	uid := o.req.UID
	before, has := p.has[uid]
	o.had = has && (before == id || before == netnsexec.ID{}) || o.instead != nil
	if err == nil {
		p.has[uid] = id
	}
	switch {
	case id == (netnsexec.ID{}):
		p.unsent(o)
	case o.had || o.snapshot || err == nil && !o.abandoned:
	default:
		p.giveBack(uid) // refused, a proxy may try again by itself; abandoned, nobody knows that it has the pod
	}
}

// unsent makes up for an Add of the snapshot whose namespace was closed: whoever closed it has more to say about the pod, and
// until then it stays with the proxy, if it is there. s.mu is held.
func (p *proxy) unsent(o *op) {
	if _, has := p.has[o.req.UID]; has || p.told || p.queue.find(o.req.UID) >= 0 {
		return
	}
	keep := o.instead
	if o.snapshot {
		keep, _ = newOp(Request{Kind: Keep, UID: o.req.UID}, nil) // shorter than the Add was
		keep.snapshot = true
	}
	if keep != nil {
		p.queue.ops = slices.Insert(p.queue.ops, 0, keep)
	}
}

// giveBack has a proxy give a pod back, unless there is more to be said about the pod anyway. s.mu is held.
func (p *proxy) giveBack(uid string) {
	delete(p.has, uid)
	if del, err := newOp(Request{Kind: Del, UID: uid}, nil); err == nil && p.queue.find(uid) < 0 {
		p.queue.ops = append(p.queue.ops, del)
	}
}

// closedError: an Add was not sent, because the namespace's file is closed.
type closedError struct{ err error }

func (e *closedError) Error() string { return "its network namespace: " + e.err.Error() }
func (e *closedError) Unwrap() error { return e.err }

// exchange sends a request and waits for the answer: nil, [*NackError] or [*closedError]. Any other error leaves the
// connection without use. With an Add comes the identity of the namespace that was sent.
func (p *proxy) exchange(o *op) (id netnsexec.ID, err error) {
	patience := p.s.opts.AckTimeout
	if o.netns == nil {
		err = p.link.send(o.packet, -1, patience)
	} else {
		err = withFile(o.netns, func(fd int) (err error) {
			if id, err = identify(fd); err != nil {
				return err
			}
			return p.link.send(o.packet, fd, patience)
		})
	}
	close(o.sent)
	if err != nil {
		return id, err
	}
	reason, err := p.answer(patience)
	switch {
	case err != nil:
		return id, fmt.Errorf("%s: %w", o.req.Kind, err)
	case reason != "":
		return id, &NackError{Kind: o.req.Kind, UID: types.UID(o.req.UID), Reason: reason}
	}
	return id, nil
}

// answer waits for the answer to what was sent.
func (p *proxy) answer(patience time.Duration) (reason string, err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case reason = <-p.link.answers:
		return reason, nil
	case <-timer.C:
		return "", fmt.Errorf("%w (%s)", ErrTimeout, patience)
	case <-p.ctx.Done():
	}
	select {
	case reason = <-p.link.answers: // the last thing that it said
		return reason, nil
	default:
		return "", context.Cause(p.ctx)
	}
}

// withFile calls use with the descriptor of an open file, which stays open meanwhile. Its error is a [*closedError] if the
// file is closed, or what use returns.
func withFile(file syscall.Conn, use func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return &closedError{err}
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = use(int(fd)) }); err != nil {
		return &closedError{fmt.Errorf("%w: %w", os.ErrClosed, err)} // the only reason there is
	}
	return failed
}

func identify(fd int) (netnsexec.ID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return netnsexec.ID{}, &closedError{err}
	}
	return netnsexec.ID{Dev: uint64(st.Dev), Ino: uint64(st.Ino)}, nil //nolint:unconvert // the types differ between architectures
}
