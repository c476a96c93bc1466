// Package machine gives a test binary a Linux machine of its own, on which it can run a container runtime or a whole node
// without harm to the real machine.
//
// [Main] starts the test binary again, below the first process of new network, PID, IPC and mount namespaces. There /run is
// empty, and writes to /etc, /opt and /var go to overlays in memory. So a node has its files at the usual paths
// (/opt/cni/bin, /etc/cni/net.d, /run/containerd), and the real machine has none of them. When the first process ends, however
// that happens, the kernel ends all others and drops the mounts and networks. Only control groups are left then. The outer
// process removes them, and also those of earlier runs that were killed.
//
// The inner processes cannot reach the real network. What needs it, such as a build that uses the Go module proxy, runs
// before, outside.
package machine

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The environment tells a process its role. The outer process has none of it.
const (
	roleEnv = "MESHCNI_E2E_ROLE"
	nameEnv = "MESHCNI_E2E_NAME"

	roleInit  = "init"  // the first process of the namespaces: lays them out and reaps
	roleTests = "tests" // runs the tests
)

// Options say what the machine is for. The zero Options make one with a loopback interface and nothing else.
type Options struct {
	// Needs are what the tests require. If something is missing, the tests run on the real machine, and [Require] says
	// what is missing.
	Needs []netnstest.Need
	// Build runs outside, before there is a machine; nil is nothing.
	Build func() error
	// Addresses are added to the loopback interface, such as the node's.
	Addresses []netip.Addr
	// Empty are directories of /etc, /opt, /var and /run that start empty.
	Empty []string
	// Memory are directories that are file systems in memory. They can hold overlays, which an overlay cannot.
	Memory []string
	// Failed runs on the machine after tests failed; nil is nothing.
	Failed func()
}

// all are the needs, with those of a machine.
func (o Options) all() []netnstest.Need { return append([]netnstest.Need{netnstest.Root}, o.Needs...) }

// options are Main's, for Require.
var options Options

// Main runs the tests of m on a machine of their own. A TestMain calls it; it does not return.
func Main(m *testing.M, o Options) {
	options = o
	var code int
	var err error
	switch role := os.Getenv(roleEnv); {
	case role == roleInit:
		code, err = firstProcess(o)
	case role == roleTests:
		if code = m.Run(); code != 0 && o.Failed != nil {
			o.Failed()
		}
	case netnstest.Missing(o.all()...) != nil:
		code = m.Run()
	default:
		code, err = outer(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Require skips the test, or fails it where CI=true, if something is missing that [Main] was told about.
func Require(tb netnstest.TB) {
	tb.Helper()
	netnstest.Require(tb, options.all()...)
}

// CgroupParent is the machine's control group in the CRI's form: a path below each hierarchy.
func CgroupParent() string { return "/" + os.Getenv(nameEnv) }

// outer builds, runs the machine, and cleans up after it.
func outer(o Options) (code int, err error) {
	listing := slices.ContainsFunc(os.Args[1:], func(arg string) bool { return strings.HasPrefix(arg, "-test.list") })
	if o.Build != nil && !listing {
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

// firstProcess lays out the machine, runs the tests in a process of their own, and reaps orphans. When it returns,
// everything on the machine ends.
func firstProcess(o Options) (code int, err error) {
	if err := layOut(o); err != nil {
		return 1, fmt.Errorf("lay out: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	tests, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env:   append([]string{roleEnv + "=" + roleTests}, os.Environ()...), // of two the first counts
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 1, fmt.Errorf("start the tests: %w", err)
	}
	for {
		var status syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("wait for the tests: %w", err)
		case pid != tests.Pid:
		case status.Exited():
			return status.ExitStatus(), nil
		default:
			return 1, fmt.Errorf("the tests were ended by signal: %s", status.Signal())
		}
	}
}
