// Package netnsexec enters a network namespace for the time of one function or one child process, and refuses
// the namespaces that must not be programmed.
//
// The central calls are [Open], which proves that a path really is a pod's network namespace, and then one of:
//
//	ns.Do(fn)              fn runs inside the namespace, on a thread of its own
//	ns.Run(cmd)            cmd's process is born inside the namespace; no nsenter, no shell
//	ns.Sandbox().Run(cmd)  the same, and the process cannot see the host's xtables lock or name services
//	ns.Socket(…)           one socket of the namespace, usable from any thread
//
// [Current] stands for a program that runs inside the pod already (an init container): the same calls, and nothing
// is entered.
//
// # Hazards
//
// A network namespace belongs to an OS thread, not to a goroutine. Do locks a thread, enters, and on the way out
// restores the thread or lets it die: a thread that came back to the scheduler in the wrong namespace would, later,
// program a different pod. For the same reason a function given to Do must not start goroutines that expect to be
// in the namespace (they run on other threads), and that includes library calls that do so behind your back, such as
// net.Dial with more than one address. Sockets keep their namespace, so open them in Do and use them anywhere.
//
// The process's main thread is never used: /proc/self shows the main thread's namespaces, and to have those change
// under other code would make every check of "is this the host's namespace" a race.
//
// The package is for Linux. It builds everywhere; elsewhere every call returns an error that
// errors.Is(err, errors.ErrUnsupported).
package netnsexec

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// The refusals of [Open]. They are distinct, so a caller can ignore a namespace that is gone (CNI DEL) and still
// refuse the host's.
var (
	// ErrGone: nothing is at the path, or the process whose namespace it names has ended.
	// Check with errors.Is(err, netnsexec.ErrGone); errors.Is(err, fs.ErrNotExist) is true as well.
	ErrGone = fmt.Errorf("network namespace is gone: %w", fs.ErrNotExist)

	// ErrNotNetNS: something is at the path, but it is no network namespace: a plain file (what is left of a bind mount
	// after it was taken away), a directory, a fifo, or a namespace of another kind.
	// Check with errors.Is(err, netnsexec.ErrNotNetNS).
	ErrNotNetNS = errors.New("not a network namespace")

	// ErrHost: the path names the network namespace of this process or of process 1. Redirection rules there would
	// capture the node's own traffic. A program meant to program its own namespace calls [Current] instead.
	// Check with errors.Is(err, netnsexec.ErrHost).
	ErrHost = errors.New("the host's own network namespace")
)

// ErrExited is returned by [NetNS.Do] when the function ended its goroutine with runtime.Goexit, as
// testing.T.FailNow does, instead of returning. Check with errors.Is(err, netnsexec.ErrExited).
var ErrExited = errors.New("function ended its goroutine instead of returning")

// WaitDelay is the [exec.Cmd] WaitDelay that Run sets where a command has none (zero): how long after the process
// ended, or its context did, output pipes that some grandchild holds open are still waited for. os/exec's own
// default is for ever.
//
// [exec.Cmd]: https://pkg.go.dev/os/exec#Cmd
const WaitDelay = 2 * time.Second

// ID tells namespaces apart: the device and inode of the namespace file. Equal IDs are the same namespace for as
// long as it exists; the kernel may use an inode number again afterwards. The zero ID is no namespace.
type ID struct {
	Dev, Ino uint64
}

// String is the form that readlink of /proc/self/ns/net prints, such as "net:[4026531840]".
func (id ID) String() string { return fmt.Sprintf("net:[%d]", id.Ino) }

// PanicError is what [NetNS.Do] returns when the function panicked. Get it with errors.As.
type PanicError struct {
	Value any    // what panic was called with
	Stack []byte // the goroutine's stack at that moment, as runtime/debug.Stack prints it
}

// Error holds the value and the stack: a panic that crossed a thread has no other place to show where it came from.
func (e *PanicError) Error() string {
	return fmt.Sprintf("panic in network namespace: %v\n%s", e.Value, e.Stack)
}

// Unwrap gives the panic's value when that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
