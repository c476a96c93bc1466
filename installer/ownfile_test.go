//go:build linux

package installer

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/status"
)

// rewrite runs a program that writes a file anew again and again, each time with a higher "mtu" and without our entry.
func (n *node) rewrite(path, template string) (stop func()) {
	n.t.Helper()
	cmd := exec.Command("sh", "-c", `i=1; while sleep 0.03; do i=$((i+1)); printf %s "$1" | sed "s/MTU/$i/" >"$2.new" && mv "$2.new" "$2" || exit 1; done`, "-", template, path)
	require.NoError(n.t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.Remove(path + ".new")
	})
	n.t.Cleanup(stop)
	return stop
}

var (
	rewritten = strings.Replace(calicoList, `"calico"`, `"calico", "mtu": MTU`, 1)
	mtu       = regexp.MustCompile(`"mtu": (\d+)`)
)

// version is the one that the rewriting program gave a file.
func (n *node) version(path string) int {
	m := mtu.FindStringSubmatch(n.read(path))
	if m == nil {
		return 0
	}
	v, err := strconv.Atoi(m[1])
	require.NoError(n.t, err)
	return v
}

// said returns the agent's news of a code; empty: there is none.
func said(a *Agent, code status.Code) string {
	for _, n := range a.News() {
		if n.Code == code {
			return n.Text
		}
	}
	return ""
}

// listening logs to out.
func listening(out *proctest.Buffer) func(*Options) {
	return func(o *Options) {
		onEvents(o)
		o.Log = slog.New(slog.NewTextHandler(out, nil))
	}
}

// A program keeps rewriting the network's file: the agent takes a file of its own, and from then on the runtime always loads
// our entry. So it stays, whatever becomes of the agent, until the configuration changes.
func TestAutoTakesAFileOfItsOwn(t *testing.T) {
	const file, own = "10-calico.conflist", "00-meshcni.conflist"
	n := newNode(t, map[string]string{file: strings.Replace(rewritten, "MTU", "1", 1)})
	n.OwnFile = SwitchAuto
	var log proctest.Buffer
	a, stop := n.agent(listening(&log))
	within(t, patience, "ready", ready(a))
	assert.Equal(t, file, n.loaded().Name, "the network's, until somebody fights over it")
	assert.Contains(t, scrape(t, a), "\nmeshcni_own_file 0\n")

	stopWriting := n.rewrite(n.conf(file), rewritten)
	within(t, patience, "taken", func() bool { return n.loaded().Name == own && a.Ready() == nil })
	within(t, patience, "shown", func() bool { return strings.Contains(scrape(t, a), "\nmeshcni_own_file 1\n") })
	shown := scrape(t, a)
	assert.Contains(t, shown, "\nmeshcni_fights_total 1\n")
	assert.Contains(t, shown, "\nmeshcni_drift_repairs_total{cause=\"own-file-taken\"} 1\n")
	assert.Contains(t, log.String(), "taking a file of our own")
	assert.Contains(t, said(a, news.OwnFileTaken), "10-calico.conflist: our entry was removed 2 times in")
	always := func(until func() bool) {
		within(t, patience, "more rewrites", func() bool {
			choice := n.loaded()
			assert.Equal(t, own, choice.Name)
			assert.True(t, choice.File.Has(pluginName))
			return until() || t.Failed()
		})
	}
	then := n.version(n.conf(file))
	always(func() bool { return n.version(n.conf(own)) > then+20 }) // it follows
	assert.NotContains(t, n.read(n.conf(file)), pluginName)

	stop() // a new agent finds what the old one decided
	b, stop := n.agent(listening(&log))
	within(t, patience, "ready", ready(b))
	then = n.version(n.conf(file))
	always(func() bool { return n.version(n.conf(own)) > then+20 })
	require.NoError(t, os.Remove(n.conf(own))) // and stays with it
	within(t, patience, "back", func() bool { return n.loaded().Name == own })
	stopWriting()
	within(t, patience, "in step", func() bool { return n.version(n.conf(own)) == n.version(n.conf(file)) })
	stop()
	assert.Contains(t, scrape(t, b), "\nmeshcni_fights_total 0\n")
	assert.Empty(t, b.News())

	n.OwnFile = SwitchOff
	assert.Equal(t, file, n.install().Target)
	assert.NoFileExists(t, n.conf(own))
	n.OwnFile = SwitchAuto
	assert.Equal(t, file, n.install().Target)
	n.uninstall()
	entries, err := os.ReadDir(n.CNIConfDir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

// Where a file of our own would not be loaded first, none is taken: the conflict is reported as it is otherwise.
func TestAutoDoesNotTakeWhatWouldNotHelp(t *testing.T) {
	const file = "00-a.conflist"
	n := newNode(t, map[string]string{file: strings.Replace(rewritten, "MTU", "1", 1)})
	n.OwnFile = SwitchAuto
	var log proctest.Buffer
	a, _ := n.agent(listening(&log))
	within(t, patience, "ready", ready(a))
	n.rewrite(n.conf(file), rewritten)
	within(t, patience, "a conflict", func() bool { return code(a) == "fight" })
	require.ErrorContains(t, a.Ready(), "--own-file (chart: cni.ownFile=true)")
	assert.Contains(t, log.String(), "own-file=auto cannot end it")
	assert.Contains(t, log.String(), "sorts-later")
	assert.NoFileExists(t, n.conf("00-meshcni.conflist"))
	within(t, patience, "told", func() bool { return said(a, "fight") != "" })
	assert.Empty(t, said(a, news.OwnFileTaken))
}

// Without auto the remedy is named before a conflict is certain, and again with the code; when it is over, that is told.
func TestAConflictIsToldWithItsRemedy(t *testing.T) {
	const file = "10-calico.conflist"
	n := newNode(t, map[string]string{file: calicoList})
	var log proctest.Buffer
	a, _ := n.agent(listening(&log), func(a *Agent) {
		a.contest = contest{limit: 3, window: 2e9, first: 5e7, max: 1e9}
	})
	within(t, patience, "ready", ready(a))
	lose := func() {
		n.put(n.conf(file), calicoList)
		within(t, patience, "back", n.captured)
	}
	lose()
	assert.NotContains(t, log.String(), "--own-file", "once is no conflict")
	lose()
	within(t, patience, "said", func() bool {
		return strings.Contains(log.String(), "our entry was removed again") && strings.Contains(log.String(), "--own-file")
	})
	assert.Empty(t, said(a, "fight"))
	n.put(n.conf(file), calicoList)
	within(t, patience, "told", func() bool { return said(a, "fight") != "" })
	assert.Contains(t, said(a, "fight"), "; set --own-file (chart: cni.ownFile=true), with which")
	within(t, patience, "over", func() bool { return len(a.News()) == 0 })
}

func TestOwnFileValues(t *testing.T) {
	for text, want := range map[string]Switch{"true": SwitchOn, "1": SwitchOn, "false": SwitchOff, "auto": SwitchAuto} {
		var o Switch
		require.NoError(t, o.UnmarshalText([]byte(text)))
		assert.Equal(t, want, o)
	}
	var o Switch
	require.ErrorContains(t, o.UnmarshalText([]byte("perhaps")), `"perhaps" is not auto, true or false`)

	n := newNode(t, nil)
	for _, tc := range []struct {
		own  Switch
		name string
		says string
	}{
		{"", "", ""}, {SwitchAuto, "", ""},
		{SwitchAuto, "00-a.conflist", ""}, {SwitchAuto, "00-meshcni.conflist", "is the name of the list that own-file=auto may keep"},
		{"perhaps", "", `own-file "perhaps"`},
	} {
		n.OwnFile, n.CNIConfName = tc.own, tc.name
		err := n.Validate()
		if tc.says == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, tc.says)
		}
	}
	n.OwnFile, n.CNIConfName, n.Chained = SwitchAuto, "", false
	require.NoError(t, n.Validate())
	n.OwnFile = SwitchOn
	require.ErrorContains(t, n.Validate(), "own-file needs chained")
}

// A file by our own name that is somebody else's is refused from the start, not when it is needed.
func TestAutoNeedsItsName(t *testing.T) {
	n := newNode(t, map[string]string{"00-meshcni.conflist": calicoList})
	n.OwnFile = SwitchAuto
	_, err := Install(t.Context(), n.Config, discard)
	require.ErrorContains(t, err, "own-name-taken")
	require.ErrorContains(t, err, filepath.Join(n.CNIConfDir, "00-meshcni.conflist"))
	assert.Equal(t, calicoList, n.read(n.conf("00-meshcni.conflist")), fmt.Sprint(err))
}

// While the owner writes the file in place, from which ours is derived, the node stays ready: ours is in force.
func TestTornFileIsNoNews(t *testing.T) {
	const file = "10-calico.conflist"
	for _, own := range []Switch{SwitchOff, SwitchOn} {
		n := newNode(t, map[string]string{file: calicoList})
		n.OwnFile = own
		a, _ := n.agent(func(o *Options) { onEvents(o); o.Settle = time.Hour })
		within(t, patience, "ready", ready(a))
		for range 2 {
			n.write(n.conf(file), calicoList[:len(calicoList)/2], 0o644)
			// The agent has seen the half when it has repaired something that was broken after it.
			require.NoError(t, os.Remove(n.kubeconfig()))
			within(t, patience, "looked", func() bool { _, err := os.Stat(n.kubeconfig()); return err == nil })
			require.NoError(t, a.Ready())
			n.write(n.conf(file), calicoList, 0o644)
			within(t, patience, "captured", n.captured)
		}
	}
}
