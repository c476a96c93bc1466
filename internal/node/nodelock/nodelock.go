// Package nodelock lets one process at a time do what two must not do at once, and gives the turn to the newest. While a new agent
// starts beside the old one, the old one stops this part of its work first; if the new one dies, the old one goes on.
package nodelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pace is the interval at which a process looks whether it has the turn, or whether another wants it. It is a system call or two.
const pace = 50 * time.Millisecond

// courtesy is the wait of a process that has given its turn away before it asks again, so that who wanted it has it by then.
const courtesy = 2 * time.Second

// Lock is a file by which processes take nodelock. The kernel ends the turn of a process that dies.
type Lock struct {
	// Path is the file's, which is made if need be; its directory must be there.
	Path string
}

// Run calls work when it has the turn, with a context that ends when a process that began later wants it; work must then return.
// After that it waits for the next turn. It returns nil when ctx has ended, or the first error of work that is not its
// context's end. An error of the file itself ends it too.
func (l Lock) Run(ctx context.Context, work func(ctx context.Context) error) error {
	f, err := os.OpenFile(l.Path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock: %w", err)
	}
	defer func() { _ = f.Close() }() // which ends a turn
	if taken, err := take(f); err != nil {
		return err
	} else if !taken {
		if err := want(f); err != nil {
			return err
		}
		if err := await(ctx, f); err != nil {
			return ended(ctx, err)
		}
	}
	for {
		if err := turn(ctx, f, work); err != nil || ctx.Err() != nil {
			return ended(ctx, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
			return fmt.Errorf("unlock %s: %w", l.Path, err)
		}
		if err := sleep(ctx, courtesy); err != nil {
			return nil // the caller ended it
		}
		if err := await(ctx, f); err != nil {
			return ended(ctx, err)
		}
	}
}

// turn works until somebody else wants to, or the context ends.
func turn(ctx context.Context, f *os.File, work func(context.Context) error) error {
	since, err := stamp(f)
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- work(working) }()
	for {
		select {
		case err := <-done:
			switch {
			case errors.Is(err, context.Canceled) && working.Err() != nil:
				return nil
			case err == nil && working.Err() == nil:
				return errDone
			}
			return err
		case <-time.After(pace):
		}
		if now, err := stamp(f); err == nil && now != since {
			stop() // work returns
		}
	}
}

// errDone: work has nothing more to do.
var errDone = errors.New("done")

func ended(ctx context.Context, err error) error {
	if errors.Is(err, errDone) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// take tries to begin a turn.
func take(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return true, nil
}

func await(ctx context.Context, f *os.File) error {
	for {
		if taken, err := take(f); taken || err != nil {
			return err
		}
		if err := sleep(ctx, pace); err != nil {
			return err
		}
	}
}

// want tells the process whose turn it is that another wants it: the file's length is how many have wanted so.
func want(f *os.File) error {
	info, err := f.Stat()
	if err == nil {
		err = f.Truncate(info.Size() + 1)
	}
	if err != nil {
		return fmt.Errorf("ask for a turn by %s: %w", f.Name(), err)
	}
	return nil
}

func stamp(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("look at the lock: %w", err)
	}
	return info.Size(), nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
