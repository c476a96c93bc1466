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
	// clean: the thread is as it was found, and may serve other goroutines. Otherwise, as after a panic or Goexit, it
	// ends with its goroutine.
	clean bool
}

// onThread calls fn on a locked OS thread that is not the process's main one, and returns fn's error, a
// [*PanicError], or errExited.
func onThread(fn func(*thread) error) error {
	done := make(chan error, 1)
	go runLocked(fn, done)
	return <-done
}

func runLocked(fn func(*thread) error, done chan<- error) {
	err := errExited // remains if fn calls runtime.Goexit, which only runs the deferred calls
	defer func() { done <- err }()

	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// While this goroutine holds the main thread, the next one gets another.
		defer runtime.UnlockOSThread()
		err = onThread(fn)
		return
	}
	var t thread
	defer func() {
		// A goroutine that ends locked takes its thread with it; see runtime.LockOSThread.
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

// Do runs fn on a thread in n, and returns its error. Then it moves the thread back; if that fails, the thread ends with
// fn's goroutine, so that no other code runs on it.
//
// fn runs on a new goroutine. It must not start goroutines that expect to be in n, nor unlock the thread. A panic in fn is
// returned as a [*PanicError], runtime.Goexit (t.FailNow) as an error too. Other errors say that n could not be entered:
// errors.Is(err, fs.ErrPermission) without CAP_SYS_ADMIN, os.ErrClosed after Close.
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
