// Package machine gives a test binary, or another program, a Linux machine of its own, on which it can run a container runtime or a
// whole node without harm to the real machine.
//
// [Main] starts the test binary again, below the first process of new network, PID, IPC and mount namespaces. There /run is
// empty, and writes to /etc, /opt and /var go to overlays in memory. So a node has its files at the usual paths
// (/opt/cni/bin, /etc/cni/net.d, /run/containerd), and the real machine has none of them. When the first process ends, however
// that happens, the kernel ends all others and drops the mounts and networks. Only control groups are left then. A third process removes
// them, which waits outside until the outer one has ended, also if that was killed.
//
// The inner processes cannot reach the real network. What needs it, such as a build that uses the Go module proxy, runs
// before, outside.
package machine

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The environment tells a process its role. The outer process has none of it.
const (
	roleEnv   = "MESHCNI_E2E_ROLE"
	nameEnv   = "MESHCNI_E2E_NAME"
	handedEnv = "MESHCNI_E2E_HANDED" // how many files were handed in

	roleInit  = "init"  // the first process of the namespaces: lays them out and reaps
	roleTests = "tests" // runs the tests, or what else the machine is for
	roleSweep = "sweep" // waits for the end of the outer process and clears up after it
)

// handedFrom is the first descriptor of the files that the outer process hands in; those before it are standard ones.
const handedFrom = 3

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
	// Hand runs outside, after Build. The files that it returns are open on the machine too, where [Handed] returns them: a listener
	// among them still belongs to the real machine. nil is none.
	Hand func() ([]*os.File, error)
	// Started runs outside when the machine's first process has a process ID; nil is nothing.
	Started func(pid int) error
	// Failed runs on the machine after tests failed; nil is nothing.
	Failed func()
	// Swept runs outside when nothing of the machine is left, also if the outer process was killed; nil is nothing.
	Swept func() error
}

// ErrInterrupted is in the error of [Run] if a signal has ended the machine.
var ErrInterrupted = errors.New("ended by signal")

// all are the needs, with those of a machine.
// Missing returns the needs that are not met, or nil.
func (o Options) Missing() error {
	var missing []error
	for _, n := range o.all() {
		if n.Check == nil {
			continue
		}
		if err := n.Check(); err != nil {
			missing = append(missing, fmt.Errorf("%s: %w", n.Name, err))
		}
	}
	return errors.Join(missing...)
}

func (o Options) all() []netnstest.Need { return append([]netnstest.Need{netnstest.Root}, o.Needs...) }

// options are Main's, for Require.
var options Options

// Main runs the tests of m on a machine of their own. A TestMain calls it; it does not return.
func Main(m *testing.M, o Options) {
	options = o
	var code int
	var err error
	if os.Getenv(roleEnv) == "" && (listing() || o.Missing() != nil) {
		code = m.Run()
	} else {
		code, err = Run(m.Run, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// listing reports whether the tests are only listed.
func listing() bool {
	return slices.ContainsFunc(os.Args[1:], func(arg string) bool { return strings.HasPrefix(arg, "-test.list") })
}

// Run calls do on a machine of its own, in a process that has the same arguments, and returns what do returns. A program calls it first
// of all, since its processes begin there; where it returns in an inner one, the caller exits with the code. The caller has looked
// whether all that is needed is there.
func Run(do func() int, o Options) (code int, err error) {
	switch os.Getenv(roleEnv) {
	case roleInit:
		return firstProcess(o)
	case roleSweep:
		return 0, sweep(o)
	case roleTests:
		if code = do(); code != 0 && o.Failed != nil {
			o.Failed()
		}
		return code, nil
	}
	return outer(o)
}

// Handed returns the files that [Options.Hand] has handed in. They are for this process and not for those that it starts.
func Handed() (files []*os.File) {
	n, _ := strconv.Atoi(os.Getenv(handedEnv))
	for i := range n {
		syscall.CloseOnExec(handedFrom + i)
		files = append(files, os.NewFile(uintptr(handedFrom+i), fmt.Sprintf("handed in %d", i)))
	}
	return files
}

// Require skips the test, or fails it where CI=true, if something is missing that [Main] was told about.
func Require(tb testing.TB) {
	tb.Helper()
	netnstest.Require(tb, options.all()...)
}

// CgroupParent is the machine's control group in the CRI's form: a path below each hierarchy.
func CgroupParent() string { return "/" + os.Getenv(nameEnv) }

// outer builds, runs the machine, and has it cleaned up after.
func outer(o Options) (code int, err error) {
	if o.Build != nil {
		if err := o.Build(); err != nil {
			return 1, fmt.Errorf("build: %w", err)
		}
	}
	if err := removeOrphans(); err != nil {
		return 1, err
	}
	name := fmt.Sprintf("%s%d", groupPrefix, os.Getpid())
	swept, err := startSweeper(name)
	if err != nil {
		return 1, err
	}
	defer func() {
		if sweepErr := swept(); sweepErr != nil {
			code, err = max(code, 1), errors.Join(err, sweepErr)
		}
	}()
	if _, err := makeGroups(name); err != nil {
		return 1, err
	}
	var files []*os.File
	if o.Hand != nil {
		if files, err = o.Hand(); err != nil {
			return 1, err
		}
	}

	// The kernel kills the machine when the thread that started it ends, so this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd, err := again(roleInit, name)
	if err != nil {
		return 1, err
	}
	cmd.ExtraFiles = files
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", handedEnv, len(files)))
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
	for _, f := range files {
		_ = f.Close() // the machine's now
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if o.Started != nil {
		if err := o.Started(cmd.Process.Pid); err != nil {
			_ = cmd.Process.Kill()
			<-ended
			return 1, err
		}
	}
	select {
	case err = <-ended:
	case sig := <-interrupts:
		_ = cmd.Process.Kill()
		<-ended
		return 1, fmt.Errorf("%w: %s", ErrInterrupted, sig)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode(), nil // the tests have said why
	}
	return 0, err
}

// again is a command that starts this program in another role, for the machine of a name.
func again(role, name string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, nameEnv+"="+name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd, nil
}

// startSweeper starts the process that clears up when this one has ended, or calls swept, which returns when that is done.
func startSweeper(name string) (swept func() error, err error) {
	cmd, err := again(roleSweep, name)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends this process's group and terminal does not end it
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process that clears up: %w", err)
	}
	return func() error {
		_ = alive.Close()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("clear up: %w", err) // it has said why
		}
		return nil
	}, nil
}

// sweep waits for the end of the outer process, and then of the machine.
func sweep(o Options) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	_, _ = io.Copy(io.Discard, os.Stdin) // which the kernel closes
	err := removeMachine(os.Getenv(nameEnv))
	if o.Swept != nil {
		err = errors.Join(err, o.Swept())
	}
	return err
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
	handed := Handed()
	tests, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env:   append([]string{roleEnv + "=" + roleTests}, os.Environ()...), // of two the first counts
		Files: append([]*os.File{os.Stdin, os.Stdout, os.Stderr}, handed...),
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
