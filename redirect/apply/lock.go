//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// lock lets one process at a time change a namespace: the xtables lock is private, so two legacy programs would each
// write back what they read. It locks the namespace's own file, which needs no path and keeps no other pod waiting. It opens that
// file anew: a lock belongs to an opening, and other processes may share ours, such as the proxy that was handed the
// namespace. They would pass the lock, and would keep it when the process that took it is killed.
// A Namespace without a file descriptor is not locked.
func lock(ctx context.Context, ns Namespace) (unlock func(), err error) {
	file, ok := ns.(interface{ Fd() int })
	if !ok || file.Fd() < 0 {
		return func() {}, nil
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace to lock it: %w", err)
	}
	unlock = func() { _ = unix.Close(fd) }
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		switch err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return unlock, nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			unlock()
			return nil, fmt.Errorf("lock network namespace: %w", err)
		}
		select {
		case <-ctx.Done():
			unlock()
			return nil, fmt.Errorf("lock network namespace, which another change holds: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}
