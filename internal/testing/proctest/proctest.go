// Package proctest runs the programs that tests need: servers, a container runtime, an agent. A program ends with the
// test's process, however that ends, logs to a file, and may run in a network namespace.
package proctest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options say how to run a program. The zero Options are those of exec.Command, with the output discarded.
type Options struct {
	// Dir is where the program's output is appended to NAME.log; "" is nowhere.
	Dir string
	// Name names the log file, and the program in errors; "" is the program's own.
	Name string
	// NetNS is the path of the network namespace to run in; "" is this process's. Unlike `ip netns exec`, the mount
	// namespace stays the same.
	NetNS string
	// Env is added to the environment.
	Env []string
}

// Process is a running program.
type Process struct {
	Name string // in errors

	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
	// guard is the watchdog's input. The kernel closes it when this process is gone, and the watchdog then kills the
	// program.
	guard    io.Closer
	watchdog *exec.Cmd
}

// Command makes a command that runs in a network namespace; "" is this process's.
func Command(netns, program string, args ...string) *exec.Cmd {
	if netns == "" {
		return exec.Command(program, args...)
	}
	return exec.Command("nsenter", append([]string{"--net=" + netns, "--", program}, args...)...)
}

// Start starts a program. The caller stops it, with [Process.Stop] or [Process.Kill].
func Start(o Options, program string, args ...string) (*Process, error) {
	if o.Name == "" {
		o.Name = filepath.Base(program)
	}
	p := &Process{Name: o.Name, cmd: Command(o.NetNS, program, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), o.Env...)
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

// watch starts the watchdog, a shell that waits for the end of this process. The kernel's parent-death signal would not
// do: it follows the parent's thread, and Go ends threads.
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

// Kill kills the program and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	p.reap()
}

// Stop sends SIGTERM, waits for at most patience, and then kills the program. The error says how it ended; nil is exit
// code 0.
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

// reap waits for the program and ends its watchdog before it acts.
func (p *Process) reap() {
	<-p.done
	if p.watchdog != nil && p.watchdog.Process != nil {
		_ = p.watchdog.Process.Kill()
		_ = p.watchdog.Wait()
		_ = p.guard.Close()
		p.watchdog = nil
	}
}

// Log is the program's output so far.
func (p *Process) Log() string {
	text, _ := os.ReadFile(p.log)
	return string(text)
}

// Tail is the end of the program's output, at most n bytes.
func (p *Process) Tail(n int) string {
	text := p.Log()
	return text[max(0, len(text)-n):]
}

// WaitFor calls ready until it returns nil. When the program ends, or patience does, it returns ready's last error with the
// end of the program's output.
func (p *Process) WaitFor(patience time.Duration, ready func() error) error {
	err := poll(patience, p.done, ready)
	if err != nil && !p.Running() {
		return fmt.Errorf("%s ended (%s) and was not ready: %w\n%s", p.Name, fmt.Sprint(p.err), err, p.Tail(2000))
	} else if err != nil {
		return fmt.Errorf("%s: %w\n%s", p.Name, err, p.Tail(2000))
	}
	return nil
}

// Poll calls ready until it returns nil, and returns its last error when patience is over. It is for states of other
// programs that no event tells.
func Poll(patience time.Duration, ready func() error) error { return poll(patience, nil, ready) }

func poll(patience time.Duration, stop <-chan struct{}, ready func() error) error {
	deadline := time.After(patience)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-stop:
			return err
		case <-deadline:
			return fmt.Errorf("not within %s: %w", patience, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The ports of FreePort: below those that Linux and IANA give to clients and to listeners that ask for any, so that nobody is given one by
// chance between the look and the use.
const firstPort, ports = 20000, 10000

// FreePort returns a TCP port of the loopback address that nobody uses now, in this process's network namespace, and that no other process
// gets from FreePort as long as this one runs.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := firstPort + rand.IntN(ports) //nolint:gosec // no secret
		if err = claim(port); err == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

// claims are held until the process ends.
var claims struct {
	sync.Mutex
	held []io.Closer
}

// claim takes a port among the processes that do so, if nobody listens there. The name of a Unix socket that is in no directory is one of
// the network namespace's, as the port is, and it ends with the process.
func claim(port int) error {
	if runtime.GOOS == "linux" {
		name, err := net.Listen("unix", fmt.Sprintf("@meshcni-port-%d", port))
		if err != nil {
			return err
		}
		claims.Lock()
		claims.held = append(claims.held, name) // else the collector would close it
		claims.Unlock()
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// Buffer is a bytes.Buffer for several goroutines: a log that is read while it is written. The zero Buffer is empty.
type Buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write adds to the buffer; it never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is all that was written until now.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
