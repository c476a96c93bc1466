package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// ruleSource is the agent of a node, as far as rules of running pods are asked for.
type ruleSource struct {
	agent agents.Agent
	// trouble is the reason that it is asked no more.
	trouble string
	failed  int
}

const (
	// maxFailed is after how many pods in a row whose rules it could not read an agent is asked no more: one that may not enter pods
	// would say so of each.
	maxFailed = 3
	// nodesAtOnce bounds the nodes whose pods are held at a time, and how many have a pod that reads rules.
	nodesAtOnce = 10
)

// choose makes the meshes decide as the plan's values would.
func (m *move) choose(p migration.Plan) error {
	meshes, err := dialect.Configure(m.Dialects, p.Entry())
	if err != nil {
		return fmt.Errorf("the values: %w", err)
	}
	m.plan = p
	m.judge = migration.Judge{Plan: p, Meshes: meshes, Facts: m.Facts}
	return nil
}

// candidate is a pod of the mesh.
type candidate struct {
	explained explain.Explanation // as it would be
	pod       *corev1.Pod         // as it is
	is        migration.Observed
}

// pods judges all. It keeps those of some nodes at a time.
func (m *move) pods(ctx context.Context) error {
	m.Progress("the pods")
	namespaces, err := m.Namespaces(ctx)
	if err != nil {
		return err
	}
	nodes := []string{""} // of the pods that have none yet
	if err := apilist.Each(ctx, m.Client.CoreV1().Nodes().List, metav1.ListOptions{}, func(n *corev1.Node) { nodes = append(nodes, n.Name) }); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	seen := 0
	for some := range slices.Chunk(nodes, nodesAtOnce) {
		errs := make([]error, len(some))
		byNode := make([][]*candidate, len(some))
		var looking sync.WaitGroup
		for i, node := range some {
			looking.Go(func() { byNode[i], errs[i] = m.onNode(ctx, node, namespaces) })
		}
		looking.Wait()
		if err := cmp.Or(errors.Join(errs...), ctx.Err()); err != nil {
			return err
		}
		for _, c := range slices.Concat(byNode...) {
			if seen++; seen%1000 == 0 {
				m.Progress("the pods: %d have been looked at", seen)
			}
			if c.explained.Decision.Selected {
				m.judge.Add(ctx, c.explained, c.is)
			} else {
				m.judge.Outside++
			}
		}
	}
	return ctx.Err()
}

// onNode returns the pods of a node, with the rules of those of the mesh.
func (m *move) onNode(ctx context.Context, node string, namespaces map[string]*corev1.Namespace) (all []*candidate, err error) {
	failed := apilist.Each(ctx, m.Client.CoreV1().Pods("").List, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}, func(pod *corev1.Pod) {
		if !kubectl.HasNetwork(pod) || err != nil {
			return
		}
		c := &candidate{pod: pod}
		c.explained, err = m.judge.Explain(pod, namespaces[pod.Namespace])
		all = append(all, c)
	})
	if failed != nil {
		return nil, fmt.Errorf("list pods: %w", failed)
	}
	for _, c := range all { // an agent looks into one pod at a time
		if c.explained.Decision.Selected {
			c.is = m.observe(ctx, m.agents[node], c, nil)
		}
	}
	m.enterAll(ctx, node, all)
	return all, err
}

// observe finds out what rules a pod has. entered: as a pod on its node has found it; nil: its agent is asked.
func (m *move) observe(ctx context.Context, l *ruleSource, c *candidate, entered *agentapi.Pod) (o migration.Observed) {
	o = m.live(ctx, l, c, entered)
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
		o.Init = &theirs
		if err != nil {
			o.Init, o.InitError = nil, "what the init container "+init.Name+" writes cannot be told: "+err.Error()
		}
	}
	return o
}

func (m *move) live(ctx context.Context, l *ruleSource, c *candidate, entered *agentapi.Pod) (o migration.Observed) {
	var p agentapi.Pod
	var err error
	switch {
	case entered != nil:
		p = *entered
	case l == nil:
		o.LiveError = "no agent of ours is on their node to read them"
		return o
	case l.trouble != "":
		o.LiveError = "the agent of the node does not tell: " + l.trouble
		return o
	default:
		p, err = m.Pod(ctx, l.agent, c.pod)
	}
	o.Double, o.DoubleRule = m.double(p)
	switch {
	case o.Double != "":
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
	}
	switch {
	case l == nil:
	case err == nil && p.LiveError == "" || o.Double != "":
		l.failed = 0
	default:
		if l.failed++; l.failed >= maxFailed {
			l.trouble = cmp.Or(p.LiveError, o.LiveError)
		}
	}
	return o
}

// unread reports whether nobody has read the pod's rules, and they matter.
func (c *candidate) unread() bool {
	return c.explained.Err() == nil && c.is.LiveError != "" && !c.is.Moved && len(c.is.Live) == 0
}

// enterAll reads the rules of those pods of a node whose rules its agent could not read.
func (m *move) enterAll(ctx context.Context, node string, all []*candidate) {
	those := slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return !c.unread() })
	if len(those) == 0 {
		return
	}
	m.mu.Lock()
	err := m.refused
	m.mu.Unlock()
	var found map[string]agentapi.Pod
	if m.enter && node != "" && err == nil {
		var uids []string
		for _, c := range those {
			uids = append(uids, kubectl.RuntimeUID(c.pod))
		}
		what := "pod " + those[0].pod.Namespace + "/" + those[0].pod.Name
		if len(those) > 1 {
			what = fmt.Sprintf("%d pods", len(those))
		}
		found, err = m.Look(ctx, node, what, m.image, uids)
	}
	unread := 0
	for _, c := range those {
		is, ok := found[kubectl.RuntimeUID(c.pod)]
		failed := cmp.Or(kubectl.Theirs(c.pod, is), err)
		switch {
		case ok && kubectl.Theirs(c.pod, is) == nil:
			c.is = m.observe(ctx, nil, c, &is)
			if is.LiveError != "" && c.unread() {
				c.is.LiveError = "--enter: " + is.LiveError
			}
		case failed != nil && m.enter && node != "":
			c.is.LiveError += "; --enter: " + failed.Error()
		}
		if c.unread() {
			unread++
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unread += unread
	if apierrors.IsForbidden(err) {
		m.refused = cmp.Or(m.refused, err)
	}
}

// double names two programs that have both written a pod's rules, with a rule of the second if one tells; nothing for a pod that has
// the rules of one.
func (m *move) double(p agentapi.Pod) (cause, rule string) {
	var places, meshes []string // each where rules of one program are
	note := func(list *[]string, s string) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	ours := slices.ContainsFunc(p.Records, func(r attachment.Record) bool { return r.Selected })
	foreign := ""
	for i := range p.Live {
		r := &p.Live[i]
		if r.Captures() && !r.Ours && foreign == "" {
			foreign = fmt.Sprintf("%s, table %s, chain %s: %s", r.Backend, r.Table, r.Chain, r.Text)
		}
		if r.Backend != ruleset.BackendNftables {
			note(&places, string(r.Backend))
		} else if r.Captures() {
			note(&places, "nftables, "+program(r.Table))
		}
		for _, d := range m.Dialects {
			if o := d.Names.Owner(); r.Backend != ruleset.BackendNftables && o.Prefix != "" && o.OwnsChain(r.Chain) {
				note(&meshes, "chains "+o.Prefix+"*")
			}
		}
	}
	added := slices.IndexFunc(p.Differences, func(d ruleset.Difference) bool { return d.Kind == ruleset.KindUnexpected })
	switch {
	case len(places) > 1:
		return "it has rules of two programs: in " + strings.Join(places, " and in "), ""
	case len(meshes) > 1:
		return "it has rules of two meshes: " + strings.Join(meshes, " and "), ""
	case ours && foreign != "":
		return "our plugin has captured it, and another program redirects too", foreign
	case ours && added >= 0:
		return "our plugin has captured it, and another program has written into the same chains", p.Differences[added].String()
	}
	return "", ""
}

// program names the program that has written to a table of nftables: of one for each family or each of iptables' tables it is what
// their names have in common.
func program(table string) string {
	_, name, _ := strings.Cut(table, " ")
	for _, t := range ruleset.Tables {
		if pod, ok := strings.CutSuffix(name, "-"+t.String()); ok {
			return "tables " + pod + "-*"
		}
	}
	return "table " + name
}
