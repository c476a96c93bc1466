//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/program/serve"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/status"
)

const (
	// StartPatience bounds how long [AwaitStarted] waits: less than the probe's timeoutSeconds.
	StartPatience = 8 * time.Second
	// startMargin is the asker's further wait for the answer itself.
	startMargin = time.Second
	// patienceKey is the asker's patience in the request.
	patienceKey = "patience"
	// startGrace bounds the time in which an agent that has begun to act may not be ready yet before it counts as started all the same, once it has
	// told why: from then on its readiness is asked for.
	startGrace = 5 * time.Second
	// startLook is the interval at which that is looked at while somebody waits.
	startLook = 20 * time.Millisecond
	// askPatience bounds how long [Ask] waits for an answer: less than the probe's timeoutSeconds.
	askPatience = 4 * time.Second
	// maxStartAnswer bounds what is read of the answer, in bytes.
	maxStartAnswer = 4 << 10
)

// turn follows whether it is this agent's turn to act on the node: not before the agent that was there before lets go, and not after
// another one has begun.
type turn struct {
	mu    sync.Mutex
	acts  bool
	here  bool // the one that acts instead is in this network namespace, and is to have the addresses
	over  bool // it has been this agent's turn, and no longer is
	since time.Time
	news  chan struct{}
}

func newTurn() *turn { return &turn{news: make(chan struct{})} }

// set takes news from the installer.
func (t *turn) set(acts, here bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = !acts && (t.over || t.acts)
	t.acts, t.here, t.since = acts, here, time.Now()
	close(t.news)
	t.news = make(chan struct{})
}

// now returns the present state, and what is closed when it changes.
func (t *turn) now() (acts, yields bool, news <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acts, t.over && t.here, t.news
}

// ended reports whether another agent acts in place of this one, which has.
func (t *turn) ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// begun reports whether the agent acts, and since when.
func (t *turn) begun() (bool, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.acts, t.since
}

// first returns f, begun only once it is the agent's turn; what the agent that was there before does must not be done twice.
func (t *turn) first(ctx context.Context, f func(context.Context) error) error {
	for {
		acts, _, news := t.now()
		if acts {
			return f(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		}
	}
}

// served keeps what the agent serves on its addresses.
type served struct {
	turn    *turn
	options serve.Options

	mu   sync.Mutex
	open map[string]bool
}

// startServing serves until stop, but for the time in which another agent that acts instead needs the same addresses: the kubelet asks
// both agents there, and the answer has to be that of the one that acts.
func startServing(t *turn, o serve.Options) (s *served, stop func(), err error) {
	s = &served{turn: t, options: o, open: map[string]bool{}}
	s.options.OnServe = func(address string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open[address] = true
	}
	end, err := serve.Start(s.options)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.yield(ctx, end) })
	return s, func() { cancel(); running.Wait() }, nil
}

// yield stops serving while another agent needs the addresses. end stops what serves; nil: nothing does.
func (s *served) yield(ctx context.Context, end func()) {
	for {
		_, yields, news := s.turn.now()
		switch {
		case yields && end != nil:
			end()
			end = nil
			s.mu.Lock()
			clear(s.open)
			s.mu.Unlock()
		case !yields && end == nil:
			var err error
			if end, err = serve.Start(s.options); err != nil { // it was valid before
				s.options.Log.Error("cannot serve again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			if end != nil {
				end()
			}
			return
		case <-news:
		}
	}
}

// why returns which of these addresses this agent could not listen on; nil: none. Another program may answer there in its name.
func (s *served) why(addresses []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missing []string
	for _, address := range addresses {
		if !s.open[address] {
			missing = append(missing, address)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the agent cannot listen on %s, where another program may answer in its name", strings.Join(missing, " and "))
}

// News names the addresses that the agent cannot listen on although it acts.
func (s *served) News() []status.News {
	if s == nil {
		return nil
	}
	acts, since := s.turn.begun()
	if err := s.why(s.options.Addresses()); err != nil && acts && time.Since(since) > startGrace {
		return []status.News{news.New(status.KindNotice, news.AddressTaken, err.Error()+"; end that program, or choose another --health-address or --metrics-address")}
	}
	return nil
}

// startAnswerer answers whether this very agent has started, on a socket that no other agent's pod has.
type startAnswerer struct {
	turn   *turn
	served *served
	waits  func() error // why it does not act yet
	ready  func() error
	told   atomic.Bool // why it is not ready although it has started
}

// why returns why the agent has not started, or nil.
func (a *startAnswerer) why() error {
	acts, since := a.turn.begun()
	switch {
	case a.turn.ended():
		return nil
	case !acts:
		return a.waits()
	}
	// What answers at the address of its health is taken for it, by kubectl and by people.
	if err := a.served.why(a.served.options.HealthAddresses()); err != nil {
		return fmt.Errorf("%s: %w", news.AddressTaken, err)
	}
	if time.Since(since) > startGrace {
		// A startup probe that fails once has the reason in the pod's events, and restarts nothing.
		if err := a.ready(); err != nil && !a.told.Load() {
			return err
		}
		return nil
	}
	return a.ready()
}

// ServeHTTP answers once the agent has started, or patience has ended.
func (a *startAnswerer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	patience, err := time.ParseDuration(r.FormValue(patienceKey))
	if err != nil {
		patience = StartPatience
	}
	ctx, cancel := context.WithTimeout(r.Context(), min(patience, StartPatience))
	defer cancel()
	for {
		err := a.why()
		if err == nil {
			a.told.Store(true)
			visible.To(w).Printf("started\n")
			return
		}
		select {
		case <-ctx.Done():
			if acts, since := a.turn.begun(); acts && time.Since(since) > startGrace {
				a.told.Store(true)
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			for _, line := range visible.Lines(err) {
				visible.To(w).Printf("%s\n", line)
			}
			return
		case <-time.After(startLook):
		}
	}
}

// startSocket answers on the socket at path until stop: whether the agent has started, lives, and is ready. With an empty path it does nothing.
func startSocket(path string, a *startAnswerer, log *slog.Logger) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	if err := removeDeadSocket(path); err != nil { // of this container before it was started anew
		return nil, fmt.Errorf("remove the socket of an agent that has ended: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for who asks whether the agent has started: %w", err)
	}
	asked := http.NewServeMux()
	asked.Handle("/", a.served.options.Handler(false))
	asked.Handle("/{$}", a)
	s := &http.Server{Handler: asked, ReadHeaderTimeout: StartPatience, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	return func() {
		_ = s.Close() // which removes the socket
		<-ended       //nolint:errcheck // closing is why it ended
	}, nil
}

// startAnswering serves as startServing does, and answers on the socket whether the agent has started. waits returns why it does not act yet.
func startAnswering(t *turn, socket string, waits func() error, o serve.Options) (listening *served, stop func(), err error) {
	listening, end, err := startServing(t, o)
	if err != nil {
		return nil, nil, err
	}
	unasked, err := startSocket(socket, &startAnswerer{turn: t, served: listening, waits: waits, ready: o.Ready}, o.Log)
	if err != nil {
		end()
		return nil, nil, err
	}
	return listening, func() { unasked(); end() }, nil
}

// AwaitStarted waits until the agent behind [Config].StartSocket has begun its work on the node, for patience at most, which is at most
// StartPatience. The socket may not be there yet. The error says why the agent has not begun.
func AwaitStarted(ctx context.Context, path string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience+startMargin)
	defer cancel()
	for {
		answered, err := ask(ctx, path, "/?"+url.Values{patienceKey: {patience.String()}}.Encode())
		if err == nil || answered {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("ask the agent whether it has started: %w", err)
		case <-time.After(startLook):
		}
	}
}

// Ask asks the agent behind [Config].StartSocket at a path of its health, /healthz or /readyz, and nobody else, whoever has its port. The
// error has the agent's own words.
func Ask(ctx context.Context, socket, path string) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	answered, err := ask(ctx, socket, path)
	if err != nil && !answered {
		err = fmt.Errorf("ask the agent at its socket: %w", err)
	}
	return err
}

func ask(ctx context.Context, socket, path string) (answered bool, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return true, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxStartAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	return true, err
}
