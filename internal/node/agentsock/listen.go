package agentsock

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/meshcni/meshcni/internal/files/sockfile"
)

// lookAgain is the interval of looks at the socket's file: after somebody has emptied run_dir, the socket is there again soon.
const lookAgain = time.Second

// own listens at the path until the context ends, and has each listener served. drained is called when none is left.
func own(ctx context.Context, path string, serve func(*net.UnixListener), drained func()) error {
	var serving sync.WaitGroup
	defer func() {
		serving.Wait()
		drained()
	}()
	var held *sockfile.Listener
	defer func() {
		if held != nil {
			_ = held.Withdraw()
		}
	}()
	for {
		if held == nil || held.Owner() == sockfile.Nobody {
			next, err := sockfile.Listen(ctx, "unix", path)
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
