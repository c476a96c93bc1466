// Package hostroottest makes root directories of hosts: trees with a few of this machine's programs and nothing else. They
// are for tests of programs that run in a container and use their host's programs.
package hostroottest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// Iptables are the programs of a variant, "nft" or "legacy", under their general names. Only their links tell the variant.
func Iptables(variant string) map[string]string {
	programs := map[string]string{}
	for _, p := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			programs[p+verb] = p + "-" + variant + verb
		}
	}
	return programs
}

// NameServices is the host's nsswitch.conf. It names a service that programs would wait for.
const NameServices = "passwd: files ldap\ngroup: files ldap\n"

// New makes a root directory below tb.TempDir, with an nsswitch.conf and an empty /run, /dev and /proc. Its /usr/sbin has the
// programs: the keys are their names there, the values those of this machine's programs, which are copied with their shared
// libraries. They are links as distributions make them, absolute and through /etc/alternatives, so outside of the root they
// lead elsewhere or nowhere.
func New(tb testing.TB, programs map[string]string) (dir string) {
	tb.Helper()
	dir = tb.TempDir()
	for _, d := range []string{"usr/sbin", "etc/alternatives", "opt/programs", "run", "dev", "proc"} {
		require.NoError(tb, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	require.NoError(tb, os.Symlink("usr/sbin", filepath.Join(dir, "sbin")))
	require.NoError(tb, os.WriteFile(filepath.Join(dir, "etc/nsswitch.conf"), []byte(NameServices), 0o600))
	for name, source := range programs {
		netnstest.Require(tb, netnstest.Binary(source))
		path, err := exec.LookPath(source)
		require.NoError(tb, err)
		path, err = filepath.EvalSymlinks(path)
		require.NoError(tb, err)
		run(tb, "cp", path, dir+"/opt/programs")
		run(tb, "cp", append([]string{"--dereference", "--parents", "--target-directory", dir}, libraries(tb, path)...)...)
		require.NoError(tb, os.Symlink("../../opt/programs/"+filepath.Base(path), dir+"/etc/alternatives/"+name))
		require.NoError(tb, os.Symlink("/etc/alternatives/"+name, dir+"/usr/sbin/"+name))
	}
	return dir
}

var absolute = regexp.MustCompile(`/\S+`)

// libraries are the files that the loader loads, the loader included, and those that iptables opens itself.
func libraries(tb testing.TB, program string) (all []string) {
	tb.Helper()
	for line := range strings.Lines(run(tb, "ldd", program)) {
		_, found, ok := strings.Cut(line, "=>")
		if !ok {
			found = line
		}
		if lib := absolute.FindString(found); lib != "" {
			all = append(all, lib)
			if !strings.Contains(lib, "libxtables") {
				continue
			}
			// The loader may name /lib, which is a link to /usr/lib, where iptables looks for itself.
			extensions, err := filepath.Glob(filepath.Join("/usr", strings.TrimPrefix(filepath.Dir(lib), "/usr"), "xtables", "*.so"))
			require.NoError(tb, err)
			all = append(all, extensions...)
		}
	}
	return all
}

func run(tb testing.TB, name string, args ...string) string {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), name, args...).CombinedOutput()
	require.NoError(tb, err, "%s %s: %s", name, args, out)
	return string(out)
}

// Process starts a process whose root is a directory of [New], as a container sees process 1 of its host: in a mount
// namespace of its own, with a proc file system. The directory must have the program cat. Process returns the root's path
// in /proc. The process ends with the test or with the test's process.
func Process(tb testing.TB, dir string) (root string) {
	tb.Helper()
	netnstest.Require(tb, netnstest.Root, netnstest.Binary("unshare"))
	// A host's root is a mount point, hence the bind. Its mounts are shared, as systemd makes them, so what a copy of the
	// mount namespace mounts would show here.
	const script = `mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount -t tmpfs run "$0/run" && : >"$0/run/host" &&
		mount -t tmpfs dev "$0/dev" && mknod -m 666 "$0/dev/null" c 1 3 && mount --make-rshared "$0" && exec chroot "$0" /usr/sbin/cat`
	cmd := exec.CommandContext(tb.Context(), "unshare", "--mount", "--propagation", "private", "sh", "-c", script, dir)
	stdin, err := cmd.StdinPipe() // cat ends when nobody has the other end
	require.NoError(tb, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	cmd.Stderr = os.Stderr
	require.NoError(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	_, err = io.WriteString(stdin, "x")
	require.NoError(tb, err)
	_, err = stdout.Read(make([]byte, 1)) // it is cat now
	require.NoError(tb, err)
	root = fmt.Sprintf("/proc/%d/root", cmd.Process.Pid)
	require.NoError(tb, unix.Access(root+"/run/host", unix.F_OK))
	return root
}
