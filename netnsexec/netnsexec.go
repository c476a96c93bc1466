// Package netnsexec runs a function or a child process in a network namespace, and refuses namespaces that must not be
// programmed.
//
// [Open] proves that a path is a pod's network namespace. Then:
//
//	ns.Do(fn)              runs fn in the namespace, on a thread of its own
//	ns.Run(cmd)            starts cmd in the namespace, without nsenter or a shell
//	ns.Sandbox().Run(cmd)  the same, out of sight of the host's xtables lock and name services
//	ns.Socket(…)           opens a socket in the namespace, for any thread
//
// [Current] is for a program that runs in the pod already, such as an init container: the same calls, without entering.
//
// # Hazards
//
// A network namespace belongs to an OS thread, not to a goroutine. Do locks a thread, enters, and afterwards restores
// the thread or lets it die, since a thread left in the wrong namespace would later program another pod. A function
// given to Do must not start goroutines that expect to be in the namespace, because they run on other threads. Some
// library calls do so, such as net.Dial with more than one address. Sockets keep their namespace: open them in Do and
// use them anywhere.
//
// The process's main thread is never used. /proc/self shows that thread's namespaces, so every comparison with the
// host's namespace would be a race.
//
// On platforms other than Linux every call returns an error that errors.Is(err, errors.ErrUnsupported).
package netnsexec

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// The refusals of [Open]; check with errors.Is(err, netnsexec.ErrGone) and so on.
var (
	// ErrGone: nothing is at the path, or its process has ended. It is an fs.ErrNotExist too.
	ErrGone = fmt.Errorf("network namespace is gone: %w", fs.ErrNotExist)

	// ErrNotNetNS: the path is something else, such as a plain file (what an unmounted bind mount leaves), a directory,
	// a fifo, or a namespace of another kind.
	ErrNotNetNS = errors.New("not a network namespace")

	// ErrHost: the path is the network namespace of this process or of process 1, where rules would capture the node's
	// own traffic. To program its own namespace, a program calls [Current].
	ErrHost = errors.New("the host's own network namespace")
)

// ErrRoot: [AtRoot] could not enter the root directory. Check with errors.Is(err, netnsexec.ErrRoot).
var ErrRoot = errors.New("enter root directory")

// errExited: the function given to [NetNS.Do] called runtime.Goexit, as testing.T.FailNow does.
var errExited = errors.New("function ended its goroutine instead of returning")

// waitDelay is the WaitDelay that Run gives an [exec.Cmd] without one: how long Run waits for output pipes that a
// grandchild holds open, after the process or its context has ended. The default of os/exec is forever. On a busy node what a process
// wrote may take seconds to be read to its end.
//
// [exec.Cmd]: https://pkg.go.dev/os/exec#Cmd
const waitDelay = 10 * time.Second

// ID identifies a namespace while it exists: the device and inode of its file. The kernel may reuse an inode number
// later. The zero ID is no namespace.
type ID struct {
	Dev, Ino uint64
}

// String returns the form of readlink /proc/self/ns/net, such as "net:[4026531840]".
func (id ID) String() string { return fmt.Sprintf("net:[%d]", id.Ino) }

// PanicError: the function given to [NetNS.Do] panicked. Get it with errors.As(err, &panicError).
type PanicError struct {
	Value any    // the argument of panic
	Stack []byte // as runtime/debug.Stack returns it
}

// Error returns the value and the stack, which shows where the panic came from.
func (e *PanicError) Error() string {
	return fmt.Sprintf("panic in network namespace: %v\n%s", e.Value, e.Stack)
}

// Unwrap returns the panic's value, if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
