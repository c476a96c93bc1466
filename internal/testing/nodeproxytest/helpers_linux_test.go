package nodeproxytest_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

func TestMain(m *testing.M) {
	nodeproxytest.RunIfChild()
	goleak.VerifyTestMain(m)
}

const patience = netnstest.Patience

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 2*time.Millisecond, what)
}

// agent is a server, and the pods that its proxies are to have.
type agent struct {
	*zds.Server
	path    string
	refused chan types.UID
	stop    func()

	mu   sync.Mutex
	pods []nodeproxy.Workload
}

func (a *agent) hold(pods ...nodeproxy.Workload) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods = pods
}

func newAgent(t testing.TB, path string, ack time.Duration, pods ...nodeproxy.Workload) *agent {
	t.Helper()
	netnstest.Require(t, netnstest.Root) // no other user's proxy is listened to
	a := &agent{path: path, refused: make(chan types.UID, 1000), pods: pods}
	server, err := zds.Listen(t.Context(), zds.Options{
		Path: path, AckTimeout: ack,
		Snapshot: func(context.Context) ([]nodeproxy.Workload, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.pods, nil
		},
		Refused: func(uid types.UID, _ error) { a.refused <- uid },
		Log:     slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
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

// ready waits until that many proxies were told the snapshot and nothing more is to be said.
func (a *agent) ready(t testing.TB, proxies int) {
	t.Helper()
	eventually(t, "the proxies are told all", func() bool {
		all := a.Proxies()
		for _, p := range all {
			if !p.SnapshotSent || p.Waiting > 0 {
				return false
			}
		}
		return len(all) == proxies
	})
}

func start(t testing.TB, o nodeproxytest.Options) *nodeproxytest.Proxy {
	t.Helper()
	o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	return nodeproxytest.Start(t, o)
}

// workload is a pod with a namespace.
func workload(t testing.TB, uid string, ns interface{ Path() string }) nodeproxy.Workload {
	t.Helper()
	file, err := os.Open(ns.Path())
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return nodeproxy.Workload{
		PodID: nodeproxy.PodID{UID: types.UID(uid), Namespace: "shop", Name: uid}, ServiceAccount: "cart", NetNS: file,
	}
}

// kept is the same without its namespace.
func kept(w nodeproxy.Workload) nodeproxy.Workload {
	w.NetNS = nil
	return w
}

// fate is where one probe ends.
func fate(t testing.TB, w *netnstest.World, probe string) string {
	t.Helper()
	p, err := netnstest.ParseProbe(probe)
	require.NoError(t, err)
	return w.Run([]netnstest.Probe{p})[probe]
}

func uids(s nodeproxytest.State) (all []string) {
	for uid := range s.Pods {
		all = append(all, string(uid))
	}
	slices.Sort(all)
	return all
}

func uid(i int) string { return fmt.Sprintf("pod-%d", i) }
