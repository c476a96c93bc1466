//go:build linux

package installer

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/diskfile"
)

// reboot empties what a node has in memory.
func (n *node) reboot(dirs ...string) {
	n.t.Helper()
	for _, dir := range append(dirs, n.RunDir) {
		entries, err := os.ReadDir(dir)
		require.NoError(n.t, err)
		for _, e := range entries {
			require.NoError(n.t, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
}

// clear counts what a runtime would load without the plugin, as it looks again and again until stop is called.
func (n *node) clear() (stop func() int) {
	end, count := make(chan struct{}), make(chan int)
	go func() {
		clear, look := 0, time.NewTicker(time.Millisecond/4)
		defer look.Stop()
		for {
			choice, err := conflist.Primary(os.DirFS(n.CNIConfDir))
			if err == nil && !choice.File.Has(pluginName) {
				clear++
			}
			select {
			case <-end:
				count <- clear
				return
			case <-look.C:
			}
		}
	}()
	return func() int { close(end); return <-count }
}

// Over twenty boots each, whenever the network writes its file: the runtime never loads one without the plugin from the second such boot on.
// Where /etc is in memory, none of ours can be there before the agent is, and the agent takes its own at once.
func TestReboots(t *testing.T) {
	const file, own, boots = "10-calico.conflist", "00-meshcni.conflist", 20
	for _, test := range []struct {
		name              string
		before, meanwhile bool
		after, memory     bool
		chains            bool // for good: there is no evidence against it
	}{
		{name: "kept", chains: true},
		{name: "before the pods", before: true},
		{name: "while they start", meanwhile: true},
		{name: "after the agent", after: true},
		{name: "etc in memory", memory: true, before: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, map[string]string{file: calicoList})
			n.OwnFile = SwitchAuto
			writes := func(boot int) { n.put(n.conf(file), strings.Replace(rewritten, "MTU", fmt.Sprint(boot), 1)) }
			first, stop := n.agent(onEvents)
			within(t, patience, "installed", func() bool { return n.captured() && recall(n.Config).File != "" })
			stop()
			installed := first.State().FirstInstalled
			assert.False(t, installed.IsZero())
			var taken int
			for boot := range boots {
				n.reboot()
				if test.memory {
					n.reboot(n.CNIConfDir)
				}
				if test.before {
					writes(boot)
				}
				clear := n.clear()
				wrote := make(chan struct{})
				go func() {
					defer close(wrote)
					if test.meanwhile {
						writes(boot)
					}
				}()
				a, stop := n.agent(onEvents, func(a *Agent) { a.boot = func() string { return fmt.Sprint("boot ", boot) } })
				within(t, patience, "ready", ready(a))
				<-wrote
				if test.after {
					writes(boot)
				}
				within(t, patience, "captured, and in order", func() bool {
					return n.captured() && a.Ready() == nil && recall(n.Config).Boot == fmt.Sprint("boot ", boot)
				})
				if test.before || test.meanwhile || test.after {
					within(t, patience, "it follows", func() bool { return n.version(n.conf(n.loaded().Name)) == boot })
				}
				if !test.chains { // which it sees after it has put the entry back, when the network wrote after it had started
					within(t, patience, "a list of the agent's own", func() bool { _, err := os.Stat(n.conf(own)); return err == nil })
				}
				stop()
				if _, err := os.Stat(n.conf(own)); err == nil {
					taken++
				}
				seen := clear()
				if boot > 0 && !test.memory {
					assert.Zero(t, seen, "looks of the runtime in the clear at boot %d", boot+1)
				}
				assert.Equal(t, installed, a.State().FirstInstalled)
				assert.Equal(t, test.chains, a.State().PutBack.IsZero(), "boot %d: when the entry was put back, for repair", boot+1)
			}
			t.Logf("%d of %d boots ended with a list of the agent's own", taken, boots)
			if test.chains {
				assert.Zero(t, taken)
			} else {
				assert.Equal(t, boots, taken)
			}
			n.OwnFile = SwitchAuto
			n.uninstall()
			for _, path := range append(diskfile.ReservePaths(n.CNIConfDir, "meshcni"), n.historyPath()) {
				assert.NoFileExists(t, path)
			}
		})
	}
}

// hookLog calls a function with each record's action, which is empty for what is no action.
type hookLog struct {
	slog.Handler
	action func(string)
}

func (h hookLog) Handle(ctx context.Context, r slog.Record) error {
	var action string
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "action" {
			action = a.Value.String()
		}
		return true
	})
	h.action(action)
	return h.Handler.Handle(ctx, r)
}

// The entry is lost to the boot whenever the network writes before the agent has seen the node in order.
func TestRewrittenBetweenTheFirstLooks(t *testing.T) {
	const file, own = "10-calico.conflist", "00-meshcni.conflist"
	for name, absent := range map[string]bool{"between two looks": false, "where it was away at the first": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{file: calicoList})
			n.OwnFile = SwitchAuto
			first, stop := n.agent(onEvents)
			within(t, patience, "ready", ready(first))
			stop()
			n.reboot()
			if absent {
				require.NoError(t, os.Remove(n.conf(file)))
			}
			var once sync.Once
			rewrite := func() { once.Do(func() { n.put(n.conf(file), calicoList) }) }
			a, _ := n.agent(func(o *Options) {
				onEvents(o)
				o.Log = slog.New(hookLog{o.Log.Handler(), func(action string) {
					if action == "kubeconfig" && !absent {
						rewrite()
					}
				}})
			})
			if absent {
				within(t, patience, "no network", func() bool { return a.Ready() != nil && strings.Contains(a.Ready().Error(), string(codeNoNetwork)) })
				rewrite()
			}
			within(t, patience, "a list of the agent's own", func() bool { return a.Ready() == nil && n.loaded().Name == own })
			assert.False(t, a.State().PutBack.IsZero())
		})
	}
}

// The second removal is enough, however long ago the first one was, and whoever was away.
func TestTwoRemovalsAreEnough(t *testing.T) {
	const file, own = "10-calico.conflist", "00-meshcni.conflist"
	n := newNode(t, map[string]string{file: calicoList})
	n.OwnFile = SwitchAuto
	a, stop := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	n.put(n.conf(file), calicoList)
	within(t, patience, "put back", func() bool { return n.captured() && recall(n.Config).Losses == 1 })
	assert.Equal(t, file, n.loaded().Name, "once is no evidence")
	within(t, patience, "and dated", func() bool { return time.Since(a.State().PutBack) < time.Hour })
	stop()
	later := time.Now().Add(1000 * time.Hour)
	b, stop := n.agent(onEvents, func(a *Agent) { a.now = func() time.Time { return later } })
	within(t, patience, "ready", ready(b))
	n.put(n.conf(file), calicoList)
	within(t, patience, "taken", func() bool { return n.loaded().Name == own })
	stop()
	n.reboot()
	require.NoError(t, os.Remove(n.conf(own)))
	c, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(c))
	assert.Equal(t, own, n.loaded().Name, "the decision outlives the file")
}

// Without room in the directory, an entry that is removed comes back all the same.
func TestRewritesOnAFullDisk(t *testing.T) {
	const file, own = "10-calico.conflist", "00-meshcni.conflist"
	n := newNode(t, nil)
	mount(t, n.CNIConfDir, "size=128k")
	n.write(n.conf(file), calicoList, 0o644)
	n.OwnFile = SwitchAuto
	a, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	within(t, patience, "reserved", func() bool {
		info, err := os.Stat(diskfile.ReservePaths(n.CNIConfDir, "meshcni")[2])
		return err == nil && info.Size() > 0
	})
	fill(t, n.CNIConfDir)
	for range 5 { // in place, as the directory is full for them too
		f, err := os.OpenFile(n.conf(file), os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte(calicoList), 0)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(int64(len(calicoList))))
		require.NoError(t, f.Close())
		within(t, patience, "captured", n.captured)
	}
	assert.Equal(t, own, n.loaded().Name)
}

// One file is remembered by. An uninstall takes away what agents of before have kept beside the network's lists too.
func TestHistoryIsOneFile(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.OwnFile = SwitchAuto
	a, stop := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	stop()
	kept := filepath.Join(n.CNIBinDirs[0], "."+pluginName+"-history")
	assert.FileExists(t, kept)
	before := n.conf("." + pluginName + "-history")
	assert.NoFileExists(t, before)
	n.write(before, n.read(kept), 0o600)
	n.uninstall()
	assert.NoFileExists(t, kept)
	assert.NoFileExists(t, before)
}

// Where the runtime's own hook captures pods whatever the network's file says, no list is taken; once it does not, the losses so far count.
func TestHookedNodeTakesNoList(t *testing.T) {
	const file, own = "10-calico.conflist", "00-meshcni.conflist"
	n := newNode(t, map[string]string{file: calicoList})
	n.OwnFile = SwitchAuto
	var hooked atomic.Bool
	hooked.Store(true)
	a, _ := n.agent(func(o *Options) { onEvents(o); o.Hooked = hooked.Load }, func(a *Agent) { a.contest.limit = 100 })
	within(t, patience, "ready", ready(a))
	for i := range 4 {
		n.put(n.conf(file), calicoList)
		within(t, patience, "put back, and counted", func() bool { return n.captured() && a.Ready() == nil && recall(n.Config).Losses == i+1 })
		assert.Equal(t, file, n.loaded().Name)
	}
	hooked.Store(false)
	n.put(n.conf(file), calicoList)
	within(t, patience, "a list of the agent's own", func() bool { return a.Ready() == nil && n.loaded().Name == own })
}
