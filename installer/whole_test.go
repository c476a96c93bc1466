//go:build linux

package installer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/conflist"
)

const canalList = `{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"calico","ipam":{"type":"host-local"}},{"type":"portmap"}]}`

// multus is the file of a Multus that delegates to another file.
func multus(to string) string {
	return `{"cniVersion":"0.3.1","name":"multus-cni-network","clusterNetwork":"/host/etc/cni/net.d/` + to + `","type":"multus-shim"}`
}

// multusNode has Multus in front of Canal.
func multusNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, map[string]string{"00-multus.conf": multus("10-canal.conflist"), "10-canal.conflist": canalList})
	n.program("host-local")
	return n
}

func listing(plugins string) string {
	return `{"name":"n","cniVersion":"1.0.0","plugins":[` + plugins + `]}`
}

// What a pod would meet is there, or the agent is not ready and names what is not; it is ready as soon as that is there.
func TestNotReadyUntilWhatIsLoadedIsWhole(t *testing.T) {
	remove := func(name string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) { require.NoError(t, os.Remove(filepath.Join(n.CNIBinDirs[0], name))) }
	}
	canal := map[string]string{"10-canal.conflist": canalList}
	for name, tc := range map[string]struct {
		files  map[string]string
		broken func(*testing.T, *node)
		says   string // the missing plugin
	}{
		"first":       {canal, remove("calico"), "calico"},
		"last":        {canal, remove("portmap"), "portmap"},
		"for IPAM":    {canal, remove("host-local"), "host-local"},
		"delegate":    {map[string]string{"10-m.conflist": listing(`{"type":"multus","delegates":[{"name":"d","plugins":[{"type":"calico"},{"type":"portmap"}]}]}`)}, remove("portmap"), "portmap"},
		"of flannel":  {map[string]string{"10-f.conflist": listing(`{"type":"flannel","delegate":{"hairpinMode":true}}`)}, remove("bridge"), "bridge"},
		"of the file": {map[string]string{"00-multus.conf": multus("10-canal.conflist"), "10-canal.conflist": canalList}, remove("portmap"), "portmap"},
		"in the list's directory": {map[string]string{"10-x.conflist": listing(`{"type":"calico"}`)}, func(t *testing.T, n *node) {
			require.NoError(t, os.Mkdir(n.conf("n"), 0o755))
			n.write(n.conf("n/10-y.conf"), `{"type":"portmap"}`, 0o644)
			remove("portmap")(t, n)
		}, "portmap"},
		"a directory": {canal, func(t *testing.T, n *node) {
			remove("portmap")(t, n)
			require.NoError(t, os.Mkdir(filepath.Join(n.CNIBinDirs[0], "portmap"), 0o755))
		}, "portmap"},
		"not executable": {canal, func(t *testing.T, n *node) {
			require.NoError(t, os.Chmod(filepath.Join(n.CNIBinDirs[0], "portmap"), 0o644))
		}, "portmap"},
		"a dangling link": {canal, func(t *testing.T, n *node) {
			remove("portmap")(t, n)
			require.NoError(t, os.Symlink("portmap-v1", filepath.Join(n.CNIBinDirs[0], "portmap")))
		}, "portmap"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, tc.files)
			for _, typ := range []string{"host-local", "portmap"} {
				n.program(typ)
			}
			tc.broken(t, n)
			a, _ := n.agent(nil)
			within(t, patience, "not whole", func() bool { return code(a) == string(codeNotWhole) })
			assert.Contains(t, a.Ready().Error(), `names the plugin "`+tc.says+`"`)
			assert.True(t, n.captured(), "the entry is there for when the program is")
			require.NoError(t, os.RemoveAll(filepath.Join(n.CNIBinDirs[0], tc.says)))
			n.program(tc.says)
			within(t, patience, "ready", ready(a))
		})
	}
}

// A program counts where the runtime finds it, which is the first file of the name in its directories, and as the host sees it.
func TestProgramsAsTheHostSeesThem(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	c := wanted()
	c.CNIBinDirs = []string{first, second}
	write := func(dir, name string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), mode))
	}
	link := func(name, to string) { require.NoError(t, os.Symlink(to, filepath.Join(first, name))) }
	write(second, "second", 0o755)
	write(first, "shadowed", 0o644)
	write(second, "shadowed", 0o755)
	link("passed", "nothing")
	write(second, "passed", 0o755)
	link("inside", "multi")
	write(first, "multi", 0o755)
	o := newObserver()
	see := func(typ string) error {
		p := &planner{c: c}
		for _, dir := range c.CNIBinDirs {
			p.o.binDirs = append(p.o.binDirs, o.binDir(dir, pluginName, [32]byte{}))
		}
		return p.cannotRun(typ)
	}
	for _, typ := range []string{"second", "passed", "inside", "multi"} {
		require.NoError(t, see(typ), typ)
	}
	require.ErrorContains(t, see("shadowed"), "not executable")
	require.ErrorIs(t, see("none"), errAbsent)

	// A link that leaves the directory which is mounted leads to what only the host sees.
	dir := t.TempDir()
	require.NoError(t, os.Symlink("/nix/store/x/bin/outside", filepath.Join(dir, "outside")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Equal(t, program{}, programOf(func() mounted { return mounted{root: filepath.Dir(dir), dir: dir} }, dir, entries[0]))
}

// The list of a Multus that was uninstalled goes with it, and nothing of it comes back.
func TestListOfAnOwnerThatIsGone(t *testing.T) {
	n := multusNode(t)
	a, stop := n.agent(nil)
	shim := filepath.Join(n.CNIBinDirs[0], "multus-shim")
	within(t, patience, "ready", ready(a))
	require.Equal(t, "00-multus.conflist", n.loaded().Name)
	require.Equal(t, "00-multus.conflist", recall(n.Config).Whole)

	gone := func() {
		require.NoError(t, os.Remove(shim))
		within(t, patience, "what is left is loaded", func() bool { return n.loaded().Name == "10-canal.conflist" && n.captured() && a.Ready() == nil })
	}
	gone()
	n.program("multus-shim") // it was only being replaced
	within(t, patience, "the list is back", func() bool {
		return n.loaded().Name == "00-multus.conflist" && n.captured() && a.Ready() == nil && recall(n.Config).Whole == "00-multus.conflist"
	})
	assert.NotContains(t, n.read(n.conf("10-canal.conflist")), pluginName)
	gone()
	assert.Equal(t, 0, recall(n.Config).Losses, "nobody has removed our entry")
	stop()
	n.uninstall()
	assert.Len(t, n.tree(), 1)
	assert.Equal(t, canalList, n.read(n.conf("10-canal.conflist")))
}

// An uninstall looks for itself whether an owner is gone. A program that it cannot see, or that was never there, says nothing.
func TestUninstallBringsBackNothingThatItsOwnerRemoved(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*testing.T, *node)
		back   bool
	}{
		"nothing": {func(*testing.T, *node) {}, true},
		"the program": {func(t *testing.T, n *node) {
			require.NoError(t, os.Remove(filepath.Join(n.CNIBinDirs[0], "multus-shim")))
		}, false},
		"the list":            {func(t *testing.T, n *node) { require.NoError(t, os.Remove(n.conf("00-multus.conflist"))) }, false},
		"a program not known": {func(_ *testing.T, n *node) { n.CNIBinDirs[0] = n.BinSourceDir }, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := multusNode(t)
			a, stop := n.agent(nil)
			within(t, patience, "ready", ready(a))
			stop()
			tc.change(t, n)
			n.uninstall()
			assert.Equal(t, canalList, n.read(n.conf("10-canal.conflist")))
			_, err := os.Stat(n.conf("00-multus.conf"))
			if tc.back {
				require.NoError(t, err)
				assert.Equal(t, multus("10-canal.conflist"), n.read(n.conf("00-multus.conf")))
			} else {
				require.ErrorIs(t, err, os.ErrNotExist)
				assert.Equal(t, "10-canal.conflist", n.loaded().Name)
			}
		})
	}
}

// A list never delegates to itself, and none of ours stands before one that delegates.
func TestNoListDelegatesToItself(t *testing.T) {
	own := func(n *node) { n.OwnFile = SwitchOn }
	for name, tc := range map[string]struct {
		files  map[string]string
		change func(*node)
	}{
		"to its list":            {map[string]string{"00-multus.conf": multus("00-multus.conflist")}, nil},
		"to its file":            {map[string]string{"00-multus.conf": multus("00-multus.conf")}, nil},
		"through another":        {map[string]string{"00-multus.conf": multus("10-x.conflist"), "10-x.conflist": listing(multus("00-multus.conf"))}, nil},
		"waits for itself":       {map[string]string{"00-m.conf": `{"cniVersion":"1.0.0","name":"m","type":"multus","delegates":[{"type":"calico"}],"readinessindicatorfile":"/host/etc/cni/net.d/00-m.conf"}`}, nil},
		"in itself":              {map[string]string{"00-m.conflist": listing(`{"type":"multus","delegates":[{"name":"d","plugins":[{"type":"multus","delegates":[{"type":"calico"}]}]}]}`)}, nil},
		"ours before a file's":   {map[string]string{"00-multus.conf": multus("10-canal.conflist"), "10-canal.conflist": canalList}, own},
		"ours before delegates":  {map[string]string{"00-multus.conf": `{"name":"m","cniVersion":"1.0.0","type":"multus","delegates":[{"type":"calico"}]}`}, own},
		"ours before what waits": {map[string]string{"00-multus.conf": `{"name":"m","cniVersion":"1.0.0","type":"multus","readinessindicatorfile":"/run/x"}`}, own},
		"ours was there before":  {map[string]string{"00-multus.conf": multus("00-meshcni.conflist"), "00-meshcni.conflist": listing(`{"type":"calico"},{"type":"meshcni"}`)}, func(n *node) { n.OwnFile = SwitchAuto }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, tc.files)
			if tc.change != nil {
				tc.change(n)
			}
			before := n.tree()
			_, err := Install(t.Context(), n.Config, discard)
			var blocked *BlockedError
			require.True(t, errors.As(err, &blocked), "%v", err)
			assert.Equal(t, codeSelfDelegating, blocked.Code)
			assert.Equal(t, before, n.tree())
		})
	}
}

// A Multus that starts again and again never makes own-file=auto put a list before it, to which it would delegate.
func TestOwnFileAutoBesideWhatDelegates(t *testing.T) {
	n := multusNode(t)
	n.OwnFile = SwitchAuto
	a, _ := n.agent(nil, func(a *Agent) { a.contest.limit = 100 })
	within(t, patience, "ready", ready(a))
	for range 4 { // its daemon takes the first file that is not its own
		first := ""
		entries, err := os.ReadDir(n.CNIConfDir)
		require.NoError(t, err)
		for _, e := range entries {
			if first == "" && conflist.IsConfigName(e.Name()) && !strings.HasPrefix(e.Name(), "00-multus") {
				first = e.Name()
			}
		}
		require.Equal(t, "10-canal.conflist", first)
		n.put(n.conf("00-multus.conf"), multus(first))
		within(t, patience, "put back", func() bool { return n.loaded().Name == "00-multus.conflist" && n.captured() && a.Ready() == nil })
	}
	assert.NoFileExists(t, n.conf("00-meshcni.conflist"))
}
