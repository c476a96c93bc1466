//go:build linux

package installer

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/conflist"
)

// cilium keeps the directory as Cilium's agent does with cni.exclusive, which is its default: at each change it writes its own file anew
// if that differs, and renames all others. It counts what it takes from others, until stop is called.
func (n *node) cilium() (took *atomic.Int64, stop func()) {
	n.t.Helper()
	w, err := fsnotify.NewWatcher()
	require.NoError(n.t, err)
	require.NoError(n.t, w.Add(n.CNIConfDir))
	took = &atomic.Int64{}
	done := make(chan struct{})
	keep := func() {
		const own = "05-cilium.conflist"
		if data, _ := os.ReadFile(n.conf(own)); string(data) != ciliumList {
			tmp := n.conf(own) + ownersTemp
			_ = os.WriteFile(tmp, []byte(ciliumList), 0o600)
			_ = os.Rename(tmp, n.conf(own))
			took.Add(1)
		}
		entries, _ := os.ReadDir(n.CNIConfDir)
		for _, e := range entries {
			if conflist.IsConfigName(e.Name()) && e.Name() != own {
				_ = os.Rename(n.conf(e.Name()), n.conf(e.Name())+ciliumSuffix)
				took.Add(1)
			}
		}
	}
	go func() {
		defer close(done)
		for keep(); ; keep() {
			if _, ok := <-w.Events; !ok {
				return
			}
		}
	}()
	return took, sync.OnceFunc(func() {
		_ = w.Close()
		<-done
	})
}

// Beside a Cilium that wants the directory alone the agent is not ready, and names the setting that ends it; once that is set, it is.
func TestBesideAnExclusiveCilium(t *testing.T) {
	for _, own := range []Switch{SwitchAuto, SwitchOn, SwitchOff} {
		t.Run("own-file="+string(own), func(t *testing.T) {
			n := newNode(t, map[string]string{"05-cilium.conflist": ciliumList})
			n.OwnFile = own
			took, stop := n.cilium()
			defer stop()
			a, _ := n.agent(nil, func(a *Agent) {
				a.contest = contest{limit: 3, window: 2 * time.Second, first: 50 * time.Millisecond, max: time.Second}
			})
			within(t, patience, "fight", func() bool { return code(a) == string(codeConflict) })
			before := took.Load()
			within(t, patience, "more attempts", func() bool { // all the while the node is not ready
				require.ErrorContains(t, a.Ready(), "Cilium wants the directory of network configurations for itself")
				require.NotContains(t, a.Ready().Error(), "--own-file")
				return took.Load() >= before+3
			})
			stop()
			within(t, patience, "ready", func() bool { return n.captured() && a.Ready() == nil })
		})
	}
}

// An entry that was put back beside such a Cilium does not count before it has stayed: whoever waits for the agent would send pods to the node.
func TestBesideCiliumTheEntryHasToStay(t *testing.T) {
	n := newNode(t, map[string]string{"05-cilium.conflist": ciliumList, "87-podman.conflist.cilium_bak": calicoList})
	a, _ := n.agent(nil, func(a *Agent) { a.contest.window = 3 * time.Second })
	within(t, patience, "the entry is there, and does not count yet", func() bool {
		why := a.Ready()
		return n.captured() && why != nil && code(a) == string(codeStarting) && strings.Contains(why.Error(), "Cilium has renamed files of that directory")
	})
	within(t, patience, "ready", ready(a))
}
