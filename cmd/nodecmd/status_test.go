//go:build linux

package nodecmd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/cmd/repaircmd"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/repair"
)

// knowing is a controller that knows pods.
type knowing struct {
	fake

	pods     []repair.PodStatus
	reported chan repair.Bypasses
}

func (k knowing) Pods() []repair.PodStatus         { return k.pods }
func (k knowing) ReportBypasses(b repair.Bypasses) { k.reported <- b }

// forever runs until it is stopped.
var forever = fake(func(ctx context.Context) error { <-ctx.Done(); return nil })

var threePods = []repair.PodStatus{
	{Namespace: "shop", Name: "cart", UID: "u1", Dialect: "istio", State: "captured", Reason: "recorded", Since: time.Unix(0, 0), Backend: "nftables"},
	{Namespace: "shop", Name: "late", UID: "u2", Dialect: "istio", State: "uncaptured", Reason: "not-called", Detail: "its network was set up without the plugin"},
	{Namespace: "shop", Name: "odd", UID: "u3", Dialect: "istio", State: "cannot-tell", Reason: "no-trace"},
}

// TestStatus: the commands say what the running agent knows, for as long as it runs.
func TestStatus(t *testing.T) {
	dir, env := node(t)
	app := Program{Env: lookup(env), open: func(s repaircmd.Settings, _ repaircmd.Host) (controller, error) {
		assert.True(t, s.Detect, "by default")
		assert.Equal(t, dir+"/cache", s.CNICacheDir)
		return knowing{fake: forever, pods: threePods}, nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		done <- app.Main(ctx, []string{"run", "--metrics-address", "", "--health-address", "", "--node-name", "n1"})
	}()
	var status string
	require.Eventually(t, func() bool {
		code, out, _ := run(t, env, "status", "-o", "json")
		var s Status
		status = out
		return code == 0 && json.Unmarshal([]byte(out), &s) == nil && s.Ready && len(s.Pods) == 3
	}, netnstest.Patience, 10*time.Millisecond)
	assert.Contains(t, status, `"node": "n1"`)
	info, err := os.Stat(filepath.Join(dir, "run", statusFile))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())

	code, out, _ := run(t, env, "status")
	assert.Equal(t, 1, code, "a pod bypasses the mesh")
	assert.Equal(t, `node n1: ready
warning: uncaptured: 1 of the node's pods are in the mesh and bypass it (meshcni-node pods names them)
warning: cannot-tell: 1 of the node's pods are in the mesh, and nothing on the node says whether they have their rules (meshcni-node pods names them)
failed: shop/late not-called: its network was set up without the plugin
`, out)
	code, out, _ = run(t, env, "pods")
	assert.Equal(t, 1, code)
	assert.Equal(t, `NAMESPACE  NAME  UID  DIALECT  STATE     REASON      SINCE                 BACKEND   BYPASSES  CONNTRACK
shop       cart  u1   istio    captured  recorded    1970-01-01T00:00:00Z  nftables  -         -
shop       late  u2   istio    failed    not-called  -                     -         -         -
shop       odd   u3   istio    waiting   no-trace    -                     -         -         -
`, out)
	cancel()
	assert.Equal(t, 0, <-done)
	code, _, stderr := run(t, env, "status")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "is it running on this node?")
}

// TestStatusOfARefusedPod: a pod that ADD refuses has no network, and is not well.
func TestStatusOfARefusedPod(t *testing.T) {
	dir, env := node(t)
	app := Program{Env: lookup(env), open: func(repaircmd.Settings, repaircmd.Host) (controller, error) { return knowing{fake: forever}, nil }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- app.Main(ctx, []string{"run", "--metrics-address", "", "--health-address", ""}) }()
	require.Eventually(t, func() bool { code, _, _ := run(t, env, "status"); return code == 0 }, netnstest.Patience, 10*time.Millisecond)
	plugin, err := net.Dial("unixgram", filepath.Join(dir, "run", "log.sock"))
	require.NoError(t, err)
	defer plugin.Close()
	_, err = plugin.Write([]byte(`{"msg":"failed","verb":"ADD","reason":"pod-refused","code":7,"error":"annotation a: no number","hint":"correct it","namespace":"shop","pod":"bad","uid":"u9"}`))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		code, out, _ := run(t, env, "status")
		return code == 1 && assert.ObjectsAreEqual("node (no name): ready\nwaiting: shop/bad pod-refused: annotation a: no number; correct it\n", out)
	}, netnstest.Patience, 10*time.Millisecond)
	cancel()
	assert.Equal(t, 0, <-done)
}

func TestStatusOfAnAgentThatIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), statusFile)
	at := time.Unix(1e9, 0)
	_, err := reporter{path: path}.write(Status{Time: at, Ready: true})
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
	_, env := node(t)
	var stderr output
	app := Program{Env: lookup(env), Stderr: &stderr, open: func(repaircmd.Settings, repaircmd.Host) (controller, error) {
		return nil, errors.New("no such token")
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- app.Main(ctx, []string{"run", "--metrics-address", "", "--health-address", ""}) }()
	require.Eventually(t, func() bool {
		code, out, _ := run(t, env, "status")
		return code == 0 && assert.ObjectsAreEqual("node (no name): ready\nwarning: detection: no such token\n", out)
	}, netnstest.Patience, 10*time.Millisecond)
	assert.Contains(t, stderr.String(), "not looked for")
	cancel()
	assert.Equal(t, 0, <-done)
}

// TestBypassesOfPodsThatStarted are handed on; others are not.
func TestBypassesOfPodsThatStarted(t *testing.T) {
	reported := make(chan repair.Bypasses, 4)
	r := &repairer{}
	of := func(verb, outcome string) installer.Decision {
		return installer.Decision{
			Pod: attachment.Pod{Namespace: "shop", Name: outcome, UID: "u"}, Verb: verb, Outcome: outcome, Bypasses: []string{"ipv6", "net-raw", "proxy-id"}, DefaultBypasses: []string{"net-raw"},
		}
	}
	r.decided(of("ADD", "redirected")) // nobody is there yet
	r.controller = knowing{reported: reported}
	for _, d := range []installer.Decision{of("ADD", "redirected"), of("ADD", "same"), of("ADD", "failed"), of("ADD", "passed"), of("CHECK", "checked")} {
		r.decided(d)
	}
	close(reported)
	var names []string
	for b := range reported {
		names = append(names, b.Name)
		assert.Equal(t, []dialect.BypassCode{"ipv6", "proxy-id"}, b.Codes, "what every container has is no event")
	}
	assert.Equal(t, []string{"redirected", "same"}, names)
}

// TestStatusNotWritten: a status that could not be written does not make the one that is there one of now.
func TestStatusNotWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), statusFile)
	other := time.Unix(1e9, 0)
	ctx, stop := context.WithCancel(t.Context())
	asked := 0
	err := reporter{path: path, log: slog.New(slog.DiscardHandler), now: func() Status {
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
	netnstest.Require(t, netnstest.Needing("the right to mount a tmpfs", func() error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k") }))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600), unix.ENOSPC)
	var log output
	ctx, stop := context.WithCancel(t.Context())
	asked := 0
	require.NoError(t, reporter{path: filepath.Join(dir, statusFile), log: slog.New(slog.NewTextHandler(&log, nil)), now: func() Status {
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
		done <- reporter{path: path, log: slog.New(slog.DiscardHandler), now: func() Status {
			return Status{Time: time.Now(), Ready: true, Node: strconv.FormatInt(version.Load(), 10)}
		}}.run(ctx)
	}()
	require.Eventually(t, func() bool { _, err := readStatus(path, time.Now()); return err == nil }, netnstest.Patience, time.Millisecond)
	for i := range int64(3) {
		version.Store(i + 1)
		s, err := statusOfNow(ctx, path)
		require.NoError(t, err)
		assert.Equal(t, strconv.FormatInt(i+1, 10), s.Node)
	}
	stop()
	require.NoError(t, <-done)
	_, err := statusOfNow(t.Context(), path)
	require.ErrorContains(t, err, "no agent has written its status")
}
