// Package machine gives a test binary a Linux machine of its own, on which it can
// run a container runtime or a whole node without harm to the one it is started on.
//
// [Main] starts the test binary once more below the first process of new network,
// PID, IPC and mount namespaces. There /run is empty, and /etc, /opt and /var are
// those of the real machine with whatever is written laid over them in memory. So a
// node has its files where real nodes have them (/opt/cni/bin, /etc/cni/net.d,
// /run/containerd), and the real machine has none of it: when the first process
// ends, in whatever way, the kernel ends all others and drops the mounts and the
// networks. Control groups are all that is left then; the outer process removes
// them, and those that a predecessor left when it was killed.
//
// Since the inner processes have no way out, what needs the network (the Go module
// proxy) is built before, outside.
package machine

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The environment tells a process which part it has. An outer process has none of it.
const (
	roleEnv = "MESHCNI_E2E_ROLE"
	nameEnv = "MESHCNI_E2E_NAME"

	roleInit  = "init"  // the first process of the namespaces: lays them out and reaps
	roleTests = "tests" // runs the tests
)

// Options say what the machine is for. The zero Options make one with a loopback
// interface and nothing else.
type Options struct {
	// Needs are what the tests cannot do without. Where something is missing the tests
	// run on the real machine, and [Require] says what.
	Needs []netnstest.Need
	// Build makes, outside, what takes the network to make; it runs before the machine
	// is. nil is nothing.
	Build func() error
	// Addresses are added to the loopback interface, such as the node's.
	Addresses []netip.Addr
	// Empty are directories of /etc, /opt, /var and /run that are empty there, whatever
	// the real machine has in them.
	Empty []string
	// Memory are directories that are file systems of their own, in memory: what holds
	// overlays, which cannot lie on an overlay.
	Memory []string
	// Failed is called on the machine after tests failed, before all is gone; nil is
	// not.
	Failed func()
}

// options are Main's, for Require.
var options Options

// Main runs the tests of m on a machine of their own. It is what a TestMain does,
// and does not return.
func Main(m *testing.M, o Options) {
	options = o
	switch os.Getenv(roleEnv) {
	case roleInit:
		os.Exit(firstProcess(o))
	case roleTests:
		code := m.Run()
		if code != 0 && o.Failed != nil {
			o.Failed()
		}
		os.Exit(code)
	}
	if missing(o.Needs) {
		os.Exit(m.Run())
	}
	code, err := outer(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Require skips the test, or fails it where CI=true, when something is missing that
// [Main] was told is needed.
func Require(tb netnstest.TB) {
	tb.Helper()
	netnstest.Require(tb, append([]netnstest.Need{netnstest.Root}, options.Needs...)...)
}

// CgroupParent is the control group that is for the machine, as the CRI wants it:
// a path below each hierarchy.
func CgroupParent() string { return "/" + os.Getenv(nameEnv) }

// Root is the root of the repository.
func Root() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "..")
}

// Cache is a path where the repository's tools are built: MESHCNI_CACHE, else
// .cache in the root.
func Cache(elem ...string) string {
	top := os.Getenv("MESHCNI_CACHE")
	if top == "" {
		top = filepath.Join(Root(), ".cache")
	}
	return filepath.Join(append([]string{top}, elem...)...)
}

// asker asks netnstest whether something is missing, outside of any test.
type asker struct {
	netnstest.TB
	missing bool
}

func (a *asker) Helper()               {}
func (a *asker) Fatalf(string, ...any) { a.missing = true }
func (a *asker) Skipf(string, ...any)  { a.missing = true }

func missing(needs []netnstest.Need) bool {
	var a asker
	netnstest.Require(&a, append([]netnstest.Need{netnstest.Root}, needs...)...)
	return a.missing
}

// outer builds what is needed, runs the machine, and clears up after it.
func outer(o Options) (code int, err error) {
	if o.Build != nil && !listing() {
		if err := o.Build(); err != nil {
			return 1, fmt.Errorf("build: %w", err)
		}
	}
	if err := removeOrphans(); err != nil {
		return 1, err
	}
	name := fmt.Sprintf("%s%d", groupPrefix, os.Getpid())
	groups, err := makeGroups(name)
	defer func() { err = errors.Join(err, groups.remove()) }()
	if err != nil {
		return 1, err
	}

	// The kernel kills the machine when the thread that started it ends, so this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"="+roleInit, nameEnv+"="+name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // an interrupt is for this process, which has to clear up
	}
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(interrupts)
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		err = cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case sig := <-interrupts:
		_ = cmd.Process.Kill()
		<-ended
		return 1, fmt.Errorf("ended by signal: %s", sig)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode(), nil // the tests have said why
	}
	return 0, err
}

// listing reports whether the tests are only to be listed.
func listing() bool {
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-test.list") {
			return true
		}
	}
	return false
}

// firstProcess lays out the machine, runs the tests in a process of their own, and
// reaps what becomes its child. When it returns, everything on the machine ends.
func firstProcess(o Options) int {
	if err := layOut(o); err != nil {
		fmt.Fprintln(os.Stderr, "machine: lay out:", err)
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		return 1
	}
	tests, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env:   append([]string{roleEnv + "=" + roleTests}, os.Environ()...), // of two the first counts
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine: start the tests:", err)
		return 1
	}
	for {
		var status syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "machine: wait for the tests:", err)
			return 1
		case pid != tests.Pid:
		case status.Exited():
			return status.ExitStatus()
		default:
			fmt.Fprintln(os.Stderr, "machine: the tests were ended by signal:", status.Signal())
			return 1
		}
	}
}
