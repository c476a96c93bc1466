package nodeproxytest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// proxy is one that runs in this process.
type proxy struct {
	opts   Options
	cancel context.CancelFunc // the agent's connection
	done   chan struct{}
	err    error // once done is closed
	mesh   mesh

	mu     sync.Mutex
	faults Faults
	state  State // without Pods
	pods   map[types.UID]*pod
	named  map[types.UID]bool // by the snapshot that is on its way; nil: it is complete, or none has begun
}

func newProxy(o Options) *proxy {
	o = o.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	p := &proxy{
		opts: o, cancel: cancel, done: make(chan struct{}), faults: o.Faults, pods: map[types.UID]*pod{},
	}
	p.mesh.set(o.Faults.Unknown)
	go p.run(ctx)
	return p
}

// exitCode waits for the proxy's end.
func (p *proxy) exitCode() int {
	<-p.done
	if p.err != nil {
		return 1
	}
	return 0
}

func (p *proxy) setFaults(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = f
	p.mesh.set(f.Unknown)
}

func (p *proxy) currentState() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.state
	s.PID = os.Getpid()
	s.Pods = make(map[types.UID]Pod, len(p.pods))
	s.Requests = slices.Clone(s.Requests)
	s.Ready = s.Connected && p.named == nil && s.Snapshots > 0
	for uid, pod := range p.pods {
		seen := pod.seen()
		s.Ready = s.Ready && seen.Pending == ""
		s.Pods[uid] = seen
	}
	return s
}

// stop ends the proxy as SIGTERM does: it leaves the agent, closes all listeners, and returns when the last connection has
// ended, or cuts those that are left after Options.Drain.
func (p *proxy) stop() {
	p.leave()
	end := time.NewTimer(p.opts.Drain)
	defer end.Stop()
	pods := p.take()
	for _, pod := range pods {
		pod.deafen()
	}
	for _, pod := range pods {
		select {
		case <-pod.idle():
		case <-end.C:
			end.Reset(0)
		}
		pod.cut()
	}
}

// kill ends the proxy as SIGKILL does: listeners and connections are cut.
func (p *proxy) kill() {
	p.leave()
	for _, pod := range p.take() {
		pod.cut()
	}
}

func (p *proxy) terminate() { go p.stop() }

func (p *proxy) leave() {
	p.cancel()
	<-p.done
}

// take leaves the proxy without pods.
func (p *proxy) take() (pods []*pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, pod := range p.pods {
		pods = append(pods, pod)
		delete(p.pods, uid)
	}
	return pods
}

// firstBackoff is ztunnel's pause before it connects again.
const firstBackoff = 20 * time.Millisecond

func (p *proxy) run(ctx context.Context) {
	defer close(p.done)
	defer p.cancel()
	go p.retry(ctx)
	first := wait.Backoff{Duration: min(firstBackoff, p.opts.MaxBackoff), Factor: 2, Steps: math.MaxInt, Cap: p.opts.MaxBackoff}
	for backoff := first; ; {
		greeted, err := p.connect(ctx)
		if errors.Is(err, errExit) {
			p.opts.Log.Error("exit", "err", err)
			p.err = err
			for _, pod := range p.take() {
				pod.cut()
			}
			return
		}
		if greeted {
			backoff = first
		}
		pause := time.NewTimer(backoff.Step())
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// connect serves one connection until it ends.
func (p *proxy) connect(ctx context.Context) (greeted bool, err error) {
	client, err := zds.Dial(ctx, p.opts.Socket)
	if err != nil {
		return false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer func() {
		stop()
		_ = client.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.state.Connected, p.named = false, nil
		for uid, pod := range p.pods { // what could not listen is forgotten
			if pod.pending != nil {
				pod.cut()
				delete(p.pods, uid)
			}
		}
	}()
	p.mu.Lock()
	p.state.Connected, p.named = true, map[types.UID]bool{}
	p.state.Connections++
	p.mu.Unlock()
	for {
		request, netns, err := client.Receive()
		if err != nil {
			p.opts.Log.Info("the agent is gone", "err", err)
			return true, err
		}
		p.opts.OnRequest(request)
		answer, exit := p.handle(request, netns)
		silent, delay := p.fault(&answer, &exit)
		if delay > 0 {
			select {
			case <-time.After(delay):
			case <-ctx.Done():
			}
		}
		p.opts.Log.Info(request.String(), "answer", answer, "silent", silent)
		if !silent {
			err = client.Ack(answer)
		}
		if exit != nil || err != nil {
			return true, errors.Join(exit, err)
		}
	}
}

// fault tells how the answer is spoilt.
func (p *proxy) fault(answer, exit *error) (silent bool, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.faults.ExitAfter > 0 {
		if p.faults.ExitAfter--; p.faults.ExitAfter == 0 {
			*exit = fmt.Errorf("%w: a fault", errExit)
			return true, 0
		}
	}
	return count(&p.faults.DropAcks), p.faults.Delay
}

// count takes one from what is left; a negative number never ends.
func count(left *int) bool {
	if *left > 0 {
		*left--
		return true
	}
	return *left < 0
}

// handle acts upon a request, and returns the answer, and whether the proxy is to exit after it. It owns the file.
func (p *proxy) handle(r zds.Request, netns *os.File) (refusal, exit error) {
	if netns != nil {
		defer func() { _ = netns.Close() }()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.Requests = append(p.state.Requests, r.String())
	uid := types.UID(r.UID)
	complete := p.named == nil
	fatal := func(why string) (error, error) {
		return errors.New(why), fmt.Errorf("%w: %s", errExit, why)
	}
	switch r.Kind {
	case zds.Add:
		if r.Info == nil {
			return fatal("Add without an identity")
		}
		if !complete {
			p.named[uid] = true
		}
		return p.add(uid, *r.Info, netns), nil
	case zds.Keep:
		if complete {
			return fatal("Keep after the snapshot")
		}
		p.named[uid] = true
	case zds.Del:
		if !complete {
			delete(p.named, uid)
			return nil, nil
		}
		p.drop(uid)
	case zds.SnapshotSent:
		if complete {
			return fatal("a second SnapshotSent")
		}
		for uid := range p.pods {
			if !p.named[uid] {
				p.drop(uid)
			}
		}
		p.named = nil
		p.state.Snapshots++
	}
	return nil, nil
}

// drop lets a pod go: all of its listeners and connections are closed at once. mu is held.
func (p *proxy) drop(uid types.UID) {
	if pod := p.pods[uid]; pod != nil {
		pod.drain()
		delete(p.pods, uid)
	}
}

// add listens in a pod. mu is held.
func (p *proxy) add(uid types.UID, info zds.Info, netns *os.File) error {
	if count(&p.faults.Nack) {
		return errors.New("a fault")
	}
	ns, err := netnsexec.FromFile(netns, netns.Name())
	if err != nil {
		return err
	}
	if old := p.pods[uid]; old != nil {
		if old.ns.ID() == ns.ID() && old.pending == nil {
			return ns.Close()
		}
		old.cut()
	}
	pod := newPod(p, uid, info, ns)
	p.pods[uid] = pod
	return pod.listen(p.faults.Deaf)
}

// retry tries to listen in the pods in which that has failed, again and again.
func (p *proxy) retry(ctx context.Context) {
	again := time.NewTicker(p.opts.Retry)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		p.mu.Lock()
		for _, pod := range p.pods {
			if pod.pending != nil {
				_ = pod.listen(p.faults.Deaf)
			}
		}
		p.mu.Unlock()
	}
}
