package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/migration"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// lookout is the agent of a node, as far as rules of running pods are asked for.
type lookout struct {
	agent agent
	// trouble is the reason that it is asked no more.
	trouble string
	failed  int
}

// maxFailed is after how many pods in a row whose rules it could not read an agent is asked no more: one that may not enter pods
// would say so of each.
const maxFailed = 3

const noAgent = "no agent of ours is on their node to read them"

// choose makes the meshes decide as the plan's values would.
func (m *move) choose(p migration.Plan) error {
	entry, err := p.Entry()
	if err != nil {
		return err
	}
	meshes, err := dialect.Configure(m.Dialects, entry)
	if err != nil {
		return fmt.Errorf("the values: %w", err)
	}
	m.plan = p
	m.judge = migration.Judge{Plan: p, Meshes: meshes, Facts: m.Facts}
	return nil
}

// eachPage calls each with all pods of the cluster, a page at a time.
func (c *cluster) eachPage(ctx context.Context, each func([]corev1.Pod) error) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := nextPage(ctx, c.client.CoreV1().Pods("").List, o)
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		if err := each(list.Items); err != nil {
			return err
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return ctx.Err()
		}
	}
}

// candidate is a pod of the mesh.
type candidate struct {
	explained explain.Explanation // as it would be
	pod       *corev1.Pod         // as it is
	is        migration.Observed
	entered   *agentapi.Pod // as a pod on its node has found it
}

// pods judges all. It keeps one page at a time.
func (m *move) pods(ctx context.Context) error {
	m.progress("the pods")
	namespaces, err := m.namespaces(ctx)
	if err != nil {
		return err
	}
	seen := 0
	return m.eachBatch(ctx, func(pods []corev1.Pod) error {
		byNode := map[string][]*candidate{}
		var all []*candidate
		for i := range pods {
			pod := &pods[i]
			if seen++; seen%1000 == 0 {
				m.progress("the pods: %d have been looked at", seen)
			}
			if pod.Spec.HostNetwork || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				continue
			}
			c := &candidate{pod: pod}
			if c.explained, err = m.judge.Explain(pod, namespaces[pod.Namespace]); err != nil {
				return err
			}
			if !c.explained.Decision.Selected {
				m.judge.Outside++
				continue
			}
			all = append(all, c)
			byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], c)
		}
		var asking errgroup.Group
		asking.SetLimit(askAtOnce)
		for node, those := range byNode {
			asking.Go(func() error {
				for _, c := range those { // an agent looks into one pod at a time
					c.is = m.observe(ctx, m.agents[node], c)
				}
				m.enter(ctx, node, those)
				return nil
			})
		}
		_ = asking.Wait() // none returns an error
		for _, c := range all {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			m.judge.Add(c.explained, c.is)
		}
		return nil
	})
}

// observe finds out what rules a pod has.
func (m *move) observe(ctx context.Context, l *lookout, c *candidate) (o migration.Observed) {
	o = m.live(ctx, l, c)
	if o.LiveError == "" || o.Moved {
		return o
	}
	d, init := migration.Init(c.pod, m.judge.Meshes)
	switch {
	case init == nil && m.plan.From == migration.InitContainers:
		o.InitError = "it has no init container that writes rules"
	case init == nil:
	case c.explained.Plan.Dialect != d.Name:
		o.InitError = "its init container " + init.Name + " is of " + d.Name + ", and its plugin would be of another mesh"
	default:
		theirs, err := m.judge.Written(d, c.pod, init, c.explained.Plan.Redirect)
		if o.Init = &theirs; err != nil {
			o.Init, o.InitError = nil, "what the init container "+init.Name+" writes cannot be told: "+err.Error()
		}
	}
	return o
}

func (m *move) live(ctx context.Context, l *lookout, c *candidate) (o migration.Observed) {
	switch {
	case l == nil:
		o.LiveError = noAgent
		return o
	case l.trouble != "":
		o.LiveError = "the agent of the node does not tell: " + l.trouble
		return o
	}
	p, err := c.look(ctx, m, l)
	if o.Double, o.DoubleRule = m.double(p); o.Double != "" {
		l.failed = 0
		return o
	}
	switch {
	case err != nil:
		o.LiveError = err.Error()
	// A record without a rule of it is no evidence: such a pod bypasses the mesh, and is said to.
	case slices.ContainsFunc(p.Records, func(r attachment.Record) bool { return r.Selected }) && (p.LiveError != "" || slices.ContainsFunc(p.Live, func(r ruleset.LiveRule) bool { return r.Ours })):
		o.Moved, o.LiveError = true, "it is ours"
		return o
	case p.LiveError != "":
		o.LiveError = "the agent of the node cannot read them: " + p.LiveError
	default:
		o.Live = p.Live
		if _, err := p.Live.Ruleset(ruleset.Ruleset{}); err != nil && !errors.Is(err, ruleset.ErrForeign) {
			o.LiveError = err.Error()
		}
		l.failed = 0
		return o
	}
	if l.failed++; l.failed >= maxFailed {
		l.trouble = cmp.Or(p.LiveError, o.LiveError)
	}
	return o
}
