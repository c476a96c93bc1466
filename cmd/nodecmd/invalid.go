//go:build linux

package nodecmd

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/serve"
	"github.com/meshcni/meshcni/internal/versionmetric"
)

// runInvalid is the agent of dialects that cannot work. It is never ready, and says why. It still installs the plugin: with the same
// dialects, that refuses pods, where pods without a plugin would start outside the mesh.
func (p Program) runInvalid(ctx context.Context, s Settings, invalid error, log *slog.Logger) error {
	invalid = because(codeDialectsInvalid, invalid)
	log.Error("the dialects cannot work, so the plugin refuses pods, and nothing is repaired or served", "error", invalid.Error())
	reg := versionmetric.Registry(p.Name)
	opts := installer.Options{
		Config: s.Config, Log: log, PluginLog: p.Stdout, Registry: reg, UninstallOnExit: s.UninstallOnExit != OnExitKeep, Token: p.pluginToken(s),
	}
	if s.UninstallOnExit == OnExitAuto {
		leaving, stop := watchDaemonSet(ctx, s, log)
		defer stop()
		opts.Leaving = leaving
	}
	turn := newTurn()
	opts.TakeOver, opts.OnTurn = func() error { return invalid }, turn.set
	agent, err := installer.New(opts)
	if err != nil {
		return err
	}
	ready := func() error { return errors.Join(agent.Ready(), invalid) }
	stop, err := startAnswering(turn, s.StartSocket, agent.Ready, serve.Options{
		HealthAddress: s.HealthAddress, MetricsAddress: s.MetricsAddress, Log: log, Metrics: reg, Healthy: agent.Healthy, Ready: ready,
	})
	if err != nil {
		return err
	}
	defer stop()
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return agent.Run(ctx) })
	both.Go(func() error {
		return reporter{path: filepath.Join(s.RunDir, statusFile), log: log, now: func() Status {
			return Status{Time: time.Now(), Node: s.Repair.Node, NotReady: strings.Split(ready().Error(), "\n")}
		}}.run(ctx)
	})
	return both.Wait()
}
