package netnsstore_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/netnsexec"
)

// find returns where and by what a pod's namespace is found.
func find(t testing.TB, s *netnsstore.Store, uid types.UID, addrs ...netip.Addr) (netnsexec.ID, netnsstore.Source) {
	t.Helper()
	ref, err := s.Find(t.Context(), netnsstore.Pod{UID: uid, Addrs: addrs})
	require.NoError(t, err)
	defer func() { require.NoError(t, ref.Close()) }()
	return ref.ID(), ref.Source()
}

func TestJournalServesTheNextStore(t *testing.T) {
	t.Parallel()
	o := netnsstore.Options{RunDir: t.TempDir()}
	ns, uid := newPodNS(t, podAddrs...), newUID()
	first := newStore(t, o)
	put(t, first, attach(uid, podAddrs...), ns)
	require.NoError(t, first.Journal())
	require.NoError(t, first.Close())

	second := newStore(t, o)
	assert.Nil(t, second.Get(uid), "nothing is proven yet")
	id, source := find(t, second, uid, podAddrs[0])
	assert.Equal(t, ns.ID(), id)
	assert.Equal(t, netnsstore.Journal, source)
	ref := second.Get(uid)
	assert.ElementsMatch(t, podAddrs, ref.Addrs())
	require.NoError(t, ref.Close())
	require.NoError(t, second.Forget(uid))
	assert.Empty(t, entries(t, o.RunDir))
}

// TestSysctls: what a namespace's sysctls were is known to the next store, as long as the namespace is the pod's.
func TestSysctls(t *testing.T) {
	t.Parallel()
	o := netnsstore.Options{RunDir: t.TempDir()}
	ns, other, uid := newPodNS(t, podAddrs...), newPodNS(t, podAddrs...), newUID()
	kept := func(s *netnsstore.Store, name string) []any {
		value, kept := s.KeptSysctl(uid, name)
		return []any{value, kept}
	}
	s := newStore(t, o)
	require.ErrorIs(t, s.KeepSysctl(uid, "a", "0"), netnsstore.ErrNotHeld)
	put(t, s, attach(uid, podAddrs...), ns)
	assert.Equal(t, []any{"", false}, kept(s, "a"))
	require.NoError(t, s.KeepSysctl(uid, "a", "0"))
	require.NoError(t, s.KeepSysctl(uid, "b", "2 3"))
	require.NoError(t, s.KeepSysctl(uid, "a", "1"))
	for range 2 {
		assert.Equal(t, []any{"1", true}, kept(s, "a"))
		put(t, s, attach(uid, podAddrs...), ns) // the same namespace
		assert.Equal(t, []any{"2 3", true}, kept(s, "b"))
		require.NoError(t, s.Close())
		s = newStore(t, o)
	}
	put(t, s, attach(uid, podAddrs...), other)
	assert.Equal(t, []any{"", false}, kept(s, "a"))
	require.NoError(t, s.KeepSysctl(uid, "a", "7"))
	require.NoError(t, s.Forget(uid))
	assert.Equal(t, []any{"", false}, kept(s, "a"))

	without := netnsstore.New(netnsstore.Options{RunDir: t.TempDir(), HostRoot: "/proc/0/root"})
	defer func() { require.NoError(t, without.Close()) }()
	put(t, without, attach(uid, podAddrs...), ns)
	require.ErrorIs(t, without.KeepSysctl(uid, "a", "0"), netnsexec.ErrRoot, "a restart will not know")
	assert.Equal(t, []any{"0", true}, kept(without, "a"))
}

// TestJournalSaysTheAddresses: a pod whose addresses the API server does not have yet is proven by those in its entry.
func TestJournalSaysTheAddresses(t *testing.T) {
	t.Parallel()
	o := netnsstore.Options{RunDir: t.TempDir()}
	ns, uid := newPodNS(t, addrA), newUID()
	put(t, newStore(t, o), attach(uid, addrA), ns)
	second := newStore(t, o)
	id, _ := find(t, second, uid)
	assert.Equal(t, ns.ID(), id)
	removeAddrs(t, ns, addrA)
	_, err := newStore(t, o).Find(t.Context(), netnsstore.Pod{UID: uid})
	require.ErrorIs(t, err, netnsstore.ErrAddress)
}

// TestJournalEntriesThatAreNone: what a crash, a reboot, another agent or a hand leaves is neither believed nor kept.
func TestJournalEntriesThatAreNone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, path string){
		"the mount is gone, as after a reboot": func(t *testing.T, path string) {
			require.NoError(t, unix.Unmount(path, unix.MNT_DETACH))
		},
		"another boot": func(t *testing.T, path string) { edit(t, path+".json", `"boot":"`, `"boot":"0`) },
		"another namespace is mounted": func(t *testing.T, path string) {
			require.NoError(t, unix.Mount(newPodNS(t, addrA).Path(), path, "", unix.MS_BIND, ""))
		},
		"another number": func(t *testing.T, path string) { edit(t, path+".json", `"ino":4`, `"ino":3`) },
		"another pod":    func(t *testing.T, path string) { edit(t, path+".json", `"uid":"`, `"uid":"0`) },
		"another format": func(t *testing.T, path string) { edit(t, path+".json", `"version":1`, `"version":2`) },
		"half a file":    func(t *testing.T, path string) { require.NoError(t, os.Truncate(path+".json", 40)) },
		"an empty file":  func(t *testing.T, path string) { require.NoError(t, os.Truncate(path+".json", 0)) },
		"no file":        func(t *testing.T, path string) { require.NoError(t, os.Remove(path+".json")) },
		"the host's": func(t *testing.T, path string) {
			require.NoError(t, unix.Mount("/proc/self/ns/net", path, "", unix.MS_BIND, ""))
		},
		"another kind of ns": func(t *testing.T, path string) {
			require.NoError(t, unix.Mount("/proc/self/ns/uts", path, "", unix.MS_BIND, ""))
		},
		"a file not renamed": func(t *testing.T, path string) { require.NoError(t, os.Rename(path+".json", path+".json.new")) },
		"no mount point": func(t *testing.T, path string) {
			require.NoError(t, unix.Unmount(path, unix.MNT_DETACH))
			require.NoError(t, os.Remove(path))
		},
		"a link to a namespace": func(t *testing.T, path string) {
			require.NoError(t, unix.Unmount(path, unix.MNT_DETACH))
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink("/proc/self/ns/mnt", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := netnsstore.Options{RunDir: t.TempDir()}
			ns, uid := newPodNS(t, addrA), newUID()
			first := newStore(t, o)
			put(t, first, attach(uid, addrA), ns)
			require.NoError(t, first.Close())
			require.Len(t, entries(t, o.RunDir), 1)
			dir := filepath.Join(o.RunDir, "netns")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600)) // not ours, so it stays
			spoil(t, filepath.Join(dir, string(uid)))

			second := newStore(t, o)
			assert.Empty(t, second.Known())
			_, err := second.Find(t.Context(), netnsstore.Pod{UID: uid, Addrs: []netip.Addr{addrA}})
			require.ErrorIs(t, err, netnsstore.ErrNoProcess)
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, files, 1)
			assert.Zero(t, mountsBelow(t, dir))

			put(t, second, attach(uid, addrA), ns) // and it can be made again
			require.NoError(t, second.Journal())
			require.NoError(t, os.Remove(filepath.Join(dir, "notes")))
			assert.Len(t, entries(t, o.RunDir), 1)
		})
	}
}

func edit(t *testing.T, path, from, to string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), from)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)), 0o600))
}

// alive reports whether a namespace exists: its last holder's end removes its links, and a veth's other end with them.
func alive(t *testing.T, peer *netnsexec.NetNS) bool {
	t.Helper()
	n := 0
	require.NoError(t, peer.Do(func() error {
		dirs, err := os.ReadFile("/proc/thread-self/net/dev")
		n = strings.Count(string(dirs), "veth-peer:")
		return err
	}))
	return n > 0
}

// TestNothingKeepsANamespaceAlive: once a pod is gone, so is its namespace, however the store heard of that.
func TestNothingKeepsANamespaceAlive(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*netnsstore.Store, netnsstore.Options, types.UID) error{
		"Forget": func(s *netnsstore.Store, _ netnsstore.Options, uid types.UID) error { return s.Forget(uid) },
		"Retain": func(s *netnsstore.Store, _ netnsstore.Options, _ types.UID) error {
			return s.Retain(func(types.UID) bool { return false })
		},
		"Retain after a restart": func(s *netnsstore.Store, o netnsstore.Options, _ types.UID) error {
			if err := s.Close(); err != nil {
				return err
			}
			s = netnsstore.New(o)
			defer func() { _ = s.Close() }()
			return s.Retain(func(types.UID) bool { return false })
		},
		"RemoveJournal": func(s *netnsstore.Store, o netnsstore.Options, _ types.UID) error {
			if err := s.Close(); err != nil {
				return err
			}
			return netnsstore.RemoveJournal(o)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := netnsstore.Options{RunDir: t.TempDir()}
			peer, ns, uid := newPodNS(t), newPodNS(t, addrA), newUID()
			veth := exec.Command("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "veth-peer", "netns", "peer")
			veth.Args[len(veth.Args)-1] = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), peer.Fd())
			require.NoError(t, ns.Run(veth))
			s := newStore(t, o)
			ref, err := s.Put(attach(uid, addrA), ns)
			require.NoError(t, err)
			require.NoError(t, unix.Unmount(ns.Path(), unix.MNT_DETACH)) // the runtime's own
			require.NoError(t, ns.Close())
			assert.True(t, alive(t, peer))
			require.NoError(t, end(s, o, uid))
			assert.True(t, alive(t, peer), "who has a Ref still needs it")
			require.NoError(t, ref.Close())
			require.Eventually(t, func() bool { return !alive(t, peer) }, patience, tick, "the kernel cleans up behind the last holder")
			assert.Zero(t, mountsBelow(t, o.RunDir))
		})
	}
}

// TestJournalOutlivesTheContainer: an agent's mounts end with its container, unless they are made in the host's. The agents are
// processes with mounts of their own, and so is the host.
func TestJournalOutlivesTheContainer(t *testing.T) {
	t.Parallel()
	host := exec.Command("sleep", "infinity")
	host.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	ns := newPodNS(t, podAddrs...)
	runDir := t.TempDir()
	require.NoError(t, host.Start())
	t.Cleanup(func() { _ = host.Process.Kill(); _ = host.Wait() })
	hostRoot := fmt.Sprintf("/proc/%d/root", host.Process.Pid)
	uid := newUID()
	agent := func(how, root string) string {
		out, err := childCmd(t, "agent", runDir, root, string(uid), ns.Path(), how).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	for range 2 {
		out := agent("private", "")
		assert.Contains(t, out, "put "+ns.ID().String(), "the mount ended with the container")
		assert.NotContains(t, out, "no journal")
	}
	assert.Contains(t, agent("private", ""), "discarding a journal entry")

	assert.Contains(t, agent("private", hostRoot), "discarding a journal entry")
	for range 2 {
		assert.Equal(t, "found journal "+ns.ID().String()+"\n", agent("private", hostRoot))
	}
	assert.Zero(t, mountsBelow(t, runDir), "only the host has the mounts")

	out := agent("private no-chroot", hostRoot)
	assert.Contains(t, out, "put "+ns.ID().String())
	assert.Contains(t, out, "no journal:")
	assert.Contains(t, out, netnsexec.ErrRoot.Error()+" "+hostRoot)

	assert.Equal(t, "found journal "+ns.ID().String()+"\n", agent("private", hostRoot), "it was not lost")
	require.NoError(t, netnsstore.RemoveJournal(netnsstore.Options{RunDir: runDir, HostRoot: hostRoot}))
	assert.NoDirExists(t, filepath.Join(runDir, "netns"))
	mounts, err := os.ReadFile(filepath.Join(filepath.Dir(hostRoot), "mountinfo"))
	require.NoError(t, err)
	assert.NotContains(t, string(mounts), runDir)
}

// TestRemovalReachesOtherMountNamespaces: containers get copies of the mounts when they start.
func TestRemovalReachesOtherMountNamespaces(t *testing.T) {
	t.Parallel()
	o := netnsstore.Options{RunDir: t.TempDir()}
	ns, uid := newPodNS(t, addrA), newUID()
	s := newStore(t, o)
	put(t, s, attach(uid, addrA), ns)
	other := exec.Command("sleep", "infinity") // a container that was started meanwhile, with a copy of the mount
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	require.NoError(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	mountinfo := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", other.Process.Pid))
		require.NoError(t, err)
		return string(text)
	}
	require.Contains(t, mountinfo(), string(uid))
	require.NoError(t, s.Forget(uid))
	assert.NotContains(t, mountinfo(), string(uid), "a copy would keep the namespace alive")
}

func TestWithoutAJournal(t *testing.T) {
	t.Parallel()
	ns, uid := newPodNS(t, addrA), newUID()
	readOnly := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", readOnly, "tmpfs", unix.MS_RDONLY, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(readOnly, 0)) })
	for name, c := range map[string]struct {
		o   netnsstore.Options
		why error
	}{
		"read-only":         {netnsstore.Options{RunDir: readOnly}, unix.EROFS},
		"no proc":           {netnsstore.Options{RunDir: t.TempDir(), ProcRoot: t.TempDir()}, os.ErrNotExist},
		"no host":           {netnsstore.Options{RunDir: t.TempDir(), HostRoot: "/proc/0/root"}, netnsexec.ErrRoot},
		"it is not to have": {netnsstore.Options{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := netnsstore.New(c.o)
			defer func() { require.NoError(t, s.Close()) }()
			ref, err := s.Put(attach(uid, addrA), ns)
			require.NoError(t, err)
			require.NoError(t, ref.Close())
			if c.why == nil {
				require.NoError(t, s.Journal())
			} else {
				require.ErrorIs(t, s.Journal(), c.why)
			}
			id, _ := find(t, s, uid, addrA)
			assert.Equal(t, ns.ID(), id)
		})
	}
	assert.NoError(t, netnsstore.RemoveJournal(netnsstore.Options{RunDir: readOnly}))
}
