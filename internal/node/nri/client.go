package nri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/meshcni/meshcni/internal/node/protofields"
	"github.com/meshcni/meshcni/internal/text/truncate"
)

// Network tells whose network a pod has.
type Network int

// The networks.
const (
	NetworkUnknown Network = iota // the runtime does not say
	NetworkHost                   // the node's
	NetworkOwn                    // its own
)

// Pod is a pod's sandbox as the runtime knows it.
type Pod struct {
	ID                   string // the sandbox's
	Namespace, Name, UID string
	Handler              string // of the runtime; empty: the default one
	Annotations          map[string]string
	Network              Network
	NetNS                string       // the path of its namespace as the runtime's other plugins get it; empty: it is not said
	Addrs                []netip.Addr // as far as they are said
	Ran                  bool         // a container of it may have run already; only what Synchronize gets has it
}

// Handler is told what happens. Its methods are called concurrently. The contexts of what the runtime waits for end before its patience does, and with
// them what is heard of an answer: a container is refused then.
type Handler interface {
	// Synchronize has all pods that the runtime had at a time since then, after a connection. The runtime does not wait for it.
	Synchronize(ctx context.Context, pods []Pod, since time.Time)
	// RunPodSandbox is called for a pod that has its network, and no container. It cannot refuse: some runtimes do not come up again then.
	RunPodSandbox(ctx context.Context, p Pod)
	// CreateContainer is called before a container is made, if the client's Gate is true. An error keeps it from being made, and its text is told
	// to people, as far as maxReason allows.
	CreateContainer(ctx context.Context, p Pod) error
	// RemovePodSandbox is called once the pod's sandbox is gone.
	RemovePodSandbox(p Pod)
}

const (
	// maxReason bounds a refusal, in bytes.
	maxReason = 1 << 10
	// defaultTimeout is the runtime's patience where it does not say.
	defaultTimeout = 2 * time.Second
	// reserve is what an answer has of the runtime's patience for its way, at least: one that is late ends the connection, and its reason is heard by nobody.
	reserve = 100 * time.Millisecond
	// registerTimeout bounds the time from a connection to its first Synchronize, and frameTimeout that to the rest of a message.
	registerTimeout = 10 * time.Second
	frameTimeout    = 5 * time.Second
	// The pause before another connection doubles.
	minPause = 100 * time.Millisecond
	maxPause = time.Second
	// maxRequests bounds the requests that are dealt with at a time, those too that were answered without their handler. The runtimes that are known ask one
	// at a time.
	maxRequests = 64
	// maxPods and maxContainers bound what one Synchronize may name.
	maxPods, maxContainers = 10_000, 100_000
)

// Options configure a [Client]. Socket, Name, Index and Handler are required.
type Options struct {
	Socket      string
	Conn        net.Conn // of a process that the runtime has started: the only connection, in place of those to Socket
	Name, Index string   // Index has two digits: the plugins' order
	Handler     Handler
	Gate        bool         // CreateContainer is wanted
	Log         *slog.Logger // nil: discarded
	// OnRequest is told of each request about a pod that has been answered: its method, and ok, refused or late. Nil: nobody is told.
	OnRequest func(method, outcome string)
}

// State describes the connection.
type State struct {
	Connected bool
	// Err is why there is no connection, or why the last one ended. Nil: there has been none yet, or it is well.
	Err error
	// Runtime and Version are the runtime's name and version, once it has said them. Timeout is its patience with a request.
	Runtime, Version string
	Timeout          time.Duration
	// Gate is the request at which containers are refused; empty: none.
	Gate string
	// Late is the number of requests that were answered after the runtime's patience had ended.
	Late     int
	LastLate time.Time
	// Refused: the runtime ended the connection when it was told what is wanted of it.
	Refused bool
}

// Client keeps a connection to the runtime. Make one with [New].
type Client struct {
	o     Options
	mu    sync.Mutex
	state State
	// older are the runtimes, by name and version, that ended the connection when validation was asked for.
	older map[string]bool
	// working are the requests that are being answered. One that does not end keeps no other connection from being made.
	working sync.WaitGroup
}

// New returns a client, which does nothing before [Client.Run].
func New(o Options) *Client {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnRequest == nil {
		o.OnRequest = func(string, string) {}
	}
	return &Client{o: o, older: map[string]bool{}}
}

// State returns the present state.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *Client) change(f func(*State)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state)
}

// Run connects, again and again, until the context ends. With Options.Conn it returns why that has ended.
func (c *Client) Run(ctx context.Context) error {
	defer c.working.Wait()
	patient := wait.Backoff{Duration: minPause, Factor: 2, Jitter: 0.2, Steps: 10, Cap: maxPause}
	for pause := patient; ; {
		s := &session{Client: c, begun: time.Now()}
		err := s.run(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller ended it
		}
		if c.o.Conn != nil {
			return err
		}
		if s.synchronized {
			pause = patient
		}
		was := c.State()
		c.change(func(now *State) {
			now.Connected, now.Err = false, err
			now.Refused = s.configured && !s.synchronized && !s.again
		})
		if was.Connected || was.Err == nil || was.Err.Error() != err.Error() {
			c.o.Log.Warn("no connection to the container runtime's hook", "socket", c.o.Socket, "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.Step()):
		}
	}
}

// session is one connection.
type session struct {
	*Client
	conn  net.Conn
	begun time.Time

	writing sync.Mutex

	runtime      configuration
	configured   bool // the runtime has been told what is wanted
	synchronized bool // and has taken it
	again        bool // it may take less, which the next session asks for

	gathered   []Pod // by Synchronize, until it is whole
	containers []container
}

func (s *session) run(ctx context.Context) error {
	if s.o.Conn != nil {
		return s.on(ctx, s.o.Conn)
	}
	conn, err := (&net.Dialer{Timeout: frameTimeout}).DialContext(ctx, "unix", s.o.Socket)
	if err != nil {
		return fmt.Errorf("connect to the container runtime: %w", err)
	}
	return s.on(ctx, conn)
}

// on runs the session on a connection, which it closes.
func (s *session) on(ctx context.Context, conn net.Conn) error {
	s.conn = conn
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer func() { cancel(); stop(); _ = s.conn.Close() }()
	register := protofields.AppendString(protofields.AppendString(nil, 1, s.o.Name), 2, s.o.Index)
	asked := request{service: "nri.pkg.api.v1alpha1.Runtime", method: "RegisterPlugin", payload: register, timeout: registerTimeout}
	if err := s.write(message{stream: runtimeStream, id: 1, typ: requestType, body: asked.encode()}); err != nil {
		return fmt.Errorf("register with the container runtime: %w", err)
	}
	unregistered := time.AfterFunc(registerTimeout, func() { _ = s.conn.Close() })
	defer unregistered.Stop()
	slots := make(chan struct{}, maxRequests)
	for in := (&reader{conn: s.conn, begun: frameTimeout}); ; {
		_ = s.conn.SetReadDeadline(time.Time{})
		all, err := in.next()
		if err != nil {
			return s.ended(err)
		}
		for _, m := range all {
			switch {
			case m.stream == runtimeStream && m.typ == responseType:
				refused, err := decodeResponse(m.body)
				if err != nil || refused != "" {
					return fmt.Errorf("register with the container runtime: %w", cmp.Or(err, errors.New(truncate.Text(refused, maxReason))))
				}
			case m.stream == pluginStream && m.typ == requestType:
				q, err := decodeRequest(m.body)
				if err != nil {
					return fmt.Errorf("a request of the container runtime: %w", err)
				}
				if after, ok, err := s.opening(m.id, q); ok {
					if err != nil {
						return err
					}
					if s.synchronized {
						unregistered.Stop()
					}
					if after != nil {
						s.working.Go(func() { after(ctx) })
					}
					continue
				}
				s.working.Go(func() { s.serve(ctx, m.id, q, slots) })
			}
		}
	}
}

// ended returns the reason for the connection's end. A runtime gives none: one that does not know an event ends it once it is told which are wanted.
func (s *session) ended(err error) error {
	key := s.runtime.name + " " + s.runtime.version
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.synchronized:
		if errors.Is(err, io.EOF) {
			return errors.New("the container runtime ended the connection")
		}
		return fmt.Errorf("the connection to the container runtime: %w", err)
	case s.configured && s.state.Gate == validation && !s.older[key]:
		s.older[key], s.again = true, true
		return fmt.Errorf("%s does not know the request %s", key, validation)
	case s.configured:
		return fmt.Errorf("%s ended the connection when it was told which requests are wanted: %w", key, err)
	case time.Since(s.begun) >= registerTimeout:
		return fmt.Errorf("the container runtime did not answer within %s", registerTimeout)
	}
	return fmt.Errorf("the connection to the container runtime, before it was in use: %w", err)
}

func (s *session) write(m message) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(frameTimeout))
	_, err := s.conn.Write(encode(m))
	return err
}

// answer answers a request. An error of that ends the connection, which the reader sees.
func (s *session) answer(id uint32, payload, refusal []byte) {
	b := refusal
	if refusal == nil {
		b = protofields.AppendMessage(nil, 2, payload)
	}
	if err := s.write(message{stream: pluginStream, id: id, typ: responseType, body: b}); err != nil {
		_ = s.conn.Close()
	}
}

const (
	validation = "ValidateContainerAdjustment"
	creation   = "CreateContainer"

	eventRunPodSandbox    = 1
	eventRemovePodSandbox = 3
	eventCreateContainer  = 4
	eventValidation       = 14
)

func bit(event int) uint64 { return 1 << (event - 1) }

// opening answers what begins a connection, in the order in which it comes. After is what to do then, beside all else.
func (s *session) opening(id uint32, q request) (after func(context.Context), ok bool, err error) {
	switch q.method {
	case "Configure":
		if s.runtime, err = decodeConfigure(q.payload); err != nil {
			return nil, true, fmt.Errorf("%s: %w", q.method, err)
		}
		events, gate := bit(eventRunPodSandbox)|bit(eventRemovePodSandbox), ""
		if s.o.Gate {
			s.mu.Lock()
			older := s.older[s.runtime.name+" "+s.runtime.version]
			s.mu.Unlock()
			gate = creation
			if !older && s.runtime.validates() {
				gate = validation
				events |= bit(eventValidation)
			} else {
				events |= bit(eventCreateContainer)
			}
		}
		s.change(func(now *State) {
			now.Runtime, now.Version, now.Gate = truncate.Text(s.runtime.name, 100), truncate.Text(s.runtime.version, 100), gate
			now.Timeout = cmp.Or(s.runtime.timeout, defaultTimeout)
		})
		s.configured = true
		s.answer(id, protofields.AppendVarint(nil, 2, events), nil)
		return nil, true, nil
	case "Synchronize":
		in, err := numbers{event: -1, pod: 1, container: 2, more: 3}.decode(q.payload)
		if err != nil {
			return nil, true, fmt.Errorf("%s: %w", q.method, err)
		}
		s.gathered, s.containers = append(s.gathered, in.pods...), append(s.containers, in.containers...)
		if len(s.gathered) > maxPods || len(s.containers) > maxContainers {
			return nil, true, fmt.Errorf("%s: more than %d pods or %d containers", q.method, maxPods, maxContainers)
		}
		if in.more {
			s.answer(id, protofields.AppendVarint(nil, 2, 1), nil)
			return nil, true, nil
		}
		ran := map[string]bool{}
		for _, c := range s.containers {
			ran[c.pod] = ran[c.pod] || c.state != stateCreated
		}
		pods := s.gathered
		for i := range pods {
			pods[i].Ran = ran[pods[i].ID]
		}
		s.gathered, s.containers, s.synchronized = nil, nil, true
		s.answer(id, nil, nil)
		s.change(func(now *State) { now.Connected, now.Err, now.Refused = true, nil, false })
		s.o.Log.Info("connected to the container runtime's hook", "runtime", s.runtime.name, "version", s.runtime.version, "pods", len(pods))
		return func(ctx context.Context) { s.o.Handler.Synchronize(ctx, pods, s.begun) }, true, nil
	}
	return nil, false, nil
}

// validates reports whether the runtime knows the request at which a plugin that does not answer counts as refusing.
func (c configuration) validates() bool {
	if strings.HasPrefix(c.nri, "v") { // else it does not know its own
		return atLeast(c.nri, 0, 10)
	}
	return strings.Contains(c.name, "containerd") && atLeast(c.version, 2, 2)
}

// atLeast compares a version such as v2.2.0-rc.1. What is none is less.
func atLeast(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	second, _, _ := strings.Cut(rest, ".")
	a, err := strconv.Atoi(first)
	b, wrong := strconv.Atoi(second)
	return err == nil && wrong == nil && (a > major || a == major && b >= minor)
}

// bound is the part of the runtime's patience that a handler has: nine tenths, and less if the rest would be less than [reserve].
func bound(patience time.Duration) time.Duration {
	return max(patience/2, min(patience*9/10, patience-reserve))
}

// errOverdue is the answer about a container whose handler has none.
var errOverdue = errors.New("the plugin was not done with the pod within the container runtime's patience; the container is made once it is")

// serve answers what the runtime asks about one pod. A handler that does not end has a slot until it does, and is not waited for.
func (s *session) serve(ctx context.Context, id uint32, q request, slots chan struct{}) {
	began, timeout := time.Now(), s.State().Timeout
	if q.timeout > 0 {
		timeout = min(timeout, q.timeout)
	}
	type answer struct{ payload, refused []byte }
	answers := make(chan answer, 1)
	ctx, cancel := context.WithTimeout(ctx, bound(timeout))
	select {
	case slots <- struct{}{}:
		s.working.Go(func() {
			defer func() { cancel(); <-slots }()
			payload, refused := s.handle(ctx, q)
			answers <- answer{payload, refused}
		})
	default:
		cancel()
	}
	var a answer
	select {
	case a = <-answers:
	case <-ctx.Done():
		select {
		case a = <-answers: // it ends with its context
		case <-time.After((timeout - bound(timeout)) / 2):
			if s.gates(q.method) {
				a.payload, a.refused = refuse(q.method, errOverdue)
			}
			s.o.Log.Warn("a request of the container runtime is answered before it is done", "method", truncate.Text(q.method, 100))
		}
	}
	outcome := "ok"
	switch {
	case time.Since(began) > timeout:
		outcome = "late"
		s.change(func(now *State) { now.Late, now.LastLate = now.Late+1, time.Now() })
	case a.refused != nil || q.method == validation && a.payload != nil:
		outcome = "refused"
	}
	s.answer(id, a.payload, a.refused)
	if slices.Contains(methods, q.method) { // another name would be the runtime's choice
		s.o.OnRequest(q.method, outcome)
	}
}

// gates reports whether a request is about a container that may be refused.
func (s *session) gates(method string) bool {
	return s.o.Gate && (method == validation || method == creation)
}

// refuse is the answer to such a request that keeps the container from being made.
func refuse(method string, err error) (payload, refused []byte) {
	reason := truncate.Text(strings.ToValidUTF8(err.Error(), "?"), maxReason)
	if method == validation {
		return protofields.AppendString(protofields.AppendVarint(nil, 1, 1), 2, cmp.Or(reason, "refused")), nil
	}
	return nil, refusal(codeUnknown, reason)
}

// methods are those that are answered.
var methods = []string{"StateChange", "RunPodSandbox", "StopPodSandbox", "RemovePodSandbox", "Shutdown", creation, validation}

// handle returns the answer to a request.
func (s *session) handle(ctx context.Context, q request) (payload, refused []byte) {
	n := numbers{event: -1, pod: 1, container: 2, more: -1}
	if q.method == "StateChange" {
		n = numbers{event: 1, pod: 2, container: 3, more: -1}
	}
	gates := s.gates(q.method)
	in, err := n.decode(q.payload)
	if err == nil && gates && len(in.pods) != 1 {
		err = errors.New("it names no pod")
	}
	if err != nil {
		s.o.Log.Warn("a request of the container runtime cannot be read", "method", truncate.Text(q.method, 100), "error", err.Error())
	}
	event := in.event
	switch q.method {
	case "RunPodSandbox":
		event = eventRunPodSandbox
	case "RemovePodSandbox":
		event = eventRemovePodSandbox
	}
	switch {
	case gates:
		if err == nil {
			err = s.o.Handler.CreateContainer(ctx, in.pods[0])
		}
		if err == nil {
			return nil, nil
		}
		return refuse(q.method, err)
	case err != nil && event != eventRunPodSandbox:
		return nil, refusal(codeInvalid, "the request cannot be read")
	case err != nil || len(in.pods) != 1: // never refused; its containers are, where that is asked for
	case event == eventRunPodSandbox:
		s.o.Handler.RunPodSandbox(ctx, in.pods[0])
	case event == eventRemovePodSandbox:
		s.o.Handler.RemovePodSandbox(in.pods[0])
	}
	if slices.Contains(methods, q.method) {
		return nil, nil
	}
	return nil, refusal(codeUnimplemented, "unimplemented")
}
