//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/repair"
	"github.com/meshcni/meshcni/status"
)

// knowing is a controller that knows pods.
type knowing struct {
	fake

	pods     []status.Pod
	reported chan repair.Bypasses
}

func (k knowing) Pods() []status.Pod               { return k.pods }
func (k knowing) ReportBypasses(b repair.Bypasses) { k.reported <- b }

// forever runs until it is stopped.
var forever = fake(func(ctx context.Context) error { <-ctx.Done(); return nil })

var threePods = []status.Pod{
	{ID: status.ID{Namespace: "shop", Name: "cart", UID: "u1"}, Dialect: "istio", State: "captured", Reason: "recorded", Since: time.Unix(0, 0), Backend: "nftables"},
	{ID: status.ID{Namespace: "shop", Name: "late", UID: "u2"}, Dialect: "istio", State: status.StateFailed, Reason: "not-called", Detail: "its network was set up without the plugin"},
	{ID: status.ID{Namespace: "shop", Name: "odd", UID: "u3"}, Dialect: "istio", State: status.StateUnknown, Reason: "no-trace"},
}

// TestStatus: what the running agent knows is in the run directory, for as long as it runs.
func TestStatus(t *testing.T) {
	dir, o := node(t)
	o.Config.Node, o.Config.Identity.Agent = "n1", "acme-node"
	o.open = func(r repair.Options) (controller, error) {
		require.NotNil(t, r.Detect, "by default")
		assert.True(t, r.Detect.Act)
		assert.Equal(t, dir+"/cache", r.Detect.CacheDir)
		assert.Equal(t, []string{"meshcni"}, r.Detect.Types)
		return knowing{fake: forever, pods: threePods}, nil
	}
	agent := start(t, o)
	var s Status
	require.Eventually(t, func() bool {
		var err error
		s, err = ReadStatus(t.Context(), dir+"/run")
		return err == nil && s.Ready && len(s.Pods) == 3
	}, netnstest.Patience, 10*time.Millisecond)
	info, err := os.Stat(filepath.Join(dir, "run", statusFile))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	assert.Equal(t, "n1", s.Node)
	assert.Equal(t, []string{
		"uncaptured: 1 of the node's pods are in the mesh and bypass it (acme-node pods names them)",
		"cannot-tell: 1 of the node's pods are in the mesh, and nothing on the node says whether they have their rules (acme-node pods names them)",
	}, news.Warnings(s.News))
	var states []string
	for _, p := range s.Pods {
		states = append(states, string(p.State))
	}
	assert.Equal(t, []string{"captured", "failed", "unknown"}, states)
	require.NoError(t, agent.end())
	_, err = ReadStatus(t.Context(), dir+"/run")
	require.ErrorContains(t, err, "is it running on this node?")
}

// TestStatusOfARefusedPod: a pod that ADD refuses has no network, and is not well.
func TestStatusOfARefusedPod(t *testing.T) {
	dir, o := node(t)
	agent := start(t, o.opens(knowing{fake: forever}))
	require.Eventually(t, func() bool { return agent.Ready() == nil }, netnstest.Patience, 10*time.Millisecond)
	plugin, err := net.Dial("unixgram", filepath.Join(dir, "run", "log.sock"))
	require.NoError(t, err)
	defer plugin.Close()
	_, err = plugin.Write([]byte(`{"msg":"failed","verb":"ADD","reason":"pod-refused","code":7,"error":"annotation a: no number","hint":"correct it","namespace":"shop","pod":"bad","uid":"u9"}`))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(agent.Status().Pods) == 1 }, netnstest.Patience, 10*time.Millisecond)
	p := agent.Status().Pods[0]
	assert.Equal(t, []string{"waiting", "shop", "bad", "pod-refused", "annotation a: no number; correct it"}, []string{string(p.State), p.Namespace, p.Name, string(p.Reason), p.Detail})
	assert.True(t, p.NeedsAttention())
	require.NoError(t, agent.end())
}

func TestStatusOfAnAgentThatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), statusFile)
	at := time.Unix(1e9, 0)
	_, err := statusWriter{path: path}.write(Status{Time: at, Ready: true})
	require.NoError(t, err)
	_, err = readStatus(path, at.Add(statusOld))
	require.NoError(t, err)
	_, err = readStatus(path, at.Add(statusOld+time.Second))
	require.ErrorContains(t, err, "31s old")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err = readStatus(path, at)
	require.ErrorContains(t, err, "read the agent's status")
}

// TestDetectionAloneKeepsNobodyFromHisWork: that it cannot begin, or may not list pods, neither ends the agent nor makes it
// unready.
func TestDetectionAloneKeepsNobodyFromHisWork(t *testing.T) {
	_, o := node(t)
	o.open = func(repair.Options) (controller, error) { return nil, errors.New("no such token") }
	agent := start(t, o)
	require.Eventually(t, func() bool {
		return agent.Ready() == nil && slices.Equal([]string{"detection: no such token"}, news.Warnings(agent.Status().News))
	}, netnstest.Patience, 10*time.Millisecond)
	assert.Contains(t, agent.log.String(), "not looked for")
	require.NoError(t, agent.end())
}

// TestBypassesOfPodsThatStarted are handed on, as are those that CHECK sees; others are not.
func TestBypassesOfPodsThatStarted(t *testing.T) {
	reported := make(chan repair.Bypasses, 4)
	r := Options{}.withDefaults().newRepairer()
	decision := func(verb, outcome string) installer.Decision {
		return installer.Decision{
			Pod: status.ID{Namespace: "shop", Name: outcome, UID: "u"}, Verb: verb, Outcome: outcome, Bypasses: []string{"ipv6", "net-raw", "proxy-id"}, DefaultBypasses: []string{"net-raw"},
		}
	}
	r.decided(decision("ADD", "redirected")) // nobody is there yet
	r.set(&repairing{controller: knowing{reported: reported}})
	for _, d := range []installer.Decision{decision("ADD", "redirected"), decision("ADD", "same"), decision("ADD", "failed"), decision("ADD", "passed"), decision("CHECK", "failed"), decision("DEL", "")} {
		r.decided(d)
	}
	close(reported)
	var names []string
	for b := range reported {
		names = append(names, b.Name)
		assert.Equal(t, []dialect.BypassCode{"ipv6", "proxy-id"}, b.Codes, "what every container has is no event")
	}
	assert.Equal(t, []string{"redirected", "same", "failed"}, names)
}

// TestStatusNotWritten: a status that could not be written does not make the one that is there one of now.
func TestStatusNotWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), statusFile)
	other := time.Unix(1e9, 0)
	ctx, stop := context.WithCancel(t.Context())
	asked := 0
	err := statusWriter{path: path, log: slog.New(slog.DiscardHandler), now: func() Status {
		if asked++; asked == 1 {
			return Status{Time: time.Now()}
		}
		if asked == 2 { // another agent's file is in its place
			require.NoError(t, os.WriteFile(path+".new", []byte("{}"), 0o600))
			require.NoError(t, os.Rename(path+".new", path))
			require.NoError(t, os.Chtimes(path, other, other))
		} else {
			stop()
		}
		return Status{Time: time.Now()}
	}}.run(ctx)
	require.NoError(t, err)
	is, err := os.Stat(path)
	require.NoError(t, err)
	assert.True(t, is.ModTime().Equal(other), "%s", is.ModTime())
}

// TestStatusOnAFullDisk: what cannot be written each second is logged once.
func TestStatusOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	netnstest.Require(t, netnstest.Need{Name: "the right to mount a tmpfs", Check: func() error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k") }})
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600), unix.ENOSPC)
	var log output
	ctx, stop := context.WithCancel(t.Context())
	asked := 0
	require.NoError(t, statusWriter{path: filepath.Join(dir, statusFile), log: slog.New(slog.NewTextHandler(&log, nil)), now: func() Status {
		if asked++; asked == 4 {
			stop()
		}
		return Status{Time: time.Now()}
	}}.run(ctx))
	assert.Equal(t, 1, strings.Count(log.String(), "the status file cannot be written"), log.String())
	assert.Contains(t, log.String(), statusFile+": no space left on device")
}

// TestStatusOfNow: what was so before a command began is what it says, though the agent looks only now and then.
func TestStatusOfNow(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), statusFile)
	var version atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- statusWriter{path: path, log: slog.New(slog.DiscardHandler), now: func() Status {
			return Status{Time: time.Now(), Ready: true, Node: strconv.FormatInt(version.Load(), 10)}
		}}.run(ctx)
	}()
	require.Eventually(t, func() bool { _, err := readStatus(path, time.Now()); return err == nil }, netnstest.Patience, time.Millisecond)
	for i := range int64(3) {
		version.Store(i + 1)
		s, err := ReadStatus(ctx, filepath.Dir(path))
		require.NoError(t, err)
		assert.Equal(t, strconv.FormatInt(i+1, 10), s.Node)
	}
	stop()
	require.NoError(t, <-done)
	_, err := ReadStatus(t.Context(), filepath.Dir(path))
	require.ErrorContains(t, err, "no agent has written its status")
}
