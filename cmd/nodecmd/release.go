//go:build linux

package nodecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/nodeproxy/netnsstore"
	"github.com/meshcni/meshcni/plugin/agentsock"
)

// releaseTime bounds the release of all pods of a node. A pod takes milliseconds, and one request to the API server.
const releaseTime = 2 * time.Minute

// releaseLook is the interval at which an agent that ends looks whether a release has ended.
const releaseLook = 50 * time.Millisecond

// leavingTime is the same for an agent that ends: the kubelet kills it after terminationGracePeriodSeconds, 30 s in the chart.
const leavingTime = 20 * time.Second

var errNoAgent = errors.New("no agent runs on this node")

// releaseCommand makes the command that takes all pods out of the care of the node's proxy.
func (p Program) releaseCommand() *cobra.Command {
	output, patience, byAgent := "text", releaseTime, false
	var how agentsock.Release
	c := &cobra.Command{
		Use: "release", Short: "take all pods out of the care of the node's proxy, before the agent or the proxy goes for good; exits 1 and names those that could not be",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := p.resolve(c.Flags())
			if err != nil {
				return cli.Usage(err)
			}
			if how.Undo && how.To != "" {
				return cli.Usage(errors.New("undo and to exclude each other"))
			}
			ctx, cancel := context.WithTimeout(c.Context(), patience)
			defer cancel()
			log := p.logger(s.Plugin.LogLevel)
			left, err := p.release(ctx, s, how, !byAgent, log)
			switch {
			case byAgent && errors.Is(err, errNoAgent):
				log.Info("no agent runs on this node, so nothing is released")
			case err != nil:
				return err
			}
			if output == "json" {
				e := json.NewEncoder(visible.JSON(p.Stdout))
				e.SetIndent("", "  ")
				if err := e.Encode(append([]agentsock.PodState{}, left...)); err != nil {
					return err
				}
			} else if len(left) > 0 {
				showPods(visible.To(p.Stdout), Status{Pods: left})
			}
			if len(left) > 0 {
				return cli.Exit(1)
			}
			return nil
		},
	}
	s := p.defaults()
	s.register(c.Flags(), p.Dialects)
	c.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json: the pods that could not be released")
	c.Flags().StringVar(&how.To, "to", "", "another agent of the mesh that is to have the pods instead, such as istio-cni: they stay captured and with the proxy. Start it, and then uninstall this one")
	c.Flags().BoolVar(&how.Undo, "undo", false, "have the running agent capture pods again")
	c.Flags().BoolVar(&byAgent, "by-agent", false, "leave it to the node's agent: without one do nothing, successfully")
	c.Flags().DurationVar(&patience, "timeout", patience, "how long to try")
	return c
}

// release takes all pods out of the care of the node's proxy, and returns those that it could not take out. The agent does it, or
// where there is none, this process does what the agent would, if it may; else errors.Is(err, errNoAgent).
func (p Program) release(ctx context.Context, s Settings, how agentsock.Release, alone bool, log *slog.Logger) ([]agentsock.PodState, error) {
	left, err := agentsock.Client{Path: filepath.Join(s.RunDir, agentsock.Name)}.Release(ctx, how)
	absent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
	switch {
	case absent && !alone:
		return nil, fmt.Errorf("%w: %w", errNoAgent, err)
	case absent && how.Undo:
		return nil, fmt.Errorf("no agent runs on this node; the next one captures pods: %w", err)
	case absent:
		log.Info("no agent runs on this node, so this process takes the pods out of the proxy's care")
		return p.releaseAlone(ctx, s, how, log)
	case errors.Is(err, agentsock.ErrUnsupported) && how == (agentsock.Release{}):
		return nil, nil // it has no such pods
	}
	return left, err
}

// releaseAlone does what an agent would, and ends.
func (p Program) releaseAlone(ctx context.Context, s Settings, how agentsock.Release, log *slog.Logger) (left []agentsock.PodState, err error) {
	if !s.Ambient.Enabled { // the settings name no mesh whose proxy is on the node
		s.Ambient.Enabled, s.Plugin.Dialects = true, p.withNodeProxies()
		s.Repair.Plugin.Dialects = s.Plugin.Dialects
	}
	if err := s.Ambient.validate(s.Repair.Node); err != nil {
		return nil, err
	}
	pods, err := p.nodePods(s, log)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	held := newProxied(s.RunDir, log, p.opener(func() Settings { return s }, log, pods, how.To != ""))
	held.settings = s
	ended := make(chan error, 2)
	go func() { ended <- pods.Run(running) }()
	go func() { ended <- held.run(running) }()
	left, err = held.Release(ctx, how)
	stop()
	return left, errors.Join(err, <-ended, <-ended)
}

// hadProxied reports whether the node has, or may have, pods that its proxy has: an agent has served one since the node's start, and
// nobody has released all of them since.
func (p Program) hadProxied(s Settings) bool {
	if _, err := os.Lstat(filepath.Join(s.RunDir, turnsFile)); !errors.Is(err, fs.ErrNotExist) {
		return true // an agent has had the pods: those that ran before they joined have no record
	}
	return p.holds(s) > 0
}

// releaseBefore takes the pods out of the proxy's care before the node is uninstalled, if there are any.
func (p Program) releaseBefore(ctx context.Context, s Settings, log *slog.Logger) error {
	if !p.hadProxied(s) {
		return nil
	}
	given, err := readGiven(s.RunDir)
	if err != nil {
		return err // whose the pods are is not known
	}
	if given.All {
		return p.forgetProxied(ctx, s)
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	left, err := p.release(ctx, s, agentsock.Release{To: given.To}, true, log) // the rest, if a hand-over did not end
	if err = errors.Join(err, unreleased(left)); err != nil {
		return err // what is kept of the pods that are left is needed to release them later
	}
	return p.forgetProxied(ctx, s)
}

// unreleased is the error of pods whose connections are refused once the proxy is gone.
func unreleased(left []agentsock.PodState) error {
	var errs []error
	for _, p := range left {
		errs = append(errs, fmt.Errorf("pod %s/%s is still in the care of the node's proxy: %s: %s", p.Namespace, p.Name, p.Reason, p.Detail))
	}
	return errors.Join(errs...)
}

// forgetProxied removes what an agent keeps of these pods on the node: the journal of their namespaces, the exemption of the host's
// probes, the lock.
func (p Program) forgetProxied(ctx context.Context, s Settings) error {
	errs := []error{
		netnsstore.RemoveJournal(netnsstore.Options{RunDir: s.RunDir, HostRoot: s.Repair.HostRoot}),
		removeIfThere(filepath.Join(s.RunDir, turnsFile)), removeIfThere(filepath.Join(s.RunDir, givenFile)),
	}
	meshes, err := dialects.Of(p.Dialects, s.Repair.Plugin)
	errs = append(errs, err)
	set, host, err := s.probeSet(meshes.Known)
	if set != nil {
		err = set.Remove(ctx)
	}
	if host != nil {
		errs = append(errs, host.Close())
	}
	return errors.Join(append(errs, err)...)
}

// awaitReleases lets a release end that somebody has asked for: the agent that takes this one's place without --ambient has not the rights
// to go on with it.
func (p *proxied) awaitReleases(ctx context.Context) {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leavingTime)
	defer cancel()
	for p.releasing.Load() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(releaseLook):
		}
	}
}

// leaving wraps what tells an agent that ends whether it leaves for good: if so, its pods are released first. Nil leaving: it does.
func (p *proxied) leaving(leaving func(context.Context) (bool, string)) func(context.Context) (bool, string) {
	return func(ctx context.Context) (bool, string) {
		leaves, why := true, "--uninstall-on-exit"
		if leaving != nil {
			leaves, why = leaving(ctx)
		}
		h, err := p.state()
		if !leaves || h == nil && err == nil { // another agent of the node has the pods
			return leaves, why
		}
		ctx, cancel := context.WithTimeout(ctx, leavingTime)
		defer cancel()
		var given givenAway
		var left []agentsock.PodState
		if err == nil {
			given, err = readGiven(p.present().RunDir)
		}
		if err == nil && !given.All {
			left, err = h.Release(ctx, given.To)
		}
		if err = errors.Join(err, unreleased(left)); err != nil {
			p.log.Error("pods are left in the care of the node's proxy; without it their connections are refused: meshcni-node release tries again", "error", err)
		}
		p.left.Store(err == nil)
		return leaves, why
	}
}
