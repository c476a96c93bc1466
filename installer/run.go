//go:build linux

package installer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/internal/node/news"
)

// rounds bounds how often a new plan is made because another process writes at the same time. Each lost race means progress of
// the other process, so this many in a row are no accident.
const rounds = 100

// Install carries out plans until one has no actions left, and returns that one. If there is nothing to do, it writes nothing.
// A token that a running agent has given the plugin stays. It never waits: without a network to chain into, it returns a *[BlockedError] that names each file and why the runtime would
// pass over it.
func Install(ctx context.Context, c Config, log *slog.Logger) (Plan, error) {
	if err := c.Validate(); err != nil {
		return Plan{}, err
	}
	if c.Alone {
		return Plan{}, errors.New("alone: nothing is to be installed on the node")
	}
	if os.Remove(marker(c)) == nil {
		log.Info("an earlier uninstall is over")
	}
	if err := forgetTaken(c); err != nil {
		return Plan{}, err
	}
	obs := newObserver()
	return settle(ctx, log, func() Plan { return planInstall(c, obs.lookForInstall(c)) })
}

// Uninstall removes the entries, then the kubeconfig, then the binary. The binary stays, with a note in the plan, while
// libcni's cache has attachments made with it. If a configuration that we must not change still names the plugin or its
// kubeconfig, both stay, and the error is a *[BlockedError] with the code "still-named". A running agent with the same run directory stops
// installing.
func Uninstall(ctx context.Context, c Config, log *slog.Logger) (Plan, error) {
	if l := leaseOf(c); !l.taken() {
		_ = os.Remove(l.path) // a killed agent's, if any
	} else if err := diskfile.Write(marker(c), []byte("Written by an uninstall; a running agent rests while this file exists.\n"), 0o600); err != nil {
		return Plan{}, explain(err, marker(c))
	}
	return uninstall(ctx, c, log)
}

// AwaitAgent waits until no agent with the same run directory runs. When ctx ends before, the error wraps its cause:
//
//	errors.Is(err, context.DeadlineExceeded)
func AwaitAgent(ctx context.Context, c Config) error {
	for l := leaseOf(c); l.taken(); {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the node's agent to end: %w", context.Cause(ctx))
		case <-time.After(leaseLook):
		}
	}
	return nil
}

// leaseLook is the interval at which AwaitAgent looks. Nothing tells when a file's lock is given up but asking for it.
const leaseLook = 50 * time.Millisecond

func uninstall(ctx context.Context, c Config, log *slog.Logger) (Plan, error) {
	obs := newObserver()
	return settle(ctx, log, func() Plan { return planUninstall(c, obs.lookForUninstall(c)) })
}

// settle plans and acts until nothing is left that can be done. Its error lists everything that could not be done.
func settle(ctx context.Context, log *slog.Logger, plan func() Plan) (Plan, error) {
	var last error
	var doing performer
	for range rounds {
		if err := ctx.Err(); err != nil {
			return Plan{}, err
		}
		p := plan()
		switch done, changed := doing.perform(p.actions, log); {
		case changed != nil:
			last = changed
		case len(done) == 0:
			failed, notes := doing.failures()
			for _, n := range append(p.Notes, notes...) {
				log.Warn(n)
			}
			for _, n := range p.Neighbours {
				log.Warn(n.Text(), "code", string(news.OtherMesh), "plugin", n.Plugin)
			}
			p.Blocked = append(failed, p.Blocked...)
			return p, join(p.Blocked)
		}
	}
	return Plan{}, fmt.Errorf("giving up after %d attempts, because somebody else keeps writing: %w", rounds, last)
}

// marker is the file by which an uninstall tells a running agent to rest.
func marker(c Config) string { return filepath.Join(c.RunDir, "uninstalled") }
