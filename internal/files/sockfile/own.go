package sockfile

import (
	"context"
	"net"
	"sync"
	"time"
)

// lookAgain is the interval of looks at the socket's file: after somebody has emptied run_dir, the socket is there again soon.
const lookAgain = time.Second

// Own listens at the path until the context ends, and has each listener served. drained is called when none is left.
func Own(ctx context.Context, path string, serve func(*net.UnixListener), drained func()) error {
	var serving sync.WaitGroup
	defer func() {
		serving.Wait()
		drained()
	}()
	var held *Listener
	defer func() {
		if held != nil {
			_ = held.Withdraw()
		}
	}()
	for {
		if held == nil || held.Owner() == Nobody {
			next, err := Listen(ctx, "unix", path)
			if err != nil && held == nil {
				return err
			}
			if err == nil {
				if held != nil {
					_ = held.Close()
				}
				held = next
				serving.Go(func() { serve(next.UnixListener) })
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookAgain):
		}
	}
}
