package nodeproxytest

import "testing"

// Proxy is a running proxy. Its methods are safe for concurrent use. Make one with [Start] or [StartProcess].
type Proxy struct {
	tb testing.TB
	running
}

// running is a proxy in this process or in one of its own.
type running interface {
	currentState() State
	setFaults(f Faults)
	terminate()
	kill()
	exitCode() int
}

// Start starts a proxy in the test's process. It connects as soon as there is an agent, and is killed when the test ends.
func Start(tb testing.TB, o Options) *Proxy {
	tb.Helper()
	return started(tb, newProxy(o))
}

// StartProcess does the same in a process of its own, which is this test's program; see [RunIfChild]. Its log goes to the
// test's stderr.
func StartProcess(tb testing.TB, o Options) *Proxy {
	tb.Helper()
	p, err := newProcess(tb, o)
	if err != nil {
		tb.Fatalf("start a proxy: %v", err)
	}
	return started(tb, p)
}

func started(tb testing.TB, r running) *Proxy {
	tb.Helper()
	p := &Proxy{tb, r}
	tb.Cleanup(p.Kill)
	return p
}

// State returns what the proxy has now. It fails the test if the proxy's own process has ended.
func (p *Proxy) State() State {
	p.tb.Helper()
	return p.currentState()
}

// SetFaults replaces the faults.
func (p *Proxy) SetFaults(f Faults) {
	p.tb.Helper()
	p.setFaults(f)
}

// Terminate ends the proxy as SIGTERM does: it leaves the agent, closes all listeners, and ends when the last connection has
// ended, or cuts those that are left after Options.Drain. It does not wait for that.
func (p *Proxy) Terminate() { p.terminate() }

// Kill ends the proxy as SIGKILL does, and waits for the end: listeners and connections are cut.
func (p *Proxy) Kill() { p.kill() }

// ExitCode waits for the proxy's end and returns its code, which in the test's process is what a program's would be: 1 when the
// agent broke the protocol or a fault says so. -1 means that a signal ended its own process.
func (p *Proxy) ExitCode() int { return p.exitCode() }
