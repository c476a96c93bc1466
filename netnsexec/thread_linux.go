package netnsexec

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// thread is the locked OS thread of one call of onThread.
type thread struct {
	// clean says that the thread is as it was found and may serve other goroutines. It starts as false: a thread
	// that nobody vouches for (error, panic, Goexit) ends with its goroutine.
	clean bool
}

// onThread calls fn on a locked OS thread that is not the process's main one, and returns fn's error, a
// [*PanicError], or [ErrExited].
func onThread(fn func(*thread) error) error {
	done := make(chan error, 1)
	go runLocked(fn, done)
	return <-done
}

func runLocked(fn func(*thread) error, done chan<- error) {
	err := ErrExited // stays when fn calls runtime.Goexit, which runs the deferred calls and nothing else
	defer func() { done <- err }()

	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// Busy with this goroutine the main thread cannot be given to the next one as well.
		defer runtime.UnlockOSThread()
		err = onThread(fn)
		return
	}
	var t thread
	defer func() {
		// A goroutine that ends while it is locked takes its thread with it: see runtime.LockOSThread.
		if t.clean {
			runtime.UnlockOSThread()
		}
	}()
	err = safely(func() error { return fn(&t) })
}

// safely calls fn and turns a panic into an error.
func safely(fn func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return fn()
}

// Do runs fn on a thread that is in n, and returns its error. Afterwards the thread is moved back; if that
// fails it ends with fn's goroutine, so no other code ever runs on it.
//
// fn runs on a new goroutine and must not start goroutines that expect to be in n, nor unlock the thread. A panic in
// fn comes back as a [*PanicError], runtime.Goexit (t.FailNow) as [ErrExited]. Other errors of Do itself say that n
// could not be entered: errors.Is(err, fs.ErrPermission) without CAP_SYS_ADMIN, os.ErrClosed after Close.
func (n *NetNS) Do(fn func() error) error {
	return onThread(func(t *thread) error {
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.clean = true
			return fmt.Errorf("open the thread's own network namespace: %w", err)
		}
		defer func() { _ = unix.Close(home) }()
		if err := n.enter(); err != nil {
			t.clean = true // setns(2) either moves the thread or leaves it
			return err
		}
		// Deferred, so that it happens on a panic and on Goexit too.
		defer func() { t.clean = n.current || unix.Setns(home, unix.CLONE_NEWNET) == nil }()
		return fn()
	})
}
