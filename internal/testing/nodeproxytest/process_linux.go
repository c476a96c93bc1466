package nodeproxytest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
)

// environment is the variable with a child's Options.
const environment = "MESHCNI_NODEPROXYTEST"

// RunIfChild runs the proxy and ends the process, if [StartProcess] started it. A test that uses that calls this first in its
// TestMain.
func RunIfChild() {
	if options, ok := os.LookupEnv(environment); ok {
		os.Exit(child(options, parent{os.Stdin}, os.Stdout, os.Stderr))
	}
}

// parent is what the test's process writes. The proxy does not outlive that.
type parent struct{ io.Reader }

func (p parent) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if err != nil {
		os.Exit(1)
	}
	return n, err
}

// command is a line that a process of its own reads. The answer is a line with its State.
type command struct {
	Faults *Faults // nil: as before
}

// child is the proxy as a program, with [Options] as JSON, and returns the exit code: 0 after SIGTERM or SIGINT, 1 if it ends by
// itself, 2 if the options cannot be read. It answers each line on stdin, such as {} or {"Faults": {"Nack": 1}}, with its
// [State] on stdout.
func child(options string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		_, _ = fmt.Fprintf(stderr, "read the options: %v\n", err)
		return 2
	}
	o.Log = slog.New(slog.NewTextHandler(stderr, nil))
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(term)
	p := newProxy(o)
	go func() {
		answers := json.NewEncoder(stdout)
		for lines := bufio.NewScanner(stdin); lines.Scan(); {
			var c command
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				_, _ = fmt.Fprintf(stderr, "read a command: %v\n", err)
				continue
			}
			if c.Faults != nil {
				p.setFaults(*c.Faults)
			}
			_ = answers.Encode(p.currentState())
		}
	}()
	select {
	case <-p.done:
		_, _ = fmt.Fprintln(stderr, p.err)
		return 1
	case <-term:
		p.stop()
		return 0
	}
}

// process is a proxy in a process of its own.
type process struct {
	tb   testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended

	mu  sync.Mutex
	in  io.WriteCloser
	out *json.Decoder
}

func newProcess(tb testing.TB, o Options) (*process, error) {
	p := &process{tb: tb, done: make(chan struct{})}
	if err := p.start(o); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) start(o Options) error {
	options, err := json.Marshal(o)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), environment+"="+string(options))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	// Not StdoutPipe: Wait would close it under a reader.
	out, into, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = into.Close() }()
	p.tb.Cleanup(func() { _ = out.Close() })
	p.cmd.Stdout, p.out = into, json.NewDecoder(out)
	return p.cmd.Start()
}

func (p *process) currentState() State {
	p.tb.Helper()
	return p.ask(command{})
}

func (p *process) setFaults(f Faults) {
	p.tb.Helper()
	p.ask(command{Faults: &f})
}

func (p *process) ask(c command) (s State) {
	p.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	err := json.NewEncoder(p.in).Encode(c)
	if err == nil {
		err = p.out.Decode(&s)
	}
	if err != nil {
		p.tb.Fatalf("ask the proxy: %v", err)
	}
	return s
}

func (p *process) terminate() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) exitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}
