package zds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy"
)

// proxy is a connected proxy with its hello.
type proxy struct {
	s     *Server
	ctx   context.Context //nolint:containedctx // the connection's
	link  *link
	cred  unix.Ucred
	since time.Time
	wake  chan struct{} // something is in the queue; room for one

	// s.mu guards the rest.
	queue queue
	gone  bool
	told  bool                    // the snapshot
	has   map[string]netnsexec.ID // the pods it accepted, by UID
	// removed are the pods that were removed while a Snapshot is being taken for this proxy, in addition to its first.
	removed    map[string]bool
	collecting int
}

func (p *proxy) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// serve speaks with one that has connected, until the connection ends.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	cred, err := peer(conn, s.opts.UIDs)
	if err != nil {
		s.opts.Log.Warn("a process that connected as proxy was turned away", "err", err)
		return
	}
	link, err := newLink(conn)
	if err == nil {
		err = link.hello(s.opts.AckTimeout)
	}
	if err != nil {
		s.opts.Log.Warn("a process that connected as proxy does not speak its protocol", "pid", cred.Pid, "err", err)
		return
	}
	p := &proxy{
		s: s, ctx: ctx, link: link, cred: cred, since: time.Now(), wake: make(chan struct{}, 1), has: map[string]netnsexec.ID{},
	}
	if !s.join(p) {
		s.opts.Log.Warn("a proxy was turned away: there are enough", "pid", cred.Pid, "connected", maxProxies)
		return
	}
	s.opts.Log.Info("a proxy has connected", "pid", cred.Pid)
	s.opts.OnChange()
	s.running.Go(func() { cancel(link.watch()) })
	s.running.Go(func() {
		<-ctx.Done()
		s.leave(p, context.Cause(ctx))
	})
	cancel(p.talk())
}

func (s *Server) join(p *proxy) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.proxies) >= maxProxies {
		return false
	}
	s.proxies = append(s.proxies, p)
	return true
}

// leave forgets a proxy. What it was to be told ends with errGone.
func (s *Server) leave(p *proxy, why error) {
	s.mu.Lock()
	at := slices.Index(s.proxies, p)
	s.proxies = slices.Delete(s.proxies, at, at+1)
	p.gone = true
	p.queue.fail(errGone)
	var heir *proxy
	if at == len(s.proxies) && at > 0 {
		heir = s.proxies[at-1]
	}
	s.mu.Unlock()
	s.opts.Log.Info("a proxy is gone", "pid", p.cred.Pid, "why", reason(why))
	s.opts.OnChange()
	if heir != nil {
		heir.inherit()
	}
}

// reason puts the end of a connection into words.
func reason(why error) string {
	switch {
	case errors.Is(why, io.EOF), errors.Is(why, unix.ECONNRESET):
		return "it disconnected"
	case errors.Is(why, context.Canceled):
		return "the server ends"
	}
	return why.Error()
}

// talk tells the proxy the snapshot, and from then on each change. It returns why it ended.
func (p *proxy) talk() error {
	// The proxy is on the list already, so what changes while the snapshot is made is in its queue.
	workloads, err := p.s.opts.Snapshot(p.ctx)
	if err != nil {
		return fmt.Errorf("take the snapshot: %w", err)
	}
	ops := p.ops(workloads)
	sent, err := newOp(Request{Kind: SnapshotSent}, nil)
	if err != nil {
		return err
	}
	p.s.mu.Lock()
	if !p.gone {
		p.queue.begin(ops, sent)
	}
	p.s.mu.Unlock()
	for {
		p.s.mu.Lock()
		o := p.queue.next()
		p.s.mu.Unlock()
		if o == nil {
			select {
			case <-p.wake:
				continue
			case <-p.ctx.Done():
				return context.Cause(p.ctx)
			}
		}
		if err := p.tell(o); err != nil {
			return err
		}
	}
}

// ops makes the requests of a snapshot, each pod's once.
func (p *proxy) ops(workloads []nodeproxy.Workload) (ops []*op) {
	named := map[types.UID]bool{}
	for _, w := range workloads {
		if named[w.UID] {
			continue
		}
		named[w.UID] = true
		request := addRequest(w)
		if w.NetNS == nil {
			request = Request{Kind: Keep, UID: string(w.UID)}
		}
		o, err := newOp(request, w.NetNS)
		if err != nil {
			p.refused(w.UID, err)
			continue
		}
		o.snapshot = true
		ops = append(ops, o)
	}
	return ops
}

func (p *proxy) refused(uid types.UID, err error) {
	p.s.opts.Log.Warn("the proxy does not have a pod of its snapshot", "pod", uid, "err", err)
	p.s.opts.Refused(uid, err)
}

// tell sends a request, waits for the answer, and ends the request. An error ends the connection.
func (p *proxy) tell(o *op) error {
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
	switch {
	case fatal:
	case o.req.Kind == SnapshotSent:
		p.told = true
	case o.req.Kind == Del:
		delete(p.has, o.req.UID)
		err = nil // that it has the pod no longer is all that was asked
	case o.req.Kind == Add:
		p.settle(o, id, err)
	}
	o.end(err) // with the lock: who gives up waiting sees whether it is too late for that
	p.s.mu.Unlock()
	if o.req.Kind == SnapshotSent && !fatal {
		p.s.opts.Log.Info("a proxy was told the snapshot", "pid", p.cred.Pid)
		p.s.opts.OnChange()
	}
	if fatal {
		return err
	}
	return nil
}

// settle does what an answered Add leaves to do. s.mu is held.
func (p *proxy) settle(o *op, id netnsexec.ID, err error) {
	uid := o.req.UID
	o.had = p.has[uid] == id // also of a namespace that is closed: nothing was sent then
	if err == nil {
		p.has[uid] = id
	}
	switch {
	case id == (netnsexec.ID{}):
		if _, has := p.has[uid]; o.snapshot && !has && !p.told && p.queue.find(uid) < 0 {
			// Whoever closed the namespace has more to say about the pod. Until then it stays with the proxy, if it is there.
			if keep, err := newOp(Request{Kind: Keep, UID: uid}, nil); err == nil {
				keep.snapshot = true
				p.queue.ops = slices.Insert(p.queue.ops, 0, keep)
			}
		}
	case o.had || o.snapshot || err == nil && !o.abandoned:
	default:
		p.giveBack(uid) // refused, a proxy may try again by itself; abandoned, nobody knows that it has the pod
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

// inherit hands the proxy that is now the newest what only the one before it had. s.mu is not held.
func (p *proxy) inherit() {
	if p.ctx.Err() != nil { // the server ends
		return
	}
	p.s.mu.Lock()
	if p.collecting == 0 {
		p.removed = map[string]bool{}
	}
	p.collecting++
	p.s.mu.Unlock()

	workloads, err := p.s.opts.Snapshot(p.ctx)
	if err != nil && p.ctx.Err() == nil {
		p.s.opts.Log.Error("the proxy that is left may lack pods", "pid", p.cred.Pid, "err", err)
	}
	ops := p.ops(workloads)

	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, o := range ops {
		if o.req.Kind != Add || p.gone || p.removed[o.req.UID] || p.queue.find(o.req.UID) >= 0 {
			continue
		}
		var id netnsexec.ID
		if err := withFile(o.netns, func(fd int) (err error) {
			id, err = identify(fd)
			return err
		}); err == nil && p.has[o.req.UID] != id {
			p.queue.ops = append(p.queue.ops, o)
		}
	}
	p.collecting--
	p.wakeUp()
}
