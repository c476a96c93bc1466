package zds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/sockfile"
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
	has   map[string]netnsexec.ID // the pods it accepted, by UID; the zero ID is of one that it was to keep
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
