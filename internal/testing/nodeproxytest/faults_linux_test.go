package nodeproxytest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
	"github.com/meshcni/meshcni/internal/testing/socktest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/nodeproxy"
	"github.com/meshcni/meshcni/nodeproxy/zds"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// A snapshot leaves the proxy with the pods that there are: those that it had with connections and all, those that came
// while it was away, and none that went.
func TestSnapshot(t *testing.T) {
	path := socktest.Path(t)
	first := newAgent(t, path, patience)
	p := start(t, nodeproxytest.Options{Socket: path})
	first.ready(t, 1)
	stays, keeps := netnstest.New(t), netnstest.New(t)
	pods := []nodeproxy.Workload{workload(t, "stays", stays), workload(t, "keeps", keeps), workload(t, "goes", netnstest.New(t))}
	for _, w := range pods {
		require.NoError(t, first.Add(t.Context(), w))
	}
	held := dial(t, stays, "127.0.0.1:15053")
	also := dial(t, keeps, "127.0.0.1:15053")
	eventually(t, "the connections are there", func() bool {
		a := p.State().Pods["stays"]
		b := p.State().Pods["keeps"]
		return a.Open == 1 && b.Open == 1
	})
	first.stop()

	again := newAgent(t, path, patience,
		workload(t, "stays", stays), kept(pods[1]), workload(t, "came", netnstest.New(t)), kept(workload(t, "unknown", stays)))
	again.ready(t, 1)
	assert.Equal(t, []string{"came", "keeps", "stays"}, uids(p.State()))
	for _, w := range pods[:2] {
		pod := p.State().Pods[w.UID]
		assert.Equal(t, 1, pod.Open, w.UID)
	}
	_, _ = held.Close(), also.Close()
	// The namespace of a kept pod is found later.
	require.NoError(t, again.Add(t.Context(), pods[1]))
	require.NoError(t, again.Remove(t.Context(), "came"))
	assert.Equal(t, []string{"keeps", "stays"}, uids(p.State()))
}

// What the proxy does wrong, the caller is told in time, and nothing of it is taken for an answer to something else.
func TestFaults(t *testing.T) {
	const ack = 100 * time.Millisecond
	for name, tt := range map[string]struct {
		faults nodeproxytest.Faults
		want   func(error) bool
	}{
		"no":      {nodeproxytest.Faults{Nack: 1}, func(err error) bool { var nack *zds.NackError; return errors.As(err, &nack) }},
		"silence": {nodeproxytest.Faults{DropAcks: 1}, func(err error) bool { return errors.Is(err, zds.ErrTimeout) }},
		"late":    {nodeproxytest.Faults{Delay: 3 * ack}, func(err error) bool { return errors.Is(err, zds.ErrTimeout) }},
		"exit":    {nodeproxytest.Faults{ExitAfter: 1}, func(err error) bool { return errors.Is(err, nodeproxy.ErrNoProxy) }},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			a := newAgent(t, socktest.Path(t), ack)
			o := nodeproxytest.Options{Socket: a.path}
			p := nodeproxytest.StartProcess(t, o)
			a.ready(t, 1)
			p.SetFaults(tt.faults)
			err := a.Add(t.Context(), workload(t, "a", ns))
			require.Error(t, err)
			require.True(t, tt.want(err), "%v", err)
			if name == "exit" {
				require.Equal(t, 1, p.ExitCode())
				p = nodeproxytest.StartProcess(t, o)
			} else {
				p.SetFaults(nodeproxytest.Faults{})
			}
			// The connection, or the next one, serves; and the pod is the agent's to add.
			eventually(t, "a pod can be added", func() bool { return a.Add(t.Context(), workload(t, "b", ns)) == nil })
			eventually(t, "only that is there", func() bool {
				s := p.State()
				return len(s.Pods) == 1 && s.Pods["b"].UID == "b" && s.Ready
			})
		})
	}
}

// A proxy that dies while it is told the snapshot gets another.
func TestExitInTheSnapshot(t *testing.T) {
	a := newAgent(t, socktest.Path(t), patience)
	var want []string
	var pods []nodeproxy.Workload
	for i := range 5 {
		pods = append(pods, workload(t, uid(i), netnstest.New(t)))
		want = append(want, uid(i))
	}
	a.hold(pods...)
	o := nodeproxytest.Options{Socket: a.path, Faults: nodeproxytest.Faults{ExitAfter: 3}}
	require.Equal(t, 1, nodeproxytest.StartProcess(t, o).ExitCode())
	p := nodeproxytest.StartProcess(t, nodeproxytest.Options{Socket: a.path})
	a.ready(t, 1)
	assert.Equal(t, want, uids(p.State()))
}

// What the control plane does not know yet is acknowledged all the same. Its connections wait, and are closed if that takes too long.
func TestUnknown(t *testing.T) {
	w := captured(t, ruleset.BackendNftables, nil)
	serve(t, w.Pod, "[::]:9999")
	a := newAgent(t, socktest.Path(t), patience)
	unknown := nodeproxytest.Faults{Unknown: []types.UID{"cart"}}
	impatient := start(t, nodeproxytest.Options{Socket: a.path, Faults: unknown, KnowTimeout: time.Millisecond})
	a.ready(t, 1)
	require.NoError(t, a.Add(t.Context(), workload(t, "cart", w.Pod)))
	conn := dial(t, w.Out, "10.244.1.5:15008")
	_, err := io.WriteString(conn, "CONNECT 10.244.1.5:9999 HTTP/1.1\r\n\r\n")
	require.NoError(t, err)
	answer, _ := io.ReadAll(conn)
	assert.Empty(t, answer)
	require.NoError(t, a.Remove(t.Context(), "cart"))
	impatient.Kill()

	a.ready(t, 0)
	p := start(t, nodeproxytest.Options{Socket: a.path, Faults: unknown, KnowTimeout: patience})
	a.ready(t, 1)
	require.NoError(t, a.Add(t.Context(), workload(t, "cart", w.Pod)))
	var known sync.WaitGroup
	known.Go(func() {
		assert.Eventually(t, func() bool { pod := p.State().Pods["cart"]; return pod.Open == 1 }, patience, time.Millisecond, "it hangs")
		p.SetFaults(nodeproxytest.Faults{})
	})
	assert.Equal(t, "hello from 10.244.1.1", tunnel(t, w.Out, "10.244.1.5:15008", "10.244.1.5:9999", "hello"))
	known.Wait()
}

// It says yes, and does not listen: that is for whoever looks at the sockets.
func TestDeaf(t *testing.T) {
	ns := netnstest.New(t)
	a := newAgent(t, socktest.Path(t), patience)
	start(t, nodeproxytest.Options{Socket: a.path, Faults: nodeproxytest.Faults{Deaf: []uint16{15006}}})
	a.ready(t, 1)
	require.NoError(t, a.Add(t.Context(), workload(t, "a", ns)))
	_ = dial(t, ns, "127.0.0.1:15001").Close()
	require.Error(t, ns.Do(func() error { _, err := net.Dial("tcp", "127.0.0.1:15006"); return err }))
}

// The proxy keeps a namespace alive by the file that it was handed, and lets go of it.
func TestFiles(t *testing.T) {
	a := newAgent(t, socktest.Path(t), patience)
	p := start(t, nodeproxytest.Options{Socket: a.path})
	a.ready(t, 1)
	ns := netnstest.New(t)
	cart, bank := workload(t, "a", ns), workload(t, "b", ns)
	round := func() {
		require.NoError(t, a.Add(t.Context(), cart))
		_ = dial(t, ns, "127.0.0.1:15053").Close()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, a.Add(gone, bank))
		require.NoError(t, a.Remove(t.Context(), "a"))
		require.NoError(t, a.Remove(t.Context(), "b"))
		p.SetFaults(nodeproxytest.Faults{Nack: 1})
		require.Error(t, a.Add(t.Context(), cart))
		require.NoError(t, a.Remove(t.Context(), "a"))
	}
	round()
	eventually(t, "the pod's files are closed", func() bool { return len(p.State().Pods) == 0 })
	before := socktest.OpenFiles(t)
	for range 50 {
		round()
	}
	eventually(t, "all files are closed", func() bool { return socktest.OpenFiles(t) <= before })
}

// Many at once, while proxies and the agent come and go: each Add that says yes is one, and no file is left open.
func TestMany(t *testing.T) {
	const many = 110
	ns := netnstest.New(t)
	a := newAgent(t, socktest.Path(t), patience)
	var pods []nodeproxy.Workload
	for i := range many {
		pods = append(pods, workload(t, uid(i), ns)) // the same ports, side by side
	}
	a.hold(pods...)
	p := start(t, nodeproxytest.Options{Socket: a.path})
	a.ready(t, 1)
	before := socktest.OpenFiles(t)
	for range 3 {
		var all sync.WaitGroup
		for _, w := range pods {
			all.Go(func() {
				assert.NoError(t, a.Remove(t.Context(), w.UID))
				assert.NoError(t, a.Add(t.Context(), w))
			})
		}
		all.Wait()
	}
	assert.Len(t, p.State().Pods, many)
	eventually(t, "no file is left open", func() bool { return socktest.OpenFiles(t) <= before })
	second := start(t, nodeproxytest.Options{Socket: a.path})
	a.ready(t, 2)
	assert.Len(t, second.State().Pods, many)
}
