package agentsock_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// handler answers with its fields; a nil function answers ErrUnsupported.
type handler struct {
	pod     func(context.Context, status.ID) (agentsock.Pod, error)
	attach  func(context.Context, agentsock.Attachment, *os.File) (agentsock.Attached, error)
	detach  func(attachment.ID) error
	pods    func() ([]status.Pod, error)
	release func(agentsock.ReleaseOptions) ([]status.Pod, error)
	ready   error
}

func (h handler) Pod(ctx context.Context, id status.ID) (agentsock.Pod, error) {
	if h.pod == nil {
		return agentsock.Pod{}, agentsock.ErrUnsupported
	}
	return h.pod(ctx, id)
}

func (h handler) Attach(ctx context.Context, a agentsock.Attachment, ns *os.File) (agentsock.Attached, error) {
	if h.attach == nil {
		return agentsock.Attached{}, errors.Join(agentsock.ErrUnsupported, ns.Close())
	}
	return h.attach(ctx, a, ns)
}
func (h handler) Detach(_ context.Context, id attachment.ID) error { return h.detach(id) }
func (h handler) Pods(context.Context) ([]status.Pod, error)       { return h.pods() }
func (h handler) Release(_ context.Context, r agentsock.ReleaseOptions) ([]status.Pod, error) {
	return h.release(r)
}
func (h handler) Ready(context.Context) error { return h.ready }

func mine(uid uint32) bool { return int(uid) == os.Geteuid() }

// serve serves until the test ends, or stop is called.
func serve(t testing.TB, s *agentsock.Server) (c agentsock.Client, stop func()) {
	dir, err := os.MkdirTemp("", "sock") // a test's own directory may be too long for a socket's address
	require.NoError(t, err)
	path := filepath.Join(dir, agentsock.Name)
	stop = serveAt(t, s, path)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return agentsock.Client{Path: path}, stop
}

func serveAt(t testing.TB, s *agentsock.Server, path string) (stop func()) {
	if s.MayConnect == nil {
		s.MayConnect = mine
	}
	before := inode(path)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, path) }()
	for ino := before; ino == before; ino = inode(path) {
		select {
		case err := <-done:
			require.NoError(t, err)
			require.Fail(t, "it serves no more")
		default:
		}
	}
	over := false
	stop = func() {
		cancel()
		if !over {
			require.NoError(t, <-done)
		}
		over = true
	}
	t.Cleanup(stop)
	return stop
}

func inode(path string) uint64 {
	st, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return st.Sys().(*syscall.Stat_t).Ino
}

// unknown knows nothing.
var unknown = handler{
	pod: func(context.Context, status.ID) (agentsock.Pod, error) {
		return agentsock.Pod{}, agentsock.ErrUnknown
	},
	detach: func(attachment.ID) error { return nil },
	pods:   func() ([]status.Pod, error) { return nil, nil }, release: func(agentsock.ReleaseOptions) ([]status.Pod, error) { return nil, nil },
}

var cart = status.ID{Namespace: "shop", Name: "cart-0", UID: "u1"}

// TestRequests: each request arrives as it was sent, and its answer too.
func TestRequests(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-0", UID: "u1", Annotations: map[string]string{"a": "b\x00\xff"[:2]}},
		Spec:       corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "app"}}},
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"mesh": "on"}}}
	in := agentsock.Attachment{
		ID: attachment.ID{Network: "k8s", ContainerID: "c0ffee", IfName: "eth0"}, Pod: cart, Dialect: "ambient",
		NetNS: "/run/netns/x", Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::7")},
	}
	rules := redirect.Default().MustRuleset()
	out := agentsock.Attached{Backend: "nftables", Changed: true, Rules: rules, Skipped: []ruleset.Family{ruleset.IPv6}, Unusable: []string{"ip route"}}
	states := []status.Pod{{ID: cart, Dialect: "ambient", State: status.StateDrifted, Reason: "no-listeners", Since: time.Unix(1e9, 0).UTC(), Backend: "nftables"}}
	file, err := os.Open("doc.go")
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	var withNamespace atomic.Bool
	c, _ := serve(t, &agentsock.Server{Handler: handler{
		pod: func(_ context.Context, id status.ID) (agentsock.Pod, error) {
			assert.Equal(t, cart, id)
			if !withNamespace.Load() {
				return agentsock.Pod{Pod: pod}, nil
			}
			return agentsock.Pod{Pod: pod, Namespace: ns}, nil
		},
		attach: func(_ context.Context, a agentsock.Attachment, f *os.File) (agentsock.Attached, error) {
			assert.Equal(t, in, a)
			assert.Equal(t, "/run/netns/x", f.Name())
			got, err := f.Stat()
			assert.NoError(t, err)
			want, err := os.Stat("doc.go")
			assert.NoError(t, err)
			assert.True(t, os.SameFile(want, got))
			flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_GETFD, 0)
			assert.Zero(t, errno)
			assert.NotZero(t, flags&syscall.FD_CLOEXEC)
			return out, f.Close()
		},
		detach:  func(id attachment.ID) error { assert.Equal(t, in.ID, id); return nil },
		pods:    func() ([]status.Pod, error) { return states, nil },
		release: func(agentsock.ReleaseOptions) ([]status.Pod, error) { return nil, nil },
	}})
	for _, with := range []bool{true, false} {
		withNamespace.Store(with)
		got, err := c.Pod(t.Context(), cart)
		require.NoError(t, err)
		assert.Equal(t, pod, got.Pod)
		if with {
			assert.Equal(t, ns, got.Namespace)
		} else {
			assert.Nil(t, got.Namespace)
		}
	}
	got, err := c.Attach(t.Context(), in, file)
	require.NoError(t, err)
	assert.Equal(t, out.Rules.Family(ruleset.IPv4).String(), got.Rules.Family(ruleset.IPv4).String())
	got.Rules = out.Rules
	assert.Equal(t, out, got)
	_, err = file.Stat()
	require.NoError(t, err, "the client's file stays open")
	require.NoError(t, c.Detach(t.Context(), in.ID))
	all, err := c.Pods(t.Context())
	require.NoError(t, err)
	assert.Equal(t, states, all)
	left, err := c.Release(t.Context(), agentsock.ReleaseOptions{})
	require.NoError(t, err)
	assert.Empty(t, left)
	require.NoError(t, c.Ready(t.Context()))
}

// TestRelease: each way to release arrives as it was asked for.
func TestRelease(t *testing.T) {
	t.Parallel()
	arrived := make(chan agentsock.ReleaseOptions, 1)
	c, _ := serve(t, &agentsock.Server{MayConnect: mine, Handler: handler{release: func(r agentsock.ReleaseOptions) ([]status.Pod, error) {
		arrived <- r
		return nil, nil
	}}})
	for _, want := range []agentsock.ReleaseOptions{{}, {To: "istio-cni"}, {Undo: true}} {
		_, err := c.Release(t.Context(), want)
		require.NoError(t, err)
		assert.Equal(t, want, <-arrived)
	}
}

// TestErrors: what the handler says is wrong arrives as what it is.
func TestErrors(t *testing.T) {
	t.Parallel()
	var outcomes []string
	step := &agentsock.StepError{Step: "hand-over", Reason: "no-proxy", Err: errors.New("no proxy is connected")}
	s := &agentsock.Server{
		Handler: handler{
			attach: func(_ context.Context, _ agentsock.Attachment, f *os.File) (agentsock.Attached, error) {
				return agentsock.Attached{}, errors.Join(step, f.Close())
			},
			detach: func(attachment.ID) error { panic("ouch") },
			ready:  agentsock.ErrUnsupported,
			pod: func(context.Context, status.ID) (agentsock.Pod, error) {
				return agentsock.Pod{}, agentsock.ErrUnknown
			},
			pods: func() ([]status.Pod, error) { return nil, errors.New("out of pods") },
		},
	}
	seen := make(chan string, 10)
	s.OnRequest = func(r agentsock.RequestInfo) { seen <- r.Kind + " " + r.Outcome }
	c, _ := serve(t, s)
	file, err := os.Open("doc.go")
	require.NoError(t, err)
	defer func() { _ = file.Close() }()

	_, err = c.Pod(t.Context(), cart)
	require.ErrorIs(t, err, agentsock.ErrUnknown)
	_, err = c.Attach(t.Context(), agentsock.Attachment{ID: attachment.ID{Network: "n", ContainerID: "c", IfName: "e"}, Pod: cart}, file)
	var got *agentsock.StepError
	require.ErrorAs(t, err, &got)
	assert.Equal(t, []string{"hand-over", "no-proxy", "hand-over: no proxy is connected"}, []string{got.Step, string(got.Reason), got.Error()})
	_, err = c.Attach(t.Context(), agentsock.Attachment{}, file)
	require.ErrorContains(t, err, "containerID is missing")
	require.ErrorContains(t, c.Detach(t.Context(), attachment.ID{}), "internal error: ouch")
	require.ErrorIs(t, c.Ready(t.Context()), agentsock.ErrUnsupported)
	_, err = c.Pods(t.Context())
	require.ErrorContains(t, err, "out of pods")
	for range 6 {
		outcomes = append(outcomes, <-seen)
	}
	assert.ElementsMatch(t, []string{"pod unknown", "attach step", "attach malformed", "detach failed", "ready unsupported", "pods failed"}, outcomes)

	_, err = agentsock.Client{Path: c.Path + "-not"}.Pods(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestClientGoesAway: the handler's context ends with the client, and a client's with its own.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan error, 1)
	c, _ := serve(t, &agentsock.Server{Handler: handler{pod: func(ctx context.Context, _ status.ID) (agentsock.Pod, error) {
		close(began)
		<-ctx.Done()
		ended <- ctx.Err()
		return agentsock.Pod{}, ctx.Err()
	}}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	_, err := c.Pod(ctx, cart)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
}

// TestOwnership: the newest server has the path, and one that ends takes nobody else's socket away.
func TestOwnership(t *testing.T) {
	t.Parallel()
	named := func(name string) *agentsock.Server {
		return &agentsock.Server{Handler: handler{pods: func() ([]status.Pod, error) { return []status.Pod{{Detail: name}}, nil }}}
	}
	who := func(c agentsock.Client) string {
		pods, err := c.Pods(t.Context())
		if err != nil {
			return ""
		}
		return pods[0].Detail
	}
	c, stopFirst := serve(t, named("first"))
	st, err := os.Stat(c.Path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	stopSecond := serveAt(t, named("second"), c.Path)
	assert.Equal(t, "second", who(c))
	stopFirst()
	assert.Equal(t, "second", who(c))
	entries, err := os.ReadDir(filepath.Dir(c.Path))
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	stopSecond()
	_, err = os.Stat(c.Path)
	require.ErrorIs(t, err, os.ErrNotExist)

	// A killed one leaves its socket, at the path or half way to it.
	for _, left := range []string{c.Path, filepath.Join(filepath.Dir(c.Path), "."+agentsock.Name+".zz")} {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		require.NoError(t, err)
		require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: left}))
		require.NoError(t, syscall.Close(fd))
	}
	_ = serveAt(t, named("third"), c.Path)
	assert.Equal(t, "third", who(c))
	entries, err = os.ReadDir(filepath.Dir(c.Path))
	require.NoError(t, err)
	assert.Len(t, entries, 1)

	// It comes back after somebody has emptied the directory.
	require.NoError(t, os.Remove(c.Path))
	require.Eventually(t, func() bool { return who(c) == "third" }, netnstest.Patience, 10*time.Millisecond)
}

// TestRefusesOthers: a peer that may not connect learns nothing.
func TestRefusesOthers(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	c, _ := serve(t, &agentsock.Server{
		Handler: handler{}, MayConnect: func(uint32) bool { return false },
		OnRequest: func(r agentsock.RequestInfo) { seen <- r.Outcome },
	})
	_, err := c.Pods(t.Context())
	require.Error(t, err)
	assert.Equal(t, "refused", <-seen)
}

// TestBusy: one request too many is answered at once, and the others are not disturbed.
func TestBusy(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}), make(chan struct{})
	c, _ := serve(t, &agentsock.Server{MaxRequests: 1, Handler: handler{pods: func() ([]status.Pod, error) {
		close(began)
		<-end
		return nil, nil
	}}})
	first := make(chan error, 1)
	go func() {
		_, err := c.Pods(context.Background())
		first <- err
	}()
	<-began
	_, err := c.Pods(t.Context())
	require.ErrorIs(t, err, agentsock.ErrBusy)
	close(end)
	require.NoError(t, <-first)
}

// TestSilent: peers that say nothing take no request's place, and few of them are held.
func TestSilent(t *testing.T) {
	t.Parallel()
	const many = 500
	c, _ := serve(t, &agentsock.Server{MaxRequests: 1, Patience: time.Hour, Handler: handler{
		pods: func() ([]status.Pod, error) { return nil, nil },
	}})
	var conns []net.Conn
	closed := make(chan struct{}, many)
	for range many {
		conn, err := net.Dial("unix", c.Path)
		require.NoError(t, err)
		conns = append(conns, conn)
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			closed <- struct{}{}
		}()
	}
	for range many - 64 {
		<-closed
	}
	_, err := c.Pods(t.Context())
	require.NoError(t, err, "the silent ones have no slot")
	for _, conn := range conns {
		_ = conn.Close()
	}
}
