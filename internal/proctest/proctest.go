// Package proctest runs the programs that a test is made against: servers, a
// container runtime, an agent. They end with the test's process, however that
// ends, write their output to a file, and may run in a network namespace.
package proctest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Options are how a program is run. The zero Options are those of exec.Command,
// with the output thrown away.
type Options struct {
	// Dir is where NAME.log is appended to with the program's output; "" is nowhere.
	Dir string
	// Name is of the log file and in errors; "" is the program's.
	Name string
	// NetNS is the path of the network namespace to run in; "" is this process's. The
	// mount namespace stays the same, as it would not with `ip netns exec`.
	NetNS string
	// Env is added to the environment.
	Env []string
	// WorkDir is the program's; "" is this process's.
	WorkDir string
	// OutliveSignals keeps an interrupt of the test from the program, which then has
	// a process group of its own.
	OutliveSignals bool
}

// Process is a running program.
type Process struct {
	// Name is what it is called in errors.
	Name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
	// guard keeps the watchdog waiting; closing it, which the kernel does when this
	// process is gone, lets it kill the program.
	guard    io.Closer
	watchdog *exec.Cmd
}

// Command makes the command that runs a program in a network namespace; "" is
// this process's.
func Command(netns, program string, args ...string) *exec.Cmd {
	if netns == "" {
		return exec.Command(program, args...)
	}
	return exec.Command("nsenter", append([]string{"--net=" + netns, "--", program}, args...)...)
}

// Start starts a program. Whoever starts one stops it, with [Process.Stop] or
// [Process.Kill].
func Start(o Options, program string, args ...string) (*Process, error) {
	if o.Name == "" {
		o.Name = filepath.Base(program)
	}
	p := &Process{Name: o.Name, cmd: Command(o.NetNS, program, args...), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir = append(os.Environ(), o.Env...), o.WorkDir
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: o.OutliveSignals}
	if o.Dir != "" {
		p.log = filepath.Join(o.Dir, o.Name+".log")
		log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", o.Name, err)
		}
		defer func() { _ = log.Close() }()
		p.cmd.Stdout, p.cmd.Stderr = log, log
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := p.watch(); err != nil {
		p.Kill()
		return nil, fmt.Errorf("watch %s: %w", o.Name, err)
	}
	return p, nil
}

// watch starts the watchdog, a shell that waits for the end of this process. (The
// kernel's parent-death signal follows the parent's thread, and Go ends threads.)
func (p *Process) watch() error {
	p.watchdog = exec.Command("sh", "-c", `trap "" INT TERM HUP; read _; kill -9 "$1" 2>/dev/null`, "sh", strconv.Itoa(p.Pid()))
	stdin, err := p.watchdog.StdinPipe()
	if err != nil {
		return err
	}
	p.guard = stdin
	return p.watchdog.Start()
}

// Pid is the program's process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the program has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends the program a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the program as a crash does, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	p.reap()
}

// Stop asks the program to end and waits, for at most patience; then it kills it.
// The error is how it ended: nil is exit code 0.
func (p *Process) Stop(patience time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("%s did not end within %s of being asked to", p.Name, patience)
	}
	p.reap()
	return p.err
}

// reap waits for the program and ends its watchdog, without letting it act.
func (p *Process) reap() {
	<-p.done
	if p.watchdog != nil && p.watchdog.Process != nil {
		_ = p.watchdog.Process.Kill()
		_ = p.watchdog.Wait()
		_ = p.guard.Close()
		p.watchdog = nil
	}
}

// Log is what the program has written so far.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

// Tail is the end of the program's output, at most n bytes of it.
func (p *Process) Tail(n int) string {
	text := p.Log()
	return text[max(0, len(text)-n):]
}

// WaitFor calls ready until it returns nil, and returns its last error, with the
// end of the program's output, when the program ended or patience did.
func (p *Process) WaitFor(patience time.Duration, ready func() error) error {
	deadline := time.After(patience)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended (%w) and was not ready: %w\n%s", p.Name, errors.Join(errors.New("exit"), p.err), err, p.Tail(2000))
		case <-deadline:
			return fmt.Errorf("%s is not ready within %s: %w\n%s", p.Name, patience, err, p.Tail(2000))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// FreePort asks the kernel for a TCP port of the loopback address that nobody
// uses now, in this process's network namespace.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
