package nri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/nri"
	"github.com/meshcni/meshcni/internal/testing/waittest"
)

// patience is the runtime's with a request: short, since tests have hooks that hang, and long enough for four busy loops beside one that does not.
const patience = 3 * time.Second

func TestMain(m *testing.M) {
	adaptation.SetPluginRequestTimeout(patience)
	logrus.SetLevel(logrus.ErrorLevel) // the runtime's half logs each step
	var err error
	if programDir, err = os.MkdirTemp("", "meshcni-nri-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(programDir)
	m.Run()
}

// handler records what it is told.
type handler struct {
	mu      sync.Mutex
	run     []nri.Pod
	removed []string
	synced  [][]nri.Pod
	refuse  error
	hang    chan struct{} // until it is closed, however long the request's context lasts; nil: answers at once
	patient bool          // a container waits for its request's context, and is refused in the handler's words
}

func (h *handler) Synchronize(_ context.Context, pods []nri.Pod, _ time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced = append(h.synced, pods)
}

func (h *handler) RunPodSandbox(_ context.Context, p nri.Pod) {
	h.mu.Lock()
	hang := h.hang
	h.run = append(h.run, p)
	h.mu.Unlock()
	if hang != nil {
		<-hang
	}
}

func (h *handler) CreateContainer(ctx context.Context, _ nri.Pod) error {
	h.mu.Lock()
	hang, refuse, patient := h.hang, h.refuse, h.patient
	h.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if patient {
		<-ctx.Done()
	}
	return refuse
}

func (h *handler) RemovePodSandbox(p nri.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removed = append(h.removed, p.ID)
}

func (h *handler) refuses(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = err
}

// hangs makes what is asked from now on wait until the function that it returns is called.
func (h *handler) hangs() (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hang := make(chan struct{})
	h.hang = hang
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.hang = nil
		close(hang)
	})
}

func (h *handler) ran() []nri.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.run)
}

func (h *handler) syncs() [][]nri.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.synced)
}

// fake is a runtime.
type fake struct {
	*adaptation.Adaptation
	socket     string
	pods       []*api.PodSandbox
	containers []*api.Container
	options    []adaptation.Option
	kill       func()
	silence    atomic.Pointer[chan struct{}] // until it is closed, the runtime hears nothing of its plugins; nil: it does
}

// silent keeps from the runtime what plugins say, until the function that it returns is called.
func (f *fake) silent() (end func()) {
	until := make(chan struct{})
	f.silence.Store(&until)
	return sync.OnceFunc(func() {
		f.silence.Store(nil)
		close(until)
	})
}

// heard is a plugin's connection as the runtime hears it.
type heard struct {
	net.Conn
	f *fake
}

func (h heard) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if until := h.f.silence.Load(); until != nil {
		<-*until
	}
	return n, err
}

// start starts the runtime, again too. Behind a relay, its connections end with it, as they do with a process.
func (f *fake) start(t *testing.T) {
	t.Helper()
	own := socket(t)
	stop := listen(t, f.socket, func(conn net.Conn) {
		there, err := net.Dial("unix", own)
		if err != nil {
			return
		}
		defer func() { _ = there.Close() }()
		go func() { _, _ = io.Copy(there, heard{conn, f}) }()
		_, _ = io.Copy(conn, there)
	})
	all := func(ctx context.Context, cb adaptation.SyncCB) error {
		_, err := cb(ctx, f.pods, f.containers)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	var err error
	f.Adaptation, err = adaptation.New("containerd", "v2.4.2", all, update, append([]adaptation.Option{adaptation.WithSocketPath(own),
		adaptation.WithPluginPath(t.TempDir()), adaptation.WithPluginConfigPath(t.TempDir())}, f.options...)...)
	require.NoError(t, err)
	require.NoError(t, f.Start())
	f.kill = sync.OnceFunc(func() { stop(); f.Stop() })
	t.Cleanup(f.kill)
}

func socket(t *testing.T) string { return filepath.Join(t.TempDir(), "nri.sock") }

// client runs a client until the test ends, or the function that it returns is called.
func client(t *testing.T, socket string, h nri.Handler) (c *nri.Client, end func()) {
	t.Helper()
	c = nri.New(nri.Options{Socket: socket, Name: "meshcni", Index: "90", Handler: h, Gate: true})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	t.Cleanup(end)
	return c, end
}

func connected(t *testing.T, c *nri.Client) {
	t.Helper()
	waittest.Eventually(t, "the client is connected", func() error {
		if s := c.State(); !s.Connected {
			return fmt.Errorf("it is not: %w", s.Err)
		}
		return nil
	})
}

func pod(id string) *api.PodSandbox {
	return &api.PodSandbox{
		Id: id, Name: "web", Namespace: "shop", Uid: "0c6e9f4a", Annotations: map[string]string{"sidecar.istio.io/status": "{}", "empty": ""},
		Labels: map[string]string{"app": "web"}, RuntimeHandler: "kata", Ips: []string{"10.1.2.3", "fd00::3", "no address"},
		Linux: &api.LinuxPodSandbox{CgroupParent: "/kubepods", Namespaces: []*api.LinuxNamespace{{Type: "ipc", Path: "/proc/7/ns/ipc"}, {Type: "network", Path: "/run/netns/cni-1"}}},
	}
}

func (f *fake) create(id string) error {
	_, err := f.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{Pod: pod(id), Container: &api.Container{Id: "c-" + id, PodSandboxId: id}})
	return err
}

func TestPodAsTheRuntimeSays(t *testing.T) {
	f, h := &fake{socket: socket(t)}, &handler{}
	f.start(t)
	c, _ := client(t, f.socket, h)
	connected(t, c)
	state := c.State()
	assert.Equal(t, "containerd", state.Runtime)
	assert.Equal(t, "v2.4.2", state.Version)
	assert.Equal(t, patience, state.Timeout)
	assert.Equal(t, "ValidateContainerAdjustment", state.Gate)

	require.NoError(t, f.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: pod("s1")}))
	host := pod("s2")
	host.Linux.Namespaces = host.Linux.Namespaces[:1]
	require.NoError(t, f.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: host}))
	unknown := pod("s3")
	unknown.Linux = nil
	require.NoError(t, f.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: unknown}))

	want := nri.Pod{
		ID: "s1", Name: "web", Namespace: "shop", UID: "0c6e9f4a", Handler: "kata", Annotations: map[string]string{"sidecar.istio.io/status": "{}", "empty": ""},
		Network: nri.NetworkOwn, NetNS: "/run/netns/cni-1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")},
	}
	ran := h.ran()
	require.Len(t, ran, 3)
	assert.Equal(t, want, ran[0])
	assert.Equal(t, nri.NetworkHost, ran[1].Network)
	assert.Equal(t, nri.NetworkUnknown, ran[2].Network)

	require.NoError(t, f.RemovePodSandbox(t.Context(), &adaptation.RemovePodSandboxRequest{Pod: pod("s1")}))
	assert.Equal(t, []string{"s1"}, h.removed)
}

func TestContainerIsRefused(t *testing.T) {
	f, h := &fake{socket: socket(t)}, &handler{}
	f.start(t)
	c, _ := client(t, f.socket, h)
	connected(t, c)
	require.NoError(t, f.create("s1"))
	h.refuses(errors.New("annotation x: " + strings.Repeat("long ", 10_000)))
	err := f.create("s1")
	require.ErrorContains(t, err, "annotation x: long")
	assert.Less(t, len(err.Error()), 1200, "at most 1 KiB, and the runtime's own words")
	h.refuses(nil)
	require.NoError(t, f.create("s1"), "the same sandbox goes on")
}

// A handler that takes all of the time that it has is in time with its answer, and one that takes more is answered for: a container is refused in our
// words, not the runtime's of a connection that it has ended.
func TestHangs(t *testing.T) {
	f, h := &fake{socket: socket(t)}, &handler{}
	f.start(t)
	c, _ := client(t, f.socket, h)
	connected(t, c)
	h.mu.Lock()
	h.patient, h.refuse = true, errors.New("the pod's own reason")
	h.mu.Unlock()
	require.ErrorContains(t, f.create("s1"), "the pod's own reason")

	end := h.hangs()
	t.Cleanup(end)
	require.NoError(t, f.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: pod("s1")}))
	require.ErrorContains(t, f.create("s1"), "not done with the pod within the container runtime's patience")
	h.mu.Lock()
	h.patient, h.refuse = false, nil
	h.mu.Unlock()
	end()
	require.NoError(t, f.create("s1"), "the same sandbox goes on")
	assert.Len(t, h.syncs(), 1, "the connection is the first one")
	assert.Zero(t, c.State().Late)
}

// A process that does not answer at all costs its own pod the runtime's patience, and the connection, which is made again. At validation the runtime is
// closed then.
func TestSilent(t *testing.T) {
	f, h := &fake{socket: socket(t)}, &handler{}
	f.start(t)
	c, _ := client(t, f.socket, h)
	connected(t, c)
	end := f.silent()
	t.Cleanup(end)
	require.NoError(t, f.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: pod("s1")}))
	end()
	waittest.Eventually(t, "the client is connected again", func() error {
		if len(h.syncs()) < 2 || !c.State().Connected {
			return errors.New("it is not")
		}
		return nil
	})
	end = f.silent()
	t.Cleanup(end)
	require.Error(t, f.create("s1"))
	end()
	waittest.Eventually(t, "a container is made", func() error {
		if !c.State().Connected {
			return errors.New("not connected")
		}
		return f.create("s1")
	})
}

// What is running is told after each connection, in parts if it is much.
func TestRuntimeRestarts(t *testing.T) {
	f, h := &fake{socket: socket(t)}, &handler{}
	for i := range 110 {
		p := pod(fmt.Sprintf("s%d", i))
		p.Annotations["long"] = strings.Repeat("x", 64<<10) // in all more than a message may have
		f.pods = append(f.pods, p)
	}
	f.containers = []*api.Container{
		{Id: "c0", PodSandboxId: "s0", State: api.ContainerState_CONTAINER_RUNNING}, {Id: "c1", PodSandboxId: "s1", State: api.ContainerState_CONTAINER_CREATED},
		{Id: "c2", PodSandboxId: "s2", State: api.ContainerState_CONTAINER_STOPPED},
	}
	f.start(t)
	c, _ := client(t, f.socket, h)
	connected(t, c)
	f.kill()
	waittest.Eventually(t, "the client sees the end", func() error {
		if c.State().Connected {
			return errors.New("it does not")
		}
		return nil
	})
	f.start(t)
	connected(t, c)
	waittest.Eventually(t, "the handler has the pods of both", func() error {
		if n := len(h.syncs()); n < 2 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	for _, pods := range h.syncs() {
		require.Len(t, pods, 110)
		assert.True(t, pods[0].Ran)
		assert.False(t, pods[1].Ran, "it is being made")
		assert.True(t, pods[2].Ran)
		assert.False(t, pods[3].Ran, "it has no container")
	}
}

// As in an update of the agent: both are asked, and one that ends keeps no pod waiting.
func TestTwoOfOneName(t *testing.T) {
	f, old, young := &fake{socket: socket(t)}, &handler{}, &handler{}
	f.start(t)
	c1, end := client(t, f.socket, old)
	connected(t, c1)
	c2, _ := client(t, f.socket, young)
	connected(t, c2)
	require.NoError(t, f.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: pod("s1")}))
	assert.Len(t, old.ran(), 1)
	assert.Len(t, young.ran(), 1)
	end()
	for i := range 10 {
		require.NoError(t, f.RunPodSandbox(t.Context(), &adaptation.RunPodSandboxRequest{Pod: pod(fmt.Sprintf("t%d", i))}))
	}
	assert.Len(t, young.ran(), 11)
}

// listen serves each connection until the test ends, or stop is called.
func listen(t *testing.T, path string, serve func(net.Conn)) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	var mu sync.Mutex
	var open []net.Conn
	stop = sync.OnceFunc(func() {
		_ = l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	t.Cleanup(stop)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			}()
		}
	}()
	return stop
}

// A runtime that says nonsense is not believed, and the next one is met.
func TestNonsense(t *testing.T) {
	for name, text := range map[string][]byte{
		"nothing":              nil,
		"garbage":              bytes.Repeat([]byte("HTTP/1.1 200 OK\r\n"), 1000),
		"a frame that is long": {0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff},
		"a message that is":    {0, 0, 0, 1, 0, 0, 0, 10, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1, 1, 0},
		"no request":           {0, 0, 0, 1, 0, 0, 0, 12, 0, 0, 0, 2, 0, 0, 0, 1, 1, 0, 0xff, 0xff},
		"another stream":       {0, 0, 0, 9, 0, 0, 0, 1, 7},
	} {
		t.Run(name, func(t *testing.T) {
			path := socket(t)
			stop := listen(t, path, func(conn net.Conn) { _, _ = conn.Write(text) })
			c, _ := client(t, path, &handler{})
			waittest.Eventually(t, "the client has given up once", func() error {
				if s := c.State(); s.Connected || s.Err == nil {
					return fmt.Errorf("%+v", s)
				}
				return nil
			})
			stop()
			f := &fake{socket: path}
			f.start(t)
			connected(t, c)
		})
	}
}

// A runtime that does not know validation ends the connection after Configure. It is asked for less then; one that takes nothing is told of.
func TestOlderRuntime(t *testing.T) {
	const validation, creation = api.EventMask(1 << (api.Event_VALIDATE_CONTAINER_ADJUSTMENT - 1)), api.EventMask(1 << (api.Event_CREATE_CONTAINER - 1))
	for name, c := range map[string]struct {
		request *api.ConfigureRequest
		takes   api.EventMask
		refuses bool
	}{
		"said to be new": {request: &api.ConfigureRequest{RuntimeName: "containerd", RuntimeVersion: "v2.3.0", RequestTimeout: 2000}, takes: ^validation},
		"old":            {request: &api.ConfigureRequest{RuntimeName: "containerd", RuntimeVersion: "2.1.9"}, takes: ^validation},
		"CRI-O":          {request: &api.ConfigureRequest{RuntimeName: "CRI-O", RuntimeVersion: "1.34.0"}, takes: ^validation},
		"takes nothing":  {request: &api.ConfigureRequest{RuntimeName: "CRI-O", RuntimeVersion: "1.34.0"}, takes: 0, refuses: true},
	} {
		t.Run(name, func(t *testing.T) {
			path := socket(t)
			var mu sync.Mutex
			var asked []api.EventMask
			runtimeAt(t, path, func(plugin api.PluginService) {
				answer, err := plugin.Configure(context.Background(), c.request)
				if err != nil {
					return
				}
				mu.Lock()
				asked = append(asked, api.EventMask(answer.GetEvents()))
				mu.Unlock()
				if api.EventMask(answer.GetEvents())&^c.takes != 0 {
					return
				}
				_, _ = plugin.Synchronize(context.Background(), &api.SynchronizeRequest{})
				<-t.Context().Done()
			})
			client, _ := client(t, path, &handler{})
			if c.refuses {
				waittest.Eventually(t, "the refusal is told", func() error {
					if s := client.State(); !s.Refused {
						return fmt.Errorf("%+v", s)
					}
					return nil
				})
				return
			}
			connected(t, client)
			assert.Equal(t, "CreateContainer", client.State().Gate)
			mu.Lock()
			defer mu.Unlock()
			assert.Zero(t, asked[len(asked)-1]&validation)
			assert.NotZero(t, asked[len(asked)-1]&creation)
		})
	}
}

// registrar is a runtime that a plugin registers with.
type registrar chan struct{}

func (r registrar) RegisterPlugin(_ context.Context, q *api.RegisterPluginRequest) (*api.Empty, error) {
	if q.GetPluginName() != "meshcni" || q.GetPluginIdx() != "90" {
		return nil, fmt.Errorf("%v", q)
	}
	close(r)
	return &api.Empty{}, nil
}

func (registrar) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return nil, errors.New("not wanted")
}
