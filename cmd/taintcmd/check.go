package taintcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/meshcni/meshcni/internal/version"
	"github.com/meshcni/meshcni/internal/visible"
)

// checkWithin bounds the wait of check: another controller takes a Lease over in less.
const checkWithin = time.Minute

// check sees that a controller works.
func (p Program) check(ctx context.Context, s *settings, _ *slog.Logger) error {
	config, err := s.config(version.Agent(p.name(), p.Identity.Version))
	if err != nil {
		return err
	}
	a, err := newAPI(config, s)
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, checkWithin)
	defer stop()
	holder, err := a.renewed(ctx)
	if err != nil {
		return err
	}
	visible.To(p.Stdout).Printf("%s renews the Lease %s/%s.\n", holder, s.namespace, s.lease)
	said, err := a.untainted(ctx)
	if err != nil {
		return err
	}
	visible.To(p.Stdout).Printf("%s\n", said)
	return nil
}

// again is the pace at which check looks.
const again = time.Second

// until calls look until it returns nil, or the last error when ctx ends.
func until(ctx context.Context, look func() error) error {
	for {
		err := look()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(again):
		}
	}
}

// renewed waits until the Lease is seen to be renewed, and returns by whom. Its times are another machine's: that they change is
// what counts.
func (a *api) renewed(ctx context.Context) (holder string, err error) {
	first := ""
	return holder, until(ctx, func() error {
		lease, err := a.client.CoordinationV1().Leases(a.namespace).Get(ctx, a.lease, metav1.GetOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("read the Lease %s/%s: %w", a.namespace, a.lease, err)
		case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "":
			return fmt.Errorf("the Lease %s/%s is nobody's: no controller works", a.namespace, a.lease)
		}
		holder = *lease.Spec.HolderIdentity
		if seen := holder + " " + lease.ResourceVersion; first == "" {
			first = seen
		} else if seen != first {
			return nil
		}
		return fmt.Errorf("the Lease %s/%s is not renewed by %s: no controller works", a.namespace, a.lease, holder)
	})
}

// untainted waits until no node whose agent is ready has the taint, and says how the nodes are.
func (a *api) untainted(ctx context.Context) (said string, err error) {
	return said, until(ctx, func() error {
		sets, err := a.client.AppsV1().DaemonSets(a.namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", a.daemonSet).String(),
		})
		if err == nil && len(sets.Items) == 0 {
			err = errors.New("there is none")
		}
		if err != nil {
			return fmt.Errorf("read the DaemonSet %s/%s: %w", a.namespace, a.daemonSet, err)
		}
		pods, err := a.client.CoreV1().Pods(a.namespace).List(ctx, metav1.ListOptions{LabelSelector: a.selector})
		if err != nil {
			return fmt.Errorf("list the agents: %w", err)
		}
		nodes, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		withAgent := map[string]bool{}
		for i := range pods.Items {
			if pod := &pods.Items[i]; ready(pod) {
				withAgent[pod.Spec.NodeName] = true
			}
		}
		var late []string
		tainted := 0
		for i := range nodes.Items {
			node := &nodes.Items[i]
			if slices.ContainsFunc(node.Spec.Taints, a.ours) {
				if tainted++; withAgent[node.Name] {
					late = append(late, node.Name)
				}
			}
		}
		if len(late) > 0 {
			return fmt.Errorf("the agent is ready, and the taint %s is still there, on %s", a.key, strings.Join(late[:min(len(late), 10)], ", "))
		}
		said = fmt.Sprintf("Of %d nodes %d have an agent that is ready, and %d have the taint.", len(nodes.Items), len(withAgent), tainted)
		return nil
	})
}
