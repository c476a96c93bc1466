//go:build linux

package installer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// patience is how long a test waits for what must come. With inotify it comes in milliseconds.
const patience = netnstest.Patience

// onEvents makes an agent see nothing but what inotify announces.
func onEvents(o *Options) { o.Poll = time.Hour }

func ready(a *Agent) func() bool { return func() bool { return a.Ready() == nil } }

func code(a *Agent) string {
	var b *BlockedError
	if errors.As(a.Ready(), &b) {
		return string(b.Code)
	}
	return ""
}

func TestAgentRepairs(t *testing.T) {
	const file = "10-calico.conflist"
	changed := strings.Replace(calicoList, `"calico"`, `"calico", "mtu": 1440`, 1)
	for _, tc := range []struct {
		name string
		do   func(*node)
		want func(*node) bool
	}{
		{"Calico writes in place", func(n *node) { n.write(n.conf(file), changed, 0o644) }, nil},
		{"AWS moves its file into place", func(n *node) {
			tmp := filepath.Join(n.RunDir, "aws.tmp")
			n.write(tmp, changed, 0o644)
			require.NoError(n.t, os.Rename(tmp, n.conf(file)))
		}, nil},
		{"removed, and written again", func(n *node) {
			require.NoError(n.t, os.Remove(n.conf(file)))
			n.write(n.conf(file), changed, 0o644)
		}, nil},
		{"the directory is made anew", func(n *node) {
			n.removeBeside(n.CNIConfDir)
			require.NoError(n.t, os.Mkdir(n.CNIConfDir, 0o755))
			n.write(n.conf(file), changed, 0o644)
		}, nil},
		{"the directory is moved away and made anew", func(n *node) {
			require.NoError(n.t, os.Rename(n.CNIConfDir, n.CNIConfDir+".old"))
			require.NoError(n.t, os.Mkdir(n.CNIConfDir, 0o755))
			n.write(n.conf(file), changed, 0o644)
		}, nil},
		{"a symbolic link takes its place", func(n *node) {
			real := filepath.Join(n.RunDir, "real")
			n.write(real, changed, 0o644)
			require.NoError(n.t, os.Symlink(real, n.conf("link.tmp")))
			require.NoError(n.t, os.Rename(n.conf("link.tmp"), n.conf(file)))
		}, nil},
		{"Cilium comes first", func(n *node) { n.put(n.conf("05-cilium.conflist"), ciliumList) }, func(n *node) bool {
			return n.loaded().Name == "05-cilium.conflist"
		}},
		{"a .conf comes first", func(n *node) { n.put(n.conf("05-x.conf"), bridgeConf) }, func(n *node) bool {
			return n.loaded().Name == "05-x.conflist"
		}},
		{"the binary is removed", func(n *node) { require.NoError(n.t, os.Remove(n.binary())) }, nil},
		{"the binary is overwritten", func(n *node) { n.put(n.binary(), "another") }, func(n *node) bool {
			return n.read(n.binary()) == "#!/bin/true\n"
		}},
		{"the kubeconfig is removed", func(n *node) { require.NoError(n.t, os.Remove(n.kubeconfig())) }, nil},
		{"the kubeconfig is opened to all", func(n *node) { require.NoError(n.t, os.Chmod(n.kubeconfig(), 0o644)) }, func(n *node) bool {
			info, err := os.Stat(n.kubeconfig())
			return err == nil && info.Mode() == 0o600
		}},
		{"the token rotates", func(n *node) { n.put(filepath.Join(n.ServiceAccountDir, "token"), "token-2") }, func(n *node) bool {
			data, _ := os.ReadFile(n.kubeconfig())
			return strings.Contains(string(data), `"token-2"`)
		}},
		{"the run directory is emptied", func(n *node) { n.removeBeside(n.RunDir) }, func(n *node) bool {
			_, err := os.Stat(filepath.Join(n.RunDir, "log.sock"))
			return err == nil
		}},
		{"the image brings a new binary", func(n *node) { n.put(filepath.Join(n.BinSourceDir, pluginName), "v2") }, func(n *node) bool {
			data, _ := os.ReadFile(n.binary())
			return string(data) == "v2"
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, map[string]string{file: calicoList})
			a, _ := n.agent(onEvents)
			within(t, patience, "ready at first", ready(a))
			tc.do(n)
			within(t, patience, "captured again", func() bool {
				_, noBinary := os.Stat(n.binary())
				_, noKubeconfig := os.Stat(n.kubeconfig())
				return n.captured() && noBinary == nil && noKubeconfig == nil && (tc.want == nil || tc.want(n))
			})
			within(t, patience, "ready again", ready(a))
		})
	}
}

func TestAgentWaitsForTheNetwork(t *testing.T) {
	n := newNode(t, nil)
	require.NoError(t, os.RemoveAll(n.CNIConfDir))
	a, _ := n.agent(onEvents)
	within(t, patience, "blocked", func() bool { return code(a) == "conf-dir" })
	require.NoError(t, os.Mkdir(n.CNIConfDir, 0o755))
	within(t, patience, "blocked", func() bool { return code(a) == "no-network" })
	n.put(n.conf("10-azure.conflist"), calicoList)
	within(t, patience, "ready", ready(a))
	assert.True(t, n.captured())
}

// The kubelet rotates a projected token by swapping the ..data link. The node stays ready all the while.
func TestTokenRotationDoesNotFlap(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	dir := n.ServiceAccountDir
	for _, name := range []string{"token", "ca.crt"} {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
		require.NoError(t, os.Symlink("..data/"+name, filepath.Join(dir, name)))
	}
	rotate := func(token string) {
		generation := "..gen-" + token
		require.NoError(t, os.Mkdir(filepath.Join(dir, generation), 0o755))
		n.write(filepath.Join(dir, generation, "token"), token, 0o600)
		n.write(filepath.Join(dir, generation, "ca.crt"), "CA", 0o600)
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		require.NoError(t, os.Symlink(generation, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		if old != "" {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, old)))
		}
	}
	rotate("t0")
	a, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	var flaps atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if a.Ready() != nil {
				flaps.Add(1)
			}
		}
	}()
	for _, token := range []string{"t1", "t2", "t3", "t4", "t5"} {
		rotate(token)
		within(t, patience, token, func() bool { return strings.Contains(n.read(n.kubeconfig()), `"`+token+`"`) })
	}
	cancel()
	<-done
	assert.Zero(t, flaps.Load())
}

// While the owner writes its file in place, it is invalid for an instant: the next file in line must not be chosen then.
func TestTornFileIsWaitedOut(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList, "87-podman.conflist": ciliumList})
	a, _ := n.agent(func(o *Options) { onEvents(o); o.Settle = time.Hour })
	within(t, patience, "ready", ready(a))
	f, err := os.OpenFile(n.conf("10-calico.conflist"), os.O_WRONLY|os.O_TRUNC, 0)
	require.NoError(t, err)
	defer f.Close()
	half := len(calicoList) / 2
	_, err = f.WriteString(calicoList[:half])
	require.NoError(t, err)
	// The agent has seen the half when it has repaired something that was broken after it.
	require.NoError(t, os.Remove(n.kubeconfig()))
	within(t, patience, "looked", func() bool { _, err := os.Stat(n.kubeconfig()); return err == nil })
	assert.Equal(t, ciliumList, n.read(n.conf("87-podman.conflist")))
	_, err = f.WriteString(calicoList[half:])
	require.NoError(t, err)
	within(t, patience, "captured", n.captured)
	assert.Equal(t, "10-calico.conflist", n.loaded().Name)
	assert.Equal(t, ciliumList, n.read(n.conf("87-podman.conflist")))
}

func TestPollingWhenInotifyIsExhausted(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	w := newWatcher(discard, nil)
	w.newFS = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
	a, err := New(Options{Config: n.Config, Poll: 10 * time.Millisecond, Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	l := a.newLoop()
	go func() { defer close(done); l.run(ctx, w) }()
	defer func() { cancel(); <-done; l.end() }()
	within(t, patience, "ready", ready(a))
	n.put(n.conf("10-calico.conflist"), calicoList)
	within(t, patience, "captured", n.captured)
	assert.Contains(t, scrape(t, a), "\nmeshcni_watch_polling 1\n")
}

func TestConflictingWriterIsNamed(t *testing.T) {
	n := newNode(t, map[string]string{"05-cilium.conflist": ciliumList})
	a, _ := n.agent(onEvents, func(a *Agent) {
		a.contest = contest{limit: 4, window: 2 * time.Second, first: 50 * time.Millisecond, max: time.Second}
	})
	within(t, patience, "ready", ready(a))
	within(t, patience, "a conflict", func() bool {
		if n.captured() {
			n.put(n.conf("05-cilium.conflist"), ciliumList)
		}
		return code(a) == "fight"
	})
	reason := a.Ready().Error()
	assert.Contains(t, reason, "05-cilium.conflist: our entry was removed 4 times in")
	assert.Contains(t, reason, "cni.exclusive=false")
	assert.Contains(t, scrape(t, a), "\nmeshcni_fights_total 1\n")
	within(t, patience, "the conflict is over", ready(a))
	assert.True(t, n.captured())
}

func TestUninstallBesideARunningAgent(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	a, stop := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	n.uninstall()
	within(t, patience, "resting", func() bool { return code(a) == "uninstalled" })
	n.put(n.conf("10-calico.conflist"), calicoList)
	assert.Equal(t, "uninstalled", code(a))
	assert.NoFileExists(t, n.binary())
	stop()
	assert.False(t, n.captured())

	b, _ := n.agent(onEvents) // the next one installs again
	within(t, patience, "ready", ready(b))
	assert.True(t, n.captured())
}

// During a rolling upgrade two agents run; the newer one alone acts, and the older one again if the newer goes.
func TestTheNewerAgentActs(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	a, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	n.BinSourceDir = t.TempDir()
	n.write(filepath.Join(n.BinSourceDir, pluginName), "v2", 0o755)
	n.Plugin.Dialects = netconf.Dialects{"linkerd"}
	b, stop := n.agent(onEvents)
	within(t, patience, "ready", ready(b))
	within(t, patience, "superseded", func() bool { return code(a) == "superseded" })
	for range 3 {
		require.NoError(t, os.Remove(n.binary()))
		within(t, patience, "repaired", func() bool { _, err := os.Stat(n.binary()); return err == nil })
		assert.Equal(t, "v2", n.read(n.binary()))
	}
	stop()
	within(t, patience, "the older one acts again", func() bool {
		return a.Ready() == nil && n.read(n.binary()) == "#!/bin/true\n" && strings.Contains(n.read(n.conf("10-calico.conflist")), "istio")
	})
}

// A new agent takes an older one's place only once it can do its work, and what it is told to wait for has come. Until then the older one
// goes on, and both say so.
func TestTakesOverOnlyWhatItCanDo(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	old, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(old))
	was := n.tree()
	var turns atomic.Int32
	var waits atomic.Bool
	waits.Store(true)
	confDir := n.CNIConfDir
	n.CNIConfDir = t.TempDir() // the wrong one
	awaits := func(o *Options) {
		onEvents(o)
		o.OnTurn = func(acts, _ bool) { assert.True(t, acts); turns.Add(1) }
		o.TakeOver = func() error {
			if waits.Load() {
				return errors.New("pods are being released")
			}
			return nil
		}
	}
	unable, stop := n.agent(onEvents)
	within(t, patience, "it waits", func() bool { return code(unable) == "waiting" })
	assert.ErrorContains(t, unable.Ready(), n.CNIConfDir)
	require.NoError(t, old.Ready())
	stop()
	n.CNIConfDir = confDir
	assert.Equal(t, was, n.tree())
	next, stop := n.agent(awaits)
	within(t, patience, "it waits", func() bool { return code(next) == "waiting" })
	assert.ErrorContains(t, next.Ready(), "pods are being released")
	require.NoError(t, old.Ready())
	require.NoError(t, os.Remove(n.binary()))
	within(t, patience, "the old one goes on", func() bool { _, err := os.Stat(n.binary()); return err == nil })
	assert.Zero(t, turns.Load())
	waits.Store(false)
	within(t, patience, "ready", ready(next))
	within(t, patience, "superseded", func() bool { return code(old) == "superseded" })
	assert.EqualValues(t, 1, turns.Load())
	stop()
	within(t, patience, "the older one acts again", ready(old))
}

// While a new agent begins beside the old one, the kubeconfig has the token of one that is there: the new one's before it is
// ready, and never the old one's again, whose pod, and so whose token, is then taken away.
func TestTheNewerAgentsToken(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	a, stop := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	older := n.ServiceAccountDir
	n.ServiceAccountDir = t.TempDir()
	n.write(filepath.Join(n.ServiceAccountDir, "token"), "token-of-the-newer", 0o600)
	n.write(filepath.Join(n.ServiceAccountDir, "ca.crt"), "the CA", 0o644)
	b, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(b))
	assert.Contains(t, n.read(n.kubeconfig()), `"token-of-the-newer"`)
	within(t, patience, "superseded", func() bool { return code(a) == "superseded" })
	n.put(filepath.Join(older, "token"), "token-2") // the kubelet renews it still
	require.NoError(t, os.Remove(n.kubeconfig()))
	within(t, patience, "written again", func() bool { _, err := os.Stat(n.kubeconfig()); return err == nil })
	assert.Contains(t, n.read(n.kubeconfig()), `"token-of-the-newer"`)
	stop()
	assert.Contains(t, n.read(n.kubeconfig()), `"token-of-the-newer"`)
	assert.NoError(t, b.Ready())
}

func TestStopKeepsThePluginUnlessTold(t *testing.T) {
	for _, uninstalls := range []bool{false, true} {
		n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
		a, stop := n.agent(func(o *Options) { o.UninstallOnExit = uninstalls })
		within(t, patience, "ready", ready(a))
		stop()
		assert.Equal(t, !uninstalls, n.captured())
		_, err := os.Stat(n.binary())
		assert.Equal(t, !uninstalls, err == nil)
		assert.NoFileExists(t, filepath.Join(n.RunDir, "log.sock"))
	}
}

// An agent that is asked whether it goes for good takes the plugin back only then, and is asked at the end only.
func TestStopAsksWhetherItIsForGood(t *testing.T) {
	for _, leaving := range []bool{false, true} {
		n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
		asked := 0
		a, stop := n.agent(func(o *Options) {
			o.UninstallOnExit = true
			o.Leaving = func(ctx context.Context) (bool, string) {
				assert.NoError(t, ctx.Err(), "there is time to ask")
				asked++
				return leaving, "the test says so"
			}
		})
		within(t, patience, "ready", ready(a))
		assert.Zero(t, asked)
		stop()
		assert.Equal(t, 1, asked)
		assert.Equal(t, !leaving, n.captured())
	}
}

func TestOwnFileFollowsTheOwner(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.OwnFile = SwitchOn
	a, _ := n.agent(onEvents)
	within(t, patience, "ready", ready(a))
	changed := strings.Replace(calicoList, `"calico"`, `"calico", "mtu": 1440`, 1)
	n.put(n.conf("10-calico.conflist"), changed)
	within(t, patience, "followed", func() bool {
		data, _ := os.ReadFile(n.conf("00-meshcni.conflist"))
		return strings.Contains(string(data), "1440")
	})
	assert.Equal(t, changed, n.read(n.conf("10-calico.conflist")))
	require.NoError(t, os.Remove(n.conf("10-calico.conflist"))) // the owner restarts
	within(t, patience, "not ready", func() bool { return code(a) == "no-network" })
	assert.True(t, n.captured(), "until it is back, its plugin with ours refuses pods")
}

// MESHCNI_REWRITES sets how many; 1000 by default.
func TestManyRewrites(t *testing.T) {
	rewrites := setting(t, "MESHCNI_REWRITES", 1000)
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	a, _ := n.agent(func(o *Options) { o.Log = nil }, func(a *Agent) {
		a.contest.window, a.contest.max = 100*time.Millisecond, 100*time.Millisecond
	})
	within(t, patience, "ready", ready(a))
	for range rewrites {
		n.put(n.conf("10-calico.conflist"), calicoList)
	}
	within(t, patience, "captured", func() bool { return n.captured() && a.Ready() == nil })
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	assert.Less(t, len(entries), 64, "file descriptors leak")
}
