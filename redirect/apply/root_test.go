//go:build linux

package apply_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/testing/hostroottest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// hostRoots are a host with one variant, and one without iptables: by a directory and by a process that has it as its root.
func hostRoots(t *testing.T) map[string]struct {
	root string
	want ruleset.Backend
} {
	programs := func(variant string) map[string]string {
		p := map[string]string{"cat": "cat"}
		if variant != "" {
			for name, source := range hostroottest.Iptables(variant) {
				p[name] = source
			}
		}
		return p
	}
	nft, legacy, none := hostroottest.New(t, programs("nft")), hostroottest.New(t, programs("legacy")), hostroottest.New(t, programs(""))
	return map[string]struct {
		root string
		want ruleset.Backend
	}{
		"nft, a directory":  {nft, ruleset.BackendIptablesNFT}, // legacy reads /proc/net, which a bare directory has not
		"nft, a process":    {hostroottest.Process(t, nft), ruleset.BackendIptablesNFT},
		"legacy, a process": {hostroottest.Process(t, legacy), ruleset.BackendIptablesLegacy},
		"none, a directory": {none, ruleset.BackendNftables},
		"none, a process":   {hostroottest.Process(t, none), ruleset.BackendNftables},
	}
}

// TestHostRoot: the host's programs decide, found and run in the host's root, and packets go where its rules lead them.
// Our own root, which has both variants, plays no part: what it has would find no iptables of its own in the others.
func TestHostRoot(t *testing.T) {
	t.Parallel()
	netnstest.Require(t, netnstest.Root, netnstest.IPv6)
	rs := dual().MustRuleset()
	for name, c := range hostRoots(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := netnstest.NewWorld(t, netnstest.Options{})
			o := apply.Options{Runner: w.Pod.Sandbox(), Root: c.root}
			b, err := apply.Choose(t.Context(), w.Pod, o)
			require.NoError(t, err)
			require.Equal(t, c.want, b.Name())
			require.NoError(t, apply.Available(o))
			before := state(t, w.Pod)
			res := mustApply(t, b, rs)
			assert.True(t, res.Changed)
			out, err := netnstest.ParseProbe("pod tcp 1000/1000 -> 10.96.5.5:80")
			require.NoError(t, err)
			in6, err := netnstest.ParseProbe("out tcp 0/0 -> [fd00:10:244::5]:8080")
			require.NoError(t, err)
			got := w.Run([]netnstest.Probe{out, in6})
			assert.Equal(t, "proxy:15001 orig=10.96.5.5:80", got["pod tcp 1000/1000 -> 10.96.5.5:80"])
			assert.Equal(t, "proxy:15006 orig=[fd00:10:244::5]:8080", got["out tcp 0/0 -> [fd00:10:244::5]:8080"])

			// What the plugin, which has the host's root for its own, finds: nothing to do. It has the variant that is in use.
			if c.want != ruleset.BackendNftables {
				own, err := apply.Choose(t.Context(), w.Pod, apply.Options{Backend: ruleset.BackendIptables, Runner: w.Pod.Sandbox()})
				require.NoError(t, err)
				assert.Equal(t, c.want, own.Name())
				assert.False(t, mustApply(t, own, rs).Changed)
			}
			diffs, err := b.Check(t.Context(), rs)
			require.NoError(t, err)
			assert.Empty(t, diffs)
			live, err := apply.Live(t.Context(), w.Pod, o, rs)
			require.NoError(t, err)
			ours := 0
			for _, r := range live {
				assert.Equal(t, c.want, r.Backend)
				if r.Ours {
					ours++
				}
			}
			assert.Positive(t, ours)
			require.NoError(t, b.Remove(t.Context(), rs.Owner()))
			assert.Equal(t, before, state(t, w.Pod))
		})
	}
}

func TestHostRootThatCannotBeRead(t *testing.T) {
	t.Parallel()
	ns := netnstest.New(t)
	for _, root := range []string{filepath.Join(t.TempDir(), "none"), "/dev/null"} {
		for _, name := range []ruleset.Backend{ruleset.BackendAuto, ruleset.BackendIptablesNFT, ruleset.BackendNftables} {
			o := apply.Options{Backend: name, Root: root}
			_, err := apply.Choose(t.Context(), ns, o)
			require.ErrorContains(t, err, "look for iptables in root "+root, "not to know is not to have none")
			require.Error(t, apply.Available(o))
			assert.NotErrorIs(t, err, apply.ErrNoBackend)
		}
	}
	// Our own root by another name.
	for _, root := range []string{"", "/", "//"} {
		b, err := apply.Choose(t.Context(), ns, apply.Options{Backend: ruleset.BackendIptables, Root: root})
		require.NoError(t, err)
		assert.Equal(t, ruleset.BackendIptablesNFT, b.Name())
	}
}

// TestLinksInRoot: links lead where they lead for a program with the root.
func TestLinksInRoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, dir := range []string{"usr/sbin", "etc/alternatives", "run/system"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	link := func(target, path string) { require.NoError(t, os.Symlink(target, filepath.Join(root, path))) }
	require.NoError(t, os.WriteFile(filepath.Join(root, "usr/sbin/xtables-nft-multi"), nil, 0o755)) //nolint:gosec // a program
	link("usr/sbin", "sbin")
	link("/etc/alternatives/iptables", "usr/sbin/absolute")
	link("../../sbin/xtables-nft-multi", "etc/alternatives/iptables")
	link("../../../../../../usr/sbin/xtables-nft-multi", "usr/sbin/above")
	link("/run/system/sbin/./absolute", "usr/sbin/through")
	link("/usr/sbin", "run/system/sbin")
	link("loop", "usr/sbin/loop")
	link("/bin/sh", "usr/sbin/outside")
	for path, want := range map[string]string{
		"/usr/sbin/xtables-nft-multi": "/usr/sbin/xtables-nft-multi",
		"/sbin/absolute":              "/usr/sbin/xtables-nft-multi",
		"/usr/sbin/above":             "/usr/sbin/xtables-nft-multi",
		"/usr/sbin/through":           "/usr/sbin/xtables-nft-multi",
		"/../../sbin":                 "/usr/sbin",
		"/":                           "/",
	} {
		got, err := apply.Follow(root, path)
		require.NoError(t, err, path)
		assert.Equal(t, want, got, path)
	}
	// As many links as the kernel itself follows, and one more.
	require.NoError(t, os.MkdirAll(filepath.Join(root, "chain"), 0o755))
	link("/usr/sbin", "chain/0")
	for i := range 40 {
		link(strconv.Itoa(i), filepath.Join("chain", strconv.Itoa(i+1)))
	}
	got, err := apply.Follow(root, "/chain/39")
	require.NoError(t, err)
	assert.Equal(t, "/usr/sbin", got)
	_, err = apply.Follow(root, "/chain/40")
	require.ErrorIs(t, err, unix.ELOOP)
	_, err = apply.Follow(root, "/usr/sbin/loop")
	require.ErrorIs(t, err, unix.ELOOP)
	_, err = apply.Follow(root, "/usr/sbin/outside")
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.True(t, strings.Contains(err.Error(), root), "%v: what is looked for is below the root", err)
}
