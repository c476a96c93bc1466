package zds_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/testing/socktest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(crowdOn); path != "" {
		beCrowd(path)
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen.
const patience = netnstest.Patience

// agent is a running server, with what it was asked to hand to each proxy that connects.
type agent struct {
	*zds.Server
	path    string
	refused chan types.UID
	changed chan struct{}
	stop    func()

	mu       sync.Mutex
	snapshot func(context.Context) ([]nodeproxy.Workload, error)
}

// holding makes the snapshot that proxies get from now on.
func (a *agent) holding(pods ...nodeproxy.Workload) {
	a.snapshots(func(context.Context) ([]nodeproxy.Workload, error) { return pods, nil })
}

func (a *agent) snapshots(take func(context.Context) ([]nodeproxy.Workload, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.snapshot = take
}

func start(t testing.TB, change func(*zds.Options)) *agent {
	t.Helper()
	a := &agent{path: socktest.Path(t), refused: make(chan types.UID, 100), changed: make(chan struct{}, 1000)}
	a.holding()
	o := zds.Options{
		Path: a.path, UIDs: []uint32{uint32(os.Getuid())}, AckTimeout: patience,
		Snapshot: func(ctx context.Context) ([]nodeproxy.Workload, error) {
			a.mu.Lock()
			take := a.snapshot
			a.mu.Unlock()
			return take(ctx)
		},
		Refused:  func(uid types.UID, _ error) { a.refused <- uid },
		OnChange: func() { a.changed <- struct{}{} },
		Log:      slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&o)
	}
	a.path = o.Path
	server, err := zds.Listen(t.Context(), o)
	require.NoError(t, err)
	a.Server = server
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	a.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	t.Cleanup(a.stop)
	return a
}

// client is a proxy whose requests the test answers one by one.
type client struct {
	*zds.Client
	t testing.TB
}

func (a *agent) connect(t testing.TB) *client {
	t.Helper()
	c, err := zds.Dial(t.Context(), a.path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &client{c, t}
}

// connected is a proxy that has been told the snapshot, which adds these pods.
func (a *agent) connected(t testing.TB, uids ...string) *client {
	t.Helper()
	c := a.connect(t)
	for _, uid := range uids {
		c.expect("Add " + uid)
		c.ack(nil)
	}
	c.expect("SnapshotSent")
	c.ack(nil)
	a.settled(t)
	return c
}

// settled waits until each connected proxy was told all there is.
func (a *agent) settled(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, p := range a.Proxies() {
			if !p.SnapshotSent || p.Waiting > 0 {
				return false
			}
		}
		return a.Ready() == nil
	}, patience, time.Millisecond)
}

// expect receives a request, such as "Add uid".
func (c *client) expect(want string) *os.File {
	c.t.Helper()
	r, file, err := c.Receive()
	require.NoError(c.t, err, want)
	require.Equal(c.t, want, r.String())
	if file != nil {
		c.t.Cleanup(func() { _ = file.Close() })
	}
	return file
}

func (c *client) ack(refusal error) {
	c.t.Helper()
	require.NoError(c.t, c.Ack(refusal))
}

// ended waits for the agent's end of the connection.
func (c *client) ended() {
	c.t.Helper()
	for {
		switch _, file, err := c.Receive(); {
		case err == nil:
			if file != nil {
				_ = file.Close()
			}
		case errors.Is(err, io.EOF):
			return
		default:
			require.ErrorContains(c.t, err, "connection reset")
			return
		}
	}
}

// pod makes a workload, whose namespace is a file of its own here.
func pod(t testing.TB, uid string) nodeproxy.Workload {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "netns"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return nodeproxy.Workload{PodID: nodeproxy.PodID{UID: types.UID(uid), Namespace: "shop", Name: uid}, ServiceAccount: "sa", NetNS: file}
}

// kept is the same without its namespace.
func kept(w nodeproxy.Workload) nodeproxy.Workload {
	w.NetNS = nil
	return w
}

// async calls f on a goroutine of its own; the error comes by the channel.
func async(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

func (a *agent) adding(ctx context.Context, w nodeproxy.Workload) <-chan error {
	return async(func() error { return a.Add(ctx, w) })
}

func (a *agent) removing(ctx context.Context, uid string) <-chan error {
	return async(func() error { return a.Remove(ctx, types.UID(uid)) })
}

func await[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.Fail(t, "it does not happen")
		panic("unreachable")
	}
}
