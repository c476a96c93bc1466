//go:build linux

package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/internal/testing/longtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crashAgent is the process that is killed: an agent on even rounds, installs and uninstalls in turn on odd ones.
func crashAgent(dir string) {
	c := nodeConfig(dir)
	c.OwnFile = Switch(os.Getenv("MESHCNI_TEST_OWN_FILE"))
	if os.Getenv("MESHCNI_TEST_ODD") == "" {
		a, err := New(Options{Config: c, Settle: time.Millisecond})
		if err == nil {
			if c.OwnFile != SwitchAuto {
				a.contest.limit = 1 << 30
			}
			err = a.Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		_, err := Install(context.Background(), c, discard)
		if err == nil {
			_, err = Uninstall(context.Background(), c, discard)
		}
		if err != nil && !errors.Is(err, diskfile.ErrChanged) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// TestCrash kills the agent with SIGKILL after each of its first changes to the node, while the owner rewrites its file, and
// watches the directory as a runtime does. MESHCNI_CRASH_ROUNDS sets the number of kills for each kind of node; 60 by
// default, which is the first 30 changes of an agent and of installs and uninstalls in turn. Without it, and without the tag long,
// the kinds share these between them: each is killed after every third.
func TestCrash(t *testing.T) {
	rounds := setting(t, "MESHCNI_CRASH_ROUNDS", 60)
	all := longtest.On || os.Getenv("MESHCNI_CRASH_ROUNDS") != ""
	for k, kind := range []struct {
		name, file, data string
		own              Switch
	}{
		{"list", "10-calico.conflist", calicoList, SwitchOff},
		{"conf", "10-x.conf", bridgeConf, SwitchOff},
		{"own-file", "10-calico.conflist", calicoList, SwitchOn},
		{"auto", "10-calico.conflist", calicoList, SwitchAuto},
		{"auto-conf", "10-x.conf", bridgeConf, SwitchAuto},
	} {
		t.Run(kind.name, func(t *testing.T) {
			n := newNode(t, nil)
			n.OwnFile = kind.own
			w := &owner{node: n, path: n.conf(kind.file), template: kind.data}
			w.write()
			stop := make(chan struct{})
			var watching sync.WaitGroup
			var looks int
			watching.Go(func() { looks = n.watchAsRuntime(stop) })
			var killed, left int
			for i := range rounds {
				if !all && i/2%3 != k%3 {
					continue
				}
				killed += w.round(i)
				left += w.check()
				if t.Failed() {
					break
				}
			}
			close(stop)
			watching.Wait()
			t.Logf("%d kills, %d rewrites by the owner, %d looks by the runtime, %d temporary files left behind", killed, w.version, looks, left)
			require.Greater(t, looks, killed, "the runtime hardly looked")

			n.install() // repairs and cleans up
			require.True(t, n.captured())
			for _, dir := range []string{n.CNIConfDir, n.CNIBinDirs[0], n.RunDir} {
				entries, err := os.ReadDir(dir)
				require.NoError(t, err)
				for _, e := range entries {
					assert.False(t, diskfile.IsTemp(e.Name()), "%s is left", e.Name())
				}
			}
			n.uninstall()
			files, err := os.ReadDir(n.CNIConfDir)
			require.NoError(t, err)
			require.Len(t, files, 1)
			assert.Equal(t, w.last, n.read(w.path))
		})
	}
}

// setting is a number from the environment, for the long forms of tests.
func setting(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err, name)
	return n
}

// owner is the primary plugin's agent.
type owner struct {
	*node
	path, template string
	version        int
	last           string
}

// write replaces the owner's file, as at its restart.
func (w *owner) write() {
	w.version++
	w.last = strings.Replace(w.template, `"type"`, `"version": `+strconv.Itoa(w.version)+`, "type"`, 1)
	w.put(w.path, w.last)
}

// round lets an agent live until it has been seen to change so many things on the node, one more in each round, with the
// owner writing whenever its file has our entry.
func (w *owner) round(i int) int {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "MESHCNI_TEST_CRASH_AGENT="+filepath.Dir(w.CNIConfDir), "MESHCNI_TEST_OWN_FILE="+string(w.OwnFile))
	if i%2 == 1 {
		cmd.Env = append(cmd.Env, "MESHCNI_TEST_ODD=1")
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if i%4 == 0 {
		_ = os.Remove(w.kubeconfig())
	}
	changes, err := fsnotify.NewWatcher()
	require.NoError(w.t, err)
	defer changes.Close()
	require.NoError(w.t, os.MkdirAll(w.RunDir, 0o755))
	for _, dir := range []string{w.CNIConfDir, w.CNIBinDirs[0], w.RunDir} {
		require.NoError(w.t, changes.Add(dir))
	}
	require.NoError(w.t, cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	w.write()
	for seen := 0; seen <= i/2; {
		select {
		case ev := <-changes.Events:
			if !strings.HasSuffix(ev.Name, ownersTemp) {
				seen++
			}
		case err := <-changes.Errors:
			require.NoError(w.t, err)
		case <-ended:
			require.Fail(w.t, "the agent ended by itself", "%s", &stderr)
		}
		if w.captured() {
			w.write()
		}
	}
	require.NoError(w.t, cmd.Process.Kill())
	<-ended
	if !assert.False(w.t, cmd.ProcessState.Exited(), "the agent ended by itself: %s", &stderr) {
		return 0
	}
	return 1
}

// check looks at what a killed agent has left: every file whole, and the owner's last word not lost.
func (w *owner) check() (left int) {
	entries, err := os.ReadDir(w.CNIConfDir)
	require.NoError(w.t, err)
	found := false
	for _, e := range entries {
		data := w.read(w.conf(e.Name()))
		switch {
		case diskfile.IsTemp(e.Name()):
			left++ // may be cut short: nobody looks at it
		case strings.HasPrefix(e.Name(), ".meshcni-"): // what an agent remembers
		default:
			_, err := conflist.Parse([]byte(data))
			assert.NoError(w.t, err, "%s is torn: %q", e.Name(), data)
		}
		found = found || strings.Contains(data, fmt.Sprintf(`"version": %d,`, w.version))
	}
	assert.True(w.t, found, "the owner's version %d is lost", w.version)
	return left
}

// watchAsRuntime loads the network as fast as it can. What it finds wrong it looks at again, since listing and reading a
// directory is not one step: only what is wrong both times is.
func (n *node) watchAsRuntime(stop <-chan struct{}) (looks int) {
	for {
		select {
		case <-stop:
			return looks
		default:
		}
		looks++
		var wrong error
		for range 3 {
			if wrong = n.danger(); wrong == nil {
				break
			}
		}
		if !assert.NoError(n.t, wrong) {
			return looks
		}
	}
}

func (n *node) danger() error {
	choice, err := conflist.Primary(os.DirFS(n.CNIConfDir))
	if err != nil {
		return err
	}
	if !choice.File.Has(pluginName) {
		return nil
	}
	if info, err := os.Stat(n.binary()); err == nil && info.Mode()&0o111 != 0 && info.Size() > 0 {
		return nil
	}
	now, err := os.ReadFile(n.conf(choice.Name))
	if errors.Is(err, fs.ErrNotExist) || !bytes.Equal(now, choice.File.Bytes()) {
		return nil // taken out between the two looks
	}
	return fmt.Errorf("%s names a binary that is not there", choice.Name)
}
