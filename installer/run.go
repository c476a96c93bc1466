//go:build linux

package installer

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/meshcni/meshcni/installer/internal/diskfile"
)

// rounds bounds how often a plan is made anew because somebody else writes at the same time. Each lost race means that the
// other one made progress, so this many in a row is a fight and no accident.
const rounds = 100

// Install brings the node to where there is nothing left to do, and then writes nothing. It never waits: with no network to
// chain into it returns a *[Blocked] that names each file and why the runtime would pass over it.
func Install(ctx context.Context, c Config, log *slog.Logger) (Steps, error) {
	if err := c.Validate(); err != nil {
		return Steps{}, err
	}
	if err := os.Remove(marker(c)); err == nil {
		log.Info("an earlier uninstall is over")
	}
	var obs observer
	return settle(ctx, log, func() Steps { return Plan(c, Installed, obs.look(c, false)) })
}

// Uninstall takes everything back: lists, then kubeconfig, then the binary, unless libcni's cache names attachments made
// with it, which Steps.Notes then says. What an entry still names that is not ours to take out stays, and is a *[Blocked] of
// the code still-named. An agent that runs on this run directory is told to rest.
func Uninstall(ctx context.Context, c Config, log *slog.Logger) (Steps, error) {
	if l := leaseOf(c); !l.taken() {
		_ = os.Remove(l.path) // of a killed one, if any
	} else {
		if err := diskfile.Write(marker(c), []byte("Written by meshcni-node uninstall; a running agent rests while this is here.\n"), 0o600); err != nil {
			return Steps{}, explain(err, marker(c))
		}
	}
	return uninstall(ctx, c, log)
}

func uninstall(ctx context.Context, c Config, log *slog.Logger) (Steps, error) {
	var obs observer
	// First every file that may name the binary, again and again while others write; the rest only when none does.
	if steps, err := settle(ctx, log, func() Steps {
		steps := Plan(c, Absent, obs.look(c, true))
		var confs []Action
		for _, a := range steps.Actions {
			if a.conf() || a.Op == OpRemoveTemp {
				confs = append(confs, a)
			}
		}
		steps.Actions = confs
		return steps
	}); err != nil {
		return steps, err
	}
	return settle(ctx, log, func() Steps { return Plan(c, Absent, obs.look(c, true)) })
}

// settle plans and acts until there is nothing left that could be done. Its error has all that could not.
func settle(ctx context.Context, log *slog.Logger, plan func() Steps) (Steps, error) {
	var last error
	var doing performer
	for range rounds {
		if err := ctx.Err(); err != nil {
			return Steps{}, err
		}
		steps := plan()
		switch done, changed := doing.perform(steps.Actions, log); {
		case changed != nil:
			last = changed
		case len(done) == 0:
			for _, n := range append(steps.Notes, doing.notes()...) {
				log.Warn(n)
			}
			steps.Blocked = append(doing.reasons(), steps.Blocked...)
			return steps, steps.Err()
		}
	}
	return Steps{}, fmt.Errorf("giving up after %d attempts, because somebody else keeps writing: %w", rounds, last)
}

func marker(c Config) string { return filepath.Join(c.RunDir, "uninstalled") }
