package nodeproxytest_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
)

// keeper does what a controller does: it knows the pods that are to be with the proxy, serially for each, and tries again what
// has failed.
type keeper struct {
	server *zds.Server
	mu     sync.Mutex
	wanted map[types.UID]nodeproxy.Workload
	failed map[types.UID]bool
}

func (k *keeper) snapshot(context.Context) ([]nodeproxy.Workload, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.wanted)), nil
}

func (k *keeper) add(ctx context.Context, w nodeproxy.Workload) {
	k.mu.Lock()
	k.wanted[w.UID], k.failed[w.UID] = w, false
	k.mu.Unlock()
	if err := k.server.Add(ctx, w); err != nil {
		k.refused(w.UID, err)
	}
}

func (k *keeper) remove(ctx context.Context, uid types.UID) {
	k.mu.Lock()
	delete(k.wanted, uid)
	delete(k.failed, uid)
	k.mu.Unlock()
	_ = k.server.Remove(ctx, uid)
}

// refused is for a pod of a snapshot.
func (k *keeper) refused(uid types.UID, _ error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.wanted[uid]; ok {
		k.failed[uid] = true
	}
}

// settle tries again what has failed, and reports whether nothing has.
func (k *keeper) settle(ctx context.Context) bool {
	k.mu.Lock()
	var again []nodeproxy.Workload
	for uid, failed := range k.failed {
		if failed {
			again = append(again, k.wanted[uid])
		}
	}
	k.mu.Unlock()
	for _, w := range again {
		k.add(ctx, w)
	}
	return len(again) == 0
}

// Whatever happens in whatever order, agents, proxies and faults included: no proxy is ever told what makes it exit, and in the
// end the newest has exactly the pods that are wanted, in their namespaces, and no other has more.
func TestWhateverHappens(t *testing.T) {
	const ack = 40 * time.Millisecond
	namespaces := []*netnsexec.NetNS{netnstest.New(t), netnstest.New(t), netnstest.New(t)}
	var files []*os.File
	for _, ns := range namespaces {
		file, err := os.Open(ns.Path())
		require.NoError(t, err)
		defer func() { _ = file.Close() }()
		files = append(files, file)
	}
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "zds")
		require.NoError(t, err)
		defer func() { _ = os.RemoveAll(dir) }()
		path := dir + "/z.sock"
		k := &keeper{wanted: map[types.UID]nodeproxy.Workload{}, failed: map[types.UID]bool{}}
		var stop func()
		agent := func() {
			server, err := zds.Listen(context.Background(), zds.Options{Path: path, AckTimeout: ack, Snapshot: k.snapshot, Refused: k.refused})
			require.NoError(t, err)
			k.server = server
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan error, 1)
			go func() { ended <- server.Run(ctx) }()
			stop = func() {
				cancel()
				require.NoError(t, <-ended)
			}
		}
		agent()
		defer func() { stop() }()
		var proxies []*nodeproxytest.Proxy
		connect := func() {
			o := nodeproxytest.Options{Socket: path, MaxBackoff: firstBackoff, Retry: 10 * time.Millisecond}
			proxies = append(proxies, nodeproxytest.Start(outer, o))
		}
		defer func() {
			for _, p := range proxies {
				p.Kill()
			}
		}()
		connect()

		var work sync.WaitGroup
		queues := map[types.UID]chan func(){}
		do := func(uid types.UID, f func()) {
			if queues[uid] == nil {
				queue := make(chan func(), 100)
				queues[uid] = queue
				work.Go(func() {
					for f := range queue {
						f()
					}
				})
			}
			queues[uid] <- f
		}
		quiet := func() { // all that was begun has ended
			for _, queue := range queues {
				close(queue)
			}
			queues = map[types.UID]chan func(){}
			work.Wait()
		}
		anyUID := rapid.Custom(func(t *rapid.T) types.UID {
			return types.UID(uid(rapid.IntRange(0, 4).Draw(t, "pod")))
		})
		for range rapid.IntRange(1, 25).Draw(t, "events") {
			switch event := rapid.IntRange(0, 11).Draw(t, "event"); event {
			case 0, 1, 2, 3, 4:
				w := nodeproxy.Workload{PodID: nodeproxy.PodID{UID: anyUID.Draw(t, "uid")}}
				w.NetNS = files[rapid.IntRange(0, len(files)-1).Draw(t, "namespace")]
				impatient := rapid.IntRange(0, 5).Draw(t, "impatient") == 0
				do(w.UID, func() {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					if impatient {
						time.AfterFunc(time.Millisecond, cancel)
					}
					k.add(ctx, w)
				})
			case 5, 6, 7:
				uid := anyUID.Draw(t, "uid")
				do(uid, func() { k.remove(context.Background(), uid) })
			case 8:
				if len(proxies) < 3 {
					connect()
				}
			case 9:
				if len(proxies) > 1 {
					at := rapid.IntRange(0, len(proxies)-1).Draw(t, "proxy")
					proxies[at].Kill()
					proxies = slices.Delete(proxies, at, at+1)
				}
			case 10:
				faults := rapid.SampledFrom([]nodeproxytest.Faults{
					{Nack: 1}, {DropAcks: 1}, {Delay: 2 * ack}, {Delay: ack / 20}, {Nack: 2, Delay: time.Millisecond},
				}).Draw(t, "faults")
				proxies[len(proxies)-1].SetFaults(faults)
			case 11:
				if rapid.Bool().Draw(t, "restart") {
					quiet()
					stop()
					agent()
				}
			}
		}
		quiet()
		for _, p := range proxies {
			p.SetFaults(nodeproxytest.Faults{})
		}
		var state string
		right := func() bool {
			connected := k.server.Proxies()
			if len(connected) < len(proxies) || k.server.Ready() != nil || !k.settle(context.Background()) {
				return false
			}
			state = fmt.Sprintf("wanted %v\nconnected %+v", slices.Collect(maps.Keys(k.wanted)), connected)
			complete := false
			for _, p := range proxies {
				s := p.State()
				state += fmt.Sprintf("\nhas %+v", s)
				exact := len(s.Pods) == len(k.wanted)
				for _, pod := range s.Pods {
					w, ok := k.wanted[pod.UID]
					if !ok || !s.Ready {
						return false
					}
					exact = exact && pod.NetNS == namespaces[slices.IndexFunc(files, func(f *os.File) bool { return f == w.NetNS })].ID()
				}
				complete = complete || exact
			}
			return complete && connected[len(connected)-1].Pods == len(k.wanted)
		}
		if !assert.Eventually(t, right, patience, time.Millisecond) {
			t.Fatalf("%s", state)
		}
	})
}

const firstBackoff = 20 * time.Millisecond
