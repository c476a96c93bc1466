package peerentry

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/conflist"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// errNoNetwork stands for a *[conflist.NoNetworkError].
var errNoNetwork = errors.New("no network")

const chained = `{
  "cniVersion": "1.0.0",
  "name":  "net",
  "plugins": [
    {"type": "ptp", "mtu": 9007199254740993},
    {"type": "istio-cni", "kubernetes": {"kubeconfig": "/x"}},
    {"type": "meshcni"}
  ]
}
`

const alone = `{
  "cniVersion": "1.0.0",
  "name":  "net",
  "plugins": [
    {"type": "ptp", "mtu": 9007199254740993},
    {"type": "meshcni"}
  ]
}
`

// node is one with a list and the other's program.
func node(t *testing.T, list string) Node {
	t.Helper()
	return nodeIn(t, t.TempDir(), list)
}

func nodeIn(t *testing.T, dir, list string) Node {
	t.Helper()
	n := Node{Dir: dir, BinDirs: []string{t.TempDir(), t.TempDir()}, Type: "istio-cni", Own: "meshcni"}
	require.NoError(t, os.WriteFile(filepath.Join(n.BinDirs[1], n.Type), nil, 0o755))
	require.NoError(t, os.WriteFile(n.list(), []byte(list), 0o640))
	return n
}

func (n Node) list() string { return filepath.Join(n.Dir, "10-net.conflist") }

func (n Node) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(n.list())
	require.NoError(t, err)
	return string(text)
}

// TestTakeAndRestore: the list loses one entry, keeps its mode and every other byte, and comes back to the byte.
func TestTakeAndRestore(t *testing.T) {
	n := node(t, chained)
	s, err := n.Take(true)
	require.NoError(t, err)
	assert.True(t, s.Changed)
	assert.Contains(t, s.Diff, "\n-    {\"type\": \"istio-cni\", \"kubernetes\": {\"kubeconfig\": \"/x\"}},\n")
	assert.Equal(t, chained, n.text(t), "a dry run")
	assert.NoFileExists(t, n.kept())

	s, err = n.Take(false)
	require.NoError(t, err)
	assert.Equal(t, alone, n.text(t))
	assert.Equal(t, []string{"ptp", "meshcni"}, s.Plugins)
	assert.True(t, s.Changed && s.Own && s.Binary && !s.Chained)
	info, err := os.Stat(n.list())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o640), info.Mode())
	require.NotNil(t, s.Kept)
	assert.Equal(t, "10-net.conflist", s.Kept.File)
	assert.Equal(t, [][]string{{"ptp"}}, s.Kept.Behind)
	assert.JSONEq(t, `{"type": "istio-cni", "kubernetes": {"kubeconfig": "/x"}}`, string(s.Kept.Entries[0]))
	choice, err := conflist.Primary(os.DirFS(n.Dir))
	require.NoError(t, err)
	assert.Equal(t, "10-net.conflist", choice.Name, "no runtime looks at what is kept")

	again, err := n.Take(false)
	require.NoError(t, err)
	assert.False(t, again.Changed)
	assert.Equal(t, s.Kept, again.Kept, "what is kept stays")

	s, err = n.Restore(true)
	require.NoError(t, err)
	assert.True(t, s.Changed)
	assert.Equal(t, alone, n.text(t))
	s, err = n.Restore(false)
	require.NoError(t, err)
	assert.Equal(t, chained, n.text(t))
	assert.True(t, s.Chained && s.Changed)
	assert.NoFileExists(t, n.kept())
	s, err = n.Restore(false)
	require.NoError(t, err, "it is back")
	assert.False(t, s.Changed)
}

// TestKilledBetween: a run that was killed after it kept the entry, and before it changed the list, is carried on or undone.
func TestKilledBetween(t *testing.T) {
	for name, next := range map[string]func(Node) (State, error){
		"carried on": func(n Node) (State, error) { return n.Take(false) },
		"undone":     func(n Node) (State, error) { return n.Restore(false) },
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t, chained)
			s, list, err := n.look()
			require.NoError(t, err)
			require.NoError(t, n.keep(s, list, []byte(alone)))
			s, err = next(n)
			require.NoError(t, err)
			assert.Equal(t, name == "undone", s.Chained)
			if !s.Chained {
				assert.Equal(t, alone, n.text(t))
				_, err = n.Restore(false)
				require.NoError(t, err)
			}
			assert.Equal(t, chained, n.text(t))
			assert.NoFileExists(t, n.kept())
		})
	}
}

// TestOtherWriters: what another program writes meanwhile is not lost, and one that undoes the change is told of.
func TestOtherWriters(t *testing.T) {
	n := node(t, chained)
	once := false
	n.changing = func() {
		if !once {
			once = true
			require.NoError(t, os.WriteFile(n.list(), []byte(`{"name":"net","cniVersion":"1.0.0","plugins":[{"type":"ptp","mtu":1},{"type":"meshcni"},{"type":"istio-cni"}]}`), 0o640))
		}
	}
	s, err := n.Take(false)
	require.NoError(t, err)
	assert.JSONEq(t, `{"name":"net","cniVersion":"1.0.0","plugins":[{"type":"ptp","mtu":1},{"type":"meshcni"}]}`, n.text(t))
	assert.Equal(t, [][]string{{"ptp", "meshcni"}}, s.Kept.Behind)

	n = node(t, chained)
	mtu := 0
	n.changing = func() {
		mtu++
		text, err := json.Marshal(map[string]any{"name": "net", "plugins": []map[string]any{{"type": "ptp", "mtu": mtu}, {"type": "istio-cni"}, {"type": "meshcni"}}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(n.list(), text, 0o640))
	}
	_, err = n.Take(false)
	require.ErrorIs(t, err, ErrFoughtOver)
	assert.Contains(t, n.text(t), "istio-cni")

	// The other's installer has put its own entry in, as of a newer version.
	n = node(t, chained)
	_, err = n.Take(false)
	require.NoError(t, err)
	newer := `{"name":"net","plugins":[{"type":"ptp"},{"type":"meshcni"},{"type":"istio-cni","newer":1}]}`
	require.NoError(t, os.WriteFile(n.list(), []byte(newer), 0o640))
	s, err = n.Restore(false)
	require.NoError(t, err)
	assert.False(t, s.Changed)
	assert.Equal(t, newer, n.text(t))
	assert.NoFileExists(t, n.kept())

	// The network's owner has written its list anew.
	n = node(t, chained)
	_, err = n.Take(false)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(n.list(), []byte(`{"name":"net","plugins":[{"type":"ptp"},{"type":"bandwidth"},{"type":"meshcni"}]}`), 0o640))
	s, err = n.Restore(false)
	require.NoError(t, err)
	assert.Equal(t, []string{"ptp", "istio-cni", "bandwidth", "meshcni"}, s.Plugins)
}

// TestRefusals: each leaves the list as it is.
func TestRefusals(t *testing.T) {
	without := `{"name":"net","plugins":[{"type":"ptp"},{"type":"istio-cni"}]}`
	for name, tc := range map[string]struct {
		list    string
		prepare func(t *testing.T, n *Node)
		restore bool
		want    error
	}{
		"ours is not there": {list: without, want: ErrNoOwn},
		"neither is there":  {list: `{"name":"net","plugins":[{"type":"ptp"}]}`, want: ErrNoOwn},
		"nothing was taken": {list: alone, restore: true, want: ErrNothingKept},
		"broken":            {list: `{"name":`, want: errNoNetwork},
		"a file of our own": {list: chained, want: ErrOwnFile, prepare: func(t *testing.T, n *Node) {
			require.NoError(t, os.Rename(n.list(), filepath.Join(n.Dir, "00-meshcni.conflist")))
		}},
		"the directory is not here": {list: chained, want: os.ErrNotExist, prepare: func(_ *testing.T, n *Node) { n.Dir += "x" }},
		"the program is gone": {list: chained, restore: true, want: ErrNoBinary, prepare: func(t *testing.T, n *Node) {
			_, err := n.Take(false)
			require.NoError(t, err)
			require.NoError(t, os.Remove(filepath.Join(n.BinDirs[1], n.Type)))
		}},
		"what is kept is broken": {list: alone, restore: true, want: ErrUnread, prepare: func(t *testing.T, n *Node) { require.NoError(t, os.WriteFile(n.kept(), []byte("{"), 0o600)) }},
		"another network": {list: chained, restore: true, want: conflist.ErrOtherNetwork, prepare: func(t *testing.T, n *Node) {
			_, err := n.Take(false)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(n.list(), []byte(`{"name":"new","plugins":[{"type":"ptp"},{"type":"meshcni"}]}`), 0o640))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t, tc.list)
			if tc.prepare != nil {
				tc.prepare(t, &n)
			}
			before, _ := os.ReadFile(n.list())
			do := n.Take
			if tc.restore {
				do = n.Restore
			}
			_, err := do(false)
			if errors.Is(tc.want, errNoNetwork) {
				require.ErrorAs(t, err, new(*conflist.NoNetworkError))
			} else {
				require.ErrorIs(t, err, tc.want)
			}
			after, _ := os.ReadFile(n.list())
			assert.Equal(t, string(before), string(after))
		})
	}
}

// TestDisks: a directory that is read-only or full keeps its list, and nothing half done is left.
func TestDisks(t *testing.T) {
	dir := t.TempDir()
	netnstest.Require(t, netnstest.Need{Name: "the right to mount a tmpfs", Check: func() error {
		return unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k")
	}})
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	n := nodeIn(t, dir, chained)

	fill, err := os.Create(filepath.Join(dir, "fill"))
	require.NoError(t, err)
	_, err = fill.Write(make([]byte, 1<<20))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, fill.Close())
	_, err = n.Take(false)
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Equal(t, chained, n.text(t))
	require.NoError(t, os.Remove(fill.Name()))

	require.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=64k"))
	_, err = n.Take(false)
	require.ErrorIs(t, err, syscall.EROFS)
	assert.Equal(t, chained, n.text(t))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}
