package zds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/files/sockfile"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy"
)

// Server is the agent's half: it hands pods to the proxies that connect. It is safe for concurrent use. Make one with
// [Listen], and let it [Server.Run].
type Server struct {
	opts   Options
	socket *sockfile.Listener // Run's
	crowd  *crowd

	mu      sync.Mutex
	proxies []*proxy // with their hello, oldest first
	running sync.WaitGroup
}

var (
	_ nodeproxy.Proxy     = (*Server)(nil)
	_ nodeproxy.Accepting = (*Server)(nil)
)

// Listen makes the socket. Proxies that connect wait for [Server.Run].
func Listen(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("listen for proxies: %w", err)
	}
	socket, err := listen(ctx, o.Path)
	if err != nil {
		return nil, fmt.Errorf("listen for proxies: %w", err)
	}
	return &Server{opts: o, socket: socket, crowd: newCrowd()}, nil
}

// network is net's name for SOCK_SEQPACKET.
const network = "unixpacket"

// listen makes the socket, on which no more than backlog connections wait: net's own bound is thousands.
func listen(ctx context.Context, path string) (*sockfile.Listener, error) {
	socket, err := sockfile.Listen(ctx, network, path)
	if err != nil {
		return nil, err
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		errRaw := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), backlog) })
		err = errors.Join(errRaw, err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bound those that wait: %w", err), socket.Withdraw())
	}
	return socket, nil
}

// lookAtSocket is the interval at which Run checks that the socket's file is there, and leads to somebody. An agent whose socket was replaced
// removes the file by its name when it ends, as Istio's does: that is then ours. One that is killed leaves it behind.
const lookAtSocket = time.Second

// Run serves proxies until the context ends. Then it removes the socket, and after that closes all connections: a proxy connects again at
// once, and must not find the agent that ends. The proxies go on with the pods that they have. It returns nil, or why it could not go on.
// It is called once.
func (s *Server) Run(ctx context.Context) error {
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		cancel()
		s.running.Wait()
		s.crowd.end()
	}()
	s.accept(serving, s.socket)
	look := time.NewTicker(lookAtSocket)
	defer look.Stop()
	for told := false; ; {
		select {
		case <-ctx.Done():
			if err := s.socket.Withdraw(); err != nil {
				return fmt.Errorf("close the proxies' socket: %w", err)
			}
			return nil
		case <-look.C:
		}
		switch s.socket.Owner() {
		case sockfile.Another:
			if !told {
				s.opts.Log.Warn("another agent has replaced the proxies' socket", "path", s.opts.Path)
			}
			told = true
		case sockfile.Nobody:
			again, err := listen(ctx, s.opts.Path)
			if err != nil {
				s.opts.Log.Error("the proxies' socket is gone and cannot be made again", "err", err)
				continue
			}
			s.opts.Log.Warn("the proxies' socket was removed, or its owner killed, and is there again", "path", s.opts.Path)
			_ = s.socket.Close()
			s.socket, told = again, false
			s.accept(serving, again)
		}
	}
}

// accept serves those that connect to a socket, until it is closed.
func (s *Server) accept(ctx context.Context, from *sockfile.Listener) {
	s.running.Go(func() {
		for {
			conn, err := from.AcceptUnix()
			switch {
			case err == nil:
				s.crowd.admit(ctx)
				s.running.Go(func() { s.serve(ctx, conn) })
				continue
			case errors.Is(err, net.ErrClosed):
				return
			}
			s.opts.Log.Error("accept a proxy", "err", err) // such as no more files
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookAtSocket):
			}
		}
	})
}

// Add hands a pod to the proxy that connected last, and returns once it has accepted it. If that one disconnects before it
// answers, the one before it is asked; if another connects meanwhile, that one too.
//
// The error is [nodeproxy.ErrNoProxy], [ErrTimeout], [*NackError], that of a message that is too long, of a pod that was removed meanwhile or of a
// closed NetNS, or the context's.
// After each of them, a proxy that may have the pod is told to give it back; unless it had the pod, in the same namespace,
// before the call, or has it by its snapshot.
func (s *Server) Add(ctx context.Context, w nodeproxy.Workload) error {
	err := s.add(ctx, w)
	if err != nil {
		return fmt.Errorf("hand pod %s/%s over: %w", w.Namespace, w.Name, err)
	}
	return nil
}

func (s *Server) add(ctx context.Context, w nodeproxy.Workload) error {
	if w.NetNS == nil {
		return errors.New("it has no network namespace")
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var accepted []handed
	failed := nodeproxy.ErrNoProxy
	for range maxProxies {
		o, err := newOp(addRequest(w), w.NetNS)
		if err != nil {
			return err
		}
		newest := s.toNewest(o)
		if newest == nil {
			break
		}
		err = s.wait(ctx, newest, o)
		switch {
		case err == nil && s.isNewest(newest):
			return nil
		case err == nil: // it is about to be replaced
			accepted = append(accepted, handed{newest, o})
			continue
		case errors.Is(err, errGone):
			failed = fmt.Errorf("%w: %w", nodeproxy.ErrNoProxy, errGone)
			continue
		}
		failed = err
		break
	}
	s.takeBack(accepted)
	return failed
}

// handed is an Add that a proxy has accepted.
type handed struct {
	by *proxy
	o  *op
}

// toNewest queues an Add, and returns the proxy that is to take it; nil: there is none.
func (s *Server) toNewest(o *op) *proxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.proxies) == 0 {
		return nil
	}
	newest := s.proxies[len(s.proxies)-1]
	if sent := newest.sending; sent != nil && sent.req.Kind == Add && sent.req.UID == o.req.UID {
		o.follows = sent
	}
	newest.queue.add(o)
	newest.wakeUp()
	return newest
}

// isNewest reports whether no other proxy is to take new pods.
func (s *Server) isNewest(p *proxy) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.proxies) == 0 || p == s.proxies[len(s.proxies)-1]
}

// takeBack undoes what proxies have accepted, because the newest has not.
func (s *Server) takeBack(accepted []handed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range accepted {
		if !h.by.gone && !h.o.had {
			h.by.giveBack(h.o.req.UID)
			h.by.wakeUp()
		}
	}
}

func addRequest(w nodeproxy.Workload) Request {
	return Request{Kind: Add, UID: string(w.UID), Info: &Info{Name: w.Name, Namespace: w.Namespace, ServiceAccount: w.ServiceAccount}}
}

// Remove takes a pod back from all proxies, and returns once each has answered or is gone: one that connects again gets a
// snapshot. A proxy that has no such pod, or refuses, is no error. An Add of the pod that is not sent yet ends with an error.
// The error is [ErrTimeout], or the context's; all proxies are told nevertheless.
func (s *Server) Remove(ctx context.Context, uid types.UID) error {
	request := Request{Kind: Del, UID: string(uid)}
	if _, err := request.marshal(); err != nil {
		return fmt.Errorf("take pod back: %w", err)
	}
	s.mu.Lock()
	asked := slices.Clone(s.proxies)
	dels := make([]*op, len(asked))
	for i, p := range asked {
		o, _ := newOp(request, nil)
		dels[i] = p.queue.remove(o)
		if p.collecting > 0 {
			p.removed[request.UID] = true
		}
		p.wakeUp()
	}
	s.mu.Unlock()
	var failed []error
	for i, p := range asked {
		if err := s.wait(ctx, p, dels[i]); err != nil && !errors.Is(err, errGone) {
			failed = append(failed, fmt.Errorf("take pod %q back from the proxy with process id %d: %w", uid, p.cred.Pid, err))
		}
	}
	return errors.Join(failed...)
}

// wait returns how a request ended. When the context ends first, an Add that is not sent yet never is.
func (s *Server) wait(ctx context.Context, p *proxy, o *op) error {
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	}
	if o.req.Kind != Add {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-o.done: // just now
		return o.err
	default:
	}
	o.abandoned = true
	if !p.queue.drop(o) {
		s.mu.Unlock()
		<-o.sent // from here on the namespace's file is the caller's alone
		s.mu.Lock()
	}
	return context.Cause(ctx)
}

// Accepted reports whether the proxy that takes new pods has accepted this one with the namespace, since it connected. Then there is
// nothing to be told to it.
func (s *Server) Accepted(uid types.UID, ns netnsexec.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.proxies) == 0 {
		return false
	}
	id, has := s.proxies[len(s.proxies)-1].has[string(uid)]
	return has && id == ns
}

// Ready returns nil if a proxy is connected and was told the snapshot.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.proxies) == 0:
		return nodeproxy.ErrNoProxy
	case !slices.ContainsFunc(s.proxies, func(p *proxy) bool { return p.told }):
		return errors.New("a proxy is connected, and has not accepted the snapshot yet")
	}
	return nil
}

// Connected is a proxy with its hello.
type Connected struct {
	// PID and UID are its process's, as the kernel has them. PID is 0 for one in a PID namespace that is hidden from here.
	PID int
	UID uint32
	// Since is the time of its hello.
	Since time.Time
	// SnapshotSent: it was told the snapshot.
	SnapshotSent bool
	// Pods counts the pods that it has accepted, or was told to keep, and was not told to give back.
	Pods int
	// Waiting counts the requests that are still to be sent to it.
	Waiting int
}

// Proxies returns the connected proxies. The last one gets new pods.
func (s *Server) Proxies() []Connected {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Connected, len(s.proxies))
	for i, p := range s.proxies {
		all[i] = Connected{
			PID: int(p.cred.Pid), UID: p.cred.Uid, Since: p.since, SnapshotSent: p.told, Pods: len(p.has), Waiting: len(p.queue.ops),
		}
	}
	return all
}
