package zds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/files/sockfile"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy"
)

// proxy is a connected proxy with its hello.
type proxy struct {
	s     *Server
	ctx   context.Context //nolint:containedctx // the connection's
	link  *link
	cred  unix.Ucred
	group string                  // whom it counts for, see groupOf
	drop  context.CancelCauseFunc // ends the connection
	since time.Time
	wake  chan struct{} // something is in the queue; room for one

	// s.mu guards the rest.
	queue   queue
	sending *op // that was taken from the queue, and is not answered; nil: none
	gone    bool
	told    bool                    // the snapshot
	has     map[string]netnsexec.ID // the pods it accepted, by UID; the zero ID is of one that it was to keep
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
	cred, err := sockfile.Peer(conn)
	if err == nil && !slices.Contains(s.opts.UIDs, cred.Uid) {
		err = fmt.Errorf("process %d runs as UID %d, which is not allowed (%v is)", cred.Pid, cred.Uid, s.opts.UIDs)
	}
	if err != nil {
		s.log("turned away", cred.Pid, slog.LevelWarn, "a process that connected as proxy was turned away", "err", err)
		return
	}
	group := s.opts.group(cred.Pid)
	link, err := newLink(conn)
	if err == nil {
		s.crowd.enter(conn, group)
		if !s.crowd.turn(ctx, group, s.opts.AckTimeout) {
			err = errors.New("it connects too often")
		} else {
			err = link.hello(s.opts.AckTimeout)
		}
		s.crowd.leave(conn)
	}
	if err != nil {
		s.log(group, cred.Pid, slog.LevelWarn, "a process that connected as proxy does not speak its protocol", "err", err)
		return
	}
	p := &proxy{
		s: s, ctx: ctx, link: link, cred: cred, group: group, drop: cancel, since: time.Now(), wake: make(chan struct{}, 1),
		has: map[string]netnsexec.ID{},
	}
	if !s.join(p) {
		s.log(group, cred.Pid, slog.LevelWarn, "a proxy was turned away: there are enough", "connected", maxProxies)
		return
	}
	s.log(group, cred.Pid, slog.LevelInfo, "a proxy has connected")
	s.crowd.changed(s.opts.OnChange)
	s.running.Go(func() { cancel(link.watch()) })
	s.running.Go(func() {
		<-ctx.Done()
		s.leave(p, context.Cause(ctx))
	})
	cancel(p.talk())
}

// log logs a line about a process, unless there were too many about its group.
func (s *Server) log(group string, pid int32, level slog.Level, text string, args ...any) {
	ok, unlogged := s.crowd.mayLog(group)
	if !ok {
		return
	}
	if unlogged > 0 {
		args = append(args, "left_out", unlogged)
	}
	s.opts.Log.Log(context.Background(), level, text, append([]any{"pid", pid}, args...)...)
}

// join counts a proxy among those that are served. If there are too many, one of another group that crowds makes room for it. It
// returns false if there is none.
func (s *Server) join(p *proxy) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.proxies) >= maxProxies {
		groups := make([]string, 0, maxProxies+1)
		for _, served := range s.proxies {
			groups = append(groups, served.group)
		}
		oldest, counts := crowding(append(groups, p.group))
		if most := counts[groups[oldest]]; most <= maxExchange || counts[p.group] == most {
			return false
		}
		victim := s.proxies[oldest]
		s.forget(oldest) // the group has a newer one, so nothing is to be inherited
		victim.drop(errCrowd)
	}
	s.proxies = append(s.proxies, p)
	return true
}

// forget takes a proxy from the list. What it was to be told ends with errGone. s.mu is held.
func (s *Server) forget(at int) {
	p := s.proxies[at]
	s.proxies = slices.Delete(s.proxies, at, at+1)
	p.gone = true
	p.queue.fail(errGone)
}

// leave forgets a proxy, unless it was dropped.
func (s *Server) leave(p *proxy, why error) {
	var heir *proxy
	s.mu.Lock()
	if at := slices.Index(s.proxies, p); at >= 0 {
		s.forget(at)
		if at == len(s.proxies) && at > 0 {
			heir = s.proxies[at-1]
		}
	}
	s.mu.Unlock()
	s.log(p.group, p.cred.Pid, slog.LevelInfo, "a proxy is gone", "why", reason(why))
	s.crowd.changed(s.opts.OnChange)
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
		p.sending = o
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
	p.s.log(p.group, p.cred.Pid, slog.LevelWarn, "the proxy does not have a pod of its snapshot", "pod", uid, "err", err)
	p.s.opts.Refused(uid, err)
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
