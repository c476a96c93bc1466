package netnsstore_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/netnsexec"
)

// childEnv makes a child of the test binary: an agent that another process may kill. Its value is the name of what it does,
// then its arguments, one a line.
const childEnv = "MESHCNI_NETNSSTORE_CHILD"

func init() {
	// The main goroutine stays on the main thread, so that a tracer, which counts for each thread, counts all that it does.
	if os.Getenv(childEnv) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	what := strings.Split(os.Getenv(childEnv), "\n")
	if what[0] == "" {
		os.Exit(m.Run())
	}
	if err := children[what[0]](what[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// childCmd runs a function of children with arguments.
func childCmd(t testing.TB, what ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(what, "\n"), "GORACE=atexit_sleep_ms=0") // the second it sleeps by default
	return cmd
}

var children = map[string]func(args []string) error{
	// life is all that can happen to entries: a new one, a replaced one, one that is changed, one that is removed.
	"life": func(args []string) error {
		runDir, first, second, other, a, b := args[0], types.UID(args[1]), types.UID(args[2]), types.UID(args[3]), args[4], args[5]
		s := netnsstore.New(netnsstore.Options{RunDir: runDir})
		for _, step := range []struct {
			uid  types.UID
			path string
		}{
			{first, a}, {first, b}, {second, a}, {other, a},
		} {
			if step.uid == other { // it gets the namespace of the one before
				if err := s.Forget(second); err != nil {
					return err
				}
			}
			ref, err := putPath(s, step.uid, step.path)
			if err != nil {
				return err
			}
			if err := ref.Close(); err != nil {
				return err
			}
			if err := s.KeepSysctl(step.uid, "a", "0"); err != nil {
				return err
			}
		}
		return s.Journal()
	},
	// agent puts a namespace, in a container of its own mounts, without some capabilities. It prints what it finds in the journal
	// about the pod, and why there is no journal.
	"agent": func(args []string) error {
		runDir, hostRoot, uid, path := args[0], args[1], types.UID(args[2]), args[3]
		if strings.Contains(args[4], "private") {
			if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return err
			}
		}
		if strings.Contains(args[4], "no-chroot") {
			// From the bounding set of this thread, which then starts the program anew.
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_CHROOT, 0, 0, 0); err != nil {
				return err
			}
			args[4] = strings.ReplaceAll(args[4], "no-chroot", "")
			if err := os.Setenv(childEnv, strings.Join(append([]string{"agent"}, args...), "\n")); err != nil {
				return err
			}
			return unix.Exec("/proc/self/exe", os.Args, os.Environ())
		}
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		s := netnsstore.New(netnsstore.Options{RunDir: runDir, HostRoot: hostRoot, Log: log})
		ref, err := s.Find(context.Background(), netnsstore.Pod{UID: uid, Addrs: podAddrs[:1]})
		if err == nil {
			fmt.Println("found", ref.Source(), ref.ID())
		} else if ref, err = putPath(s, uid, path); err == nil {
			fmt.Println("put", ref.ID())
		}
		if err == nil && s.Journal() != nil {
			fmt.Println("no journal:", s.Journal())
		}
		return err
	},
}

// putPath puts the namespace with the address that it has.
func putPath(s *netnsstore.Store, uid types.UID, path string) (*netnsstore.Ref, error) {
	ns, err := netnsexec.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = ns.Close() }()
	for _, a := range append([]netip.Addr{addrA, addrB}, podAddrs...) {
		ref, errPut := s.Put(netnsstore.Attachment{UID: uid, Addrs: []netip.Addr{a}}, ns)
		if errPut == nil {
			return ref, nil
		}
		err = errPut
	}
	return nil, err
}
