//go:build linux

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/meshcni/meshcni/installer"
	"github.com/meshcni/meshcni/internal/kernel/backends"
	"github.com/meshcni/meshcni/internal/node/agentsock"
	"github.com/meshcni/meshcni/internal/node/netnsstore"
	"github.com/meshcni/meshcni/status"
)

// ReleaseTime bounds the release of all pods of a node. A pod takes milliseconds, and one request to the API server.
const ReleaseTime = 2 * time.Minute

// releaseLook is the interval at which an agent that ends looks whether a release has ended.
const releaseLook = 50 * time.Millisecond

// leavingTime is the same for an agent that ends: the kubelet kills it after terminationGracePeriodSeconds, 30 s in the chart.
const leavingTime = 20 * time.Second

// ReleaseOptions say who is to have a node's pods; the zero value takes them out of the mesh.
type ReleaseOptions = agentsock.ReleaseOptions

// ErrNoAgent says that no agent runs on the node.
var ErrNoAgent = errors.New("no agent runs on this node")

// Release takes all pods out of the care of the node's proxy, and returns those that it could not take out. The node's agent does it.
// Where there is none, this process does what the agent would, if alone is set; else errors.Is(err, ErrNoAgent).
func (o Options) Release(ctx context.Context, how agentsock.ReleaseOptions, alone bool) ([]status.Pod, error) {
	return o.withDefaults().release(ctx, o.Config, how, alone)
}

func (o Options) release(ctx context.Context, s Config, how agentsock.ReleaseOptions, alone bool) ([]status.Pod, error) {
	left, err := agentsock.Client{Path: filepath.Join(s.RunDir, agentsock.Name)}.Release(ctx, how)
	absent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
	switch {
	case absent && !alone:
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	case absent && how.Undo:
		return nil, fmt.Errorf("no agent runs on this node; the next one captures pods: %w", err)
	case absent:
		o.Log.Info("no agent runs on this node, so this process takes the pods out of the proxy's care")
		return o.releaseAlone(ctx, s, how)
	case errors.Is(err, agentsock.ErrUnsupported) && how == (agentsock.ReleaseOptions{}):
		return nil, nil // it has no such pods
	}
	return left, err
}

// Uninstall takes everything back that an agent has put onto the node: first the pods of the node's proxy, then the plugin, whose binary
// stays while attachments made with it need it. What cannot be taken back is in the error.
func (o Options) Uninstall(ctx context.Context) error {
	o = o.withDefaults()
	released := o.releaseBefore(ctx, o.Config)
	_, err := installer.Uninstall(ctx, o.Config.Config, o.Log)
	return errors.Join(released, err, backends.Forget(o.Config.RunDir), removeDeadSocket(filepath.Join(o.Config.RunDir, agentsock.Name)))
}

// releaseAlone does what an agent would, and ends.
func (o Options) releaseAlone(ctx context.Context, s Config, how agentsock.ReleaseOptions) (left []status.Pod, err error) {
	if !s.Ambient.Enabled { // the settings name no mesh whose proxy is on the node
		s.Plugin, s.PluginConfig = s.Effective(), ""
		s.Ambient.Enabled, s.Plugin.Dialects = true, WithNodeProxies(o.Dialects)
	}
	if err := s.Ambient.validate(s.Node); err != nil {
		return nil, err
	}
	pods, err := o.nodePods(s)
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	events, quiet := o.events(s)
	defer quiet()
	held := newProxied(s, o.Log, ambientOpener(func() *ambientParts {
		return &ambientParts{options: o, settings: s, log: o.Log, pods: pods, events: events.Recorder(o.name()), giving: how.To != ""}
	}))
	ended := make(chan error, 2)
	go func() { ended <- pods.Run(running) }()
	go func() { ended <- held.run(running) }()
	left, err = held.Release(ctx, how)
	stop()
	return left, errors.Join(err, <-ended, <-ended)
}

// hadProxied reports whether the node has, or may have, pods that its proxy has: an agent has served one since the node's start, and
// nobody has released all of them since.
func (o Options) hadProxied(s Config) bool {
	if _, err := os.Lstat(filepath.Join(s.RunDir, lockFile)); !errors.Is(err, fs.ErrNotExist) {
		return true // an agent has had the pods: those that ran before they joined have no record
	}
	return o.holds(s) > 0
}

// releaseBefore takes the pods out of the proxy's care before the node is uninstalled, if there are any.
func (o Options) releaseBefore(ctx context.Context, s Config) error {
	if !o.hadProxied(s) {
		return nil
	}
	given, err := readHandedOver(s.RunDir)
	if err != nil {
		return err // whose the pods are is not known
	}
	if given.All {
		return o.forgetProxied(ctx, s)
	}
	ctx, cancel := context.WithTimeout(ctx, ReleaseTime)
	defer cancel()
	left, err := o.release(ctx, s, agentsock.ReleaseOptions{To: given.To}, true) // the rest, if a hand-over did not end
	if err = errors.Join(err, unreleased(left)); err != nil {
		return err // what is kept of the pods that are left is needed to release them later
	}
	return o.forgetProxied(ctx, s)
}

// unreleased is the error of pods whose connections are refused once the proxy is gone.
func unreleased(left []status.Pod) error {
	var errs []error
	for _, p := range left {
		errs = append(errs, fmt.Errorf("pod %s/%s is still in the care of the node's proxy: %s: %s", p.Namespace, p.Name, p.Reason, p.Detail))
	}
	return errors.Join(errs...)
}

// forgetProxied removes what an agent keeps of these pods on the node: the journal of their namespaces, the exemption of the host's
// probes, the lock.
func (o Options) forgetProxied(ctx context.Context, s Config) error {
	errs := []error{
		netnsstore.RemoveJournal(netnsstore.Options{RunDir: s.RunDir, HostRoot: s.HostRoot}),
		removeIfThere(filepath.Join(s.RunDir, lockFile)), removeIfThere(filepath.Join(s.RunDir, handedOverFile)),
	}
	meshes, err := o.meshes(s)
	errs = append(errs, err)
	set, host, err := s.probeSet(meshes.Known())
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
		var given handedOver
		var left []status.Pod
		if err == nil {
			given, err = readHandedOver(p.present().RunDir)
		}
		if err == nil && !given.All {
			left, err = (*h).Release(ctx, given.To)
		}
		if err = errors.Join(err, unreleased(left)); err != nil {
			p.log.Error("pods are left in the care of the node's proxy; without it their connections are refused: the command release tries again", "error", err)
		}
		p.left.Store(err == nil)
		return leaves, why
	}
}
