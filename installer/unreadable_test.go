//go:build linux

package installer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/conflist"
)

// unreadable are files that the host may read where we cannot.
var unreadable = map[string]struct {
	make func(t *testing.T, n *node, path string)
	says string
}{
	"a link out of the directory": {func(t *testing.T, _ *node, path string) {
		require.NoError(t, os.Symlink("/var/lib/a-network/pods.conflist", path))
	}, "/var/lib/a-network/pods.conflist"},
	"a relative link out of the directory": {func(t *testing.T, _ *node, path string) {
		require.NoError(t, os.Symlink("../gone/pods.conflist", path))
	}, "gone/pods.conflist"},
	"a link out of it by way of another": {func(t *testing.T, n *node, path string) {
		require.NoError(t, os.Symlink("/var/lib/a-network/pods.conflist", n.conf("current")))
		require.NoError(t, os.Symlink("current", path))
	}, "/var/lib/a-network/pods.conflist"},
	"a link in a circle": {func(t *testing.T, _ *node, path string) {
		require.NoError(t, os.Symlink(filepath.Base(path), path))
	}, syscall.ELOOP.Error()},
	"too large": {func(t *testing.T, n *node, path string) {
		n.write(path, ciliumList+strings.Repeat(" ", maxConfig), 0o644)
	}, "larger than 4 MiB"},
	"a pipe": {func(t *testing.T, _ *node, path string) { require.NoError(t, unix.Mkfifo(path, 0o644)) }, "not a regular file"},
	// Not by bind, whose paths may have 107 bytes.
	"a socket":           {func(t *testing.T, _ *node, path string) { require.NoError(t, unix.Mknod(path, unix.S_IFSOCK|0o644, 0)) }, "not a regular file"},
	"a link to a device": {func(t *testing.T, _ *node, path string) { require.NoError(t, os.Symlink("/dev/zero", path)) }, "not a regular file"},
	"a link to a directory": {func(t *testing.T, n *node, path string) {
		require.NoError(t, os.Symlink(n.BinSourceDir, path))
	}, "not a regular file"},
	"plugins in a directory elsewhere": {func(t *testing.T, n *node, path string) {
		n.write(path, `{"name": "pods", "cniVersion": "1.1.0"}`, 0o644)
		require.NoError(t, os.Symlink("/var/lib/a-network/plugins", n.conf("pods")))
	}, "/var/lib/a-network/plugins"},
	"a plugin of a directory elsewhere": {func(t *testing.T, n *node, path string) {
		n.write(path, `{"name": "pods", "cniVersion": "1.1.0"}`, 0o644)
		require.NoError(t, os.Mkdir(n.conf("pods"), 0o755))
		require.NoError(t, os.Symlink("/var/lib/a-network/a.conf", n.conf("pods/10-a.conf")))
	}, "/var/lib/a-network/a.conf"},
}

// A file that sorts first and cannot be read may be the one that the runtime loads. The next in line is not taken for it,
// no file is touched, our entry stays where it is, and the node is not ready.
func TestUnreadableFileBlocks(t *testing.T) {
	for name, tc := range unreadable {
		for _, file := range []string{"00-pods.conflist", "05-pods.conf"} {
			if strings.HasPrefix(name, "plugin") && file == "05-pods.conf" || strings.HasPrefix(name, "a plugin") && file == "05-pods.conf" {
				continue // a list's
			}
			for _, own := range []Switch{SwitchOff, SwitchOn} {
				t.Run(name+"/"+file+"/own-file="+string(own), func(t *testing.T) {
					n := newNode(t, map[string]string{"10-calico.conflist": calicoList, "20-cilium.conflist": ciliumList})
					n.OwnFile = own
					n.install()
					tc.make(t, n, n.conf(file))
					inodes := inodesOf(t, n)
					_, err := Install(t.Context(), n.Config, discard)
					assert.Equal(t, []string{"conf-unreadable"}, codes(err))
					require.ErrorContains(t, err, n.conf(file))
					require.ErrorContains(t, err, tc.says)
					assert.Equal(t, inodes, inodesOf(t, n))

					a, _ := n.agent(onEvents)
					within(t, patience, "looked", func() bool { return code(a) != "starting" })
					assert.Equal(t, "conf-unreadable", code(a))
					assert.Contains(t, scrape(t, a), "\nmeshcni_blocked{code=\"conf-unreadable\"} 1\n")
					require.NoError(t, os.Remove(n.conf(file)))
					within(t, patience, "ready when it is gone", ready(a))
				})
			}
		}
	}
}

// What the runtime passes over, too, is passed over.
func TestFileThatTheRuntimePassesOver(t *testing.T) {
	for name, given := range map[string]func(t *testing.T, n *node, path string){
		"a directory":               func(t *testing.T, n *node, path string) { require.NoError(t, os.Mkdir(path, 0o755)) },
		"a link to nothing here":    func(t *testing.T, n *node, path string) { require.NoError(t, os.Symlink("nothing", path)) },
		"an absolute one":           func(t *testing.T, n *node, path string) { require.NoError(t, os.Symlink(n.conf("nothing"), path)) },
		"masked by the null device": func(t *testing.T, n *node, path string) { require.NoError(t, os.Symlink("/dev/null", path)) },
		"empty":                     func(t *testing.T, n *node, path string) { n.write(path, "", 0o644) },
		"no JSON":                   func(t *testing.T, n *node, path string) { n.write(path, "pods: yes", 0o644) },
		"no plugin in it":           func(t *testing.T, n *node, path string) { n.write(path, `{"name":"n","plugins":[]}`, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
			given(t, n, n.conf("00-pods.conflist"))
			steps := n.install()
			assert.Equal(t, "10-calico.conflist", steps.Target)
			require.Contains(t, n.read(n.conf("10-calico.conflist")), pluginName)
		})
	}
}

func TestUnreadableNamedFile(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": calicoList})
	n.CNIConfName = "10-calico.conf"
	require.NoError(t, os.Symlink("/var/lib/a-network/pods.conf", n.conf("10-calico.conf")))
	_, err := Install(t.Context(), n.Config, discard)
	assert.Equal(t, []string{"conf-unreadable"}, codes(err), "the list stands in its shadow")
}

// Permission and I/O errors come from the file system; any that is not "nothing there" blocks.
func TestErrorsThatSayNothingOfTheFile(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EIO, syscall.ESTALE, syscall.EMFILE, syscall.ENOMEM} {
		assert.False(t, conflist.PassedOver(&fs.PathError{Op: "open", Path: "x", Err: errno}), errno)
	}
	assert.True(t, conflist.PassedOver(&fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}))
}

// In a container, an absolute link of the host leads elsewhere, and what is not mounted is not known.
func TestLinksOfTheHost(t *testing.T) {
	root := t.TempDir()
	m := mounted{root: root, dir: filepath.Join(root, "etc/cni/net.d")}
	require.NoError(t, os.MkdirAll(m.dir, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "opt/net"), 0o755))
	for _, file := range []string{m.dir + "/real.conflist", root + "/opt/net/a.conflist"} {
		require.NoError(t, os.WriteFile(file, nil, 0o600))
	}
	for target, want := range map[string]struct {
		real string
		gone bool
	}{
		"real.conflist":                         {real: m.dir + "/real.conflist"},
		"./../net.d/real.conflist":              {real: m.dir + "/real.conflist"},
		"../../../opt/net/a.conflist":           {real: root + "/opt/net/a.conflist"}, // somebody has mounted it
		"gone.conflist":                         {gone: true},
		"/etc/cni/net.d/gone.conflist":          {gone: true},
		"/etc/cni/net.d/real.conflist":          {}, // there, but writing would go elsewhere
		"/opt/net/a.conflist":                   {},
		"/opt/net/b.conflist":                   {},
		"/etc/passwd":                           {}, // ours, not the host's
		"../../../../../../../../../etc/passwd": {},
		"/dev/null":                             {real: "/dev/null"},
	} {
		link := filepath.Join(m.dir, "00-link.conflist")
		require.NoError(t, os.Symlink(target, link))
		real, err := m.follow(link)
		switch {
		case want.real != "":
			require.NoError(t, err, target)
			assert.Equal(t, want.real, real, target)
		case want.gone:
			require.ErrorIs(t, err, fs.ErrNotExist, target)
		default:
			require.Error(t, err, target)
			assert.False(t, errors.Is(err, fs.ErrNotExist), "%s: %v", target, err)
		}
		require.NoError(t, os.Remove(link))
	}
	assert.Equal(t, mounted{"/host", "/host/etc/cni/net.d"}, mountOf("/host/etc/cni/net.d"))
	assert.Equal(t, "/", mountOf(root).root)
}

// What one link cannot be followed for says nothing of the directories after it.
func TestLinkThatCannotBeFollowedIsNotTheNextDirectory(t *testing.T) {
	n := newNode(t, map[string]string{"10-calico.conflist": `{"name": "pods", "cniVersion": "1.1.0", "plugins": [{"type": "calico"}]}`})
	n.install()
	require.NoError(t, os.Symlink("/var/lib/a-network", n.conf("00-templates")))
	require.NoError(t, os.MkdirAll(n.conf("pods"), 0o755))
	snap, err := takeSnapshot(n.CNIConfDir)
	require.NoError(t, err)
	_, err = snap.ReadDir("pods")
	require.NoError(t, err)
	n.uninstall()
	assert.NoFileExists(t, n.kubeconfig())
}
