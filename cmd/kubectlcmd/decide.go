package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/diagnosis/live"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

// subject is a pod, what decides on it, and what its node's agent says.
type subject struct {
	nodeView
	pod *corev1.Pod
	// fromFile: the pod need not be in the cluster, and nothing on a node is about it. template: it is that of a workload.
	fromFile, template bool
	// selector is that of the agents' pods, and product whose they are.
	selector string
	product  meshcni.Identity
	// namespace is the pod's; nil: not known.
	namespace *corev1.Namespace
	// explained tells the pod's fate, unless that is undecided.
	explained explain.Explanation
	// flags say what to do about rules that the agent cannot read. entered: they were read otherwise, or tried to.
	flags   enterFlags
	entered bool
}

// refused reports whether the pod's settings are refused, by what decides now.
func (s *subject) refused() bool {
	v := s.explained.Verdict
	return v.State == status.StateRefused && v.Code != status.CodeNamespaceUnknown
}

// nodeView is a node, as its agent tells of it.
type nodeView struct {
	agent agents.Agent
	// asking is the reason that the agent has not answered; then node is empty.
	asking error
	node   agentapi.Node
	// deciding decides on the node's pods; nil: the configuration is not known, and undecided says why.
	deciding  *deciding
	undecided error
}

// explainer explains pods. It asks each node's agent once, and reads each configuration and Namespace once.
type explainer struct {
	c          *cluster
	typed      *deciding // by --config, for all nodes; nil: each node's own
	known      map[string]*nodeView
	namespaces map[string]*corev1.Namespace
}

// explainer goes by the configuration as it is typed; empty: by each node's own.
func (c *cluster) explainer(config string) (*explainer, error) {
	x := &explainer{c: c, known: map[string]*nodeView{}, namespaces: map[string]*corev1.Namespace{}}
	if config == "" {
		return x, nil
	}
	x.typed = &deciding{from: explain.NoConfiguration}
	var entry netconf.Entry
	if config != "none" {
		text, err := c.streams().Read(config)
		if err == nil {
			entry, err = netconf.FindIn(config, text, c.Identity, []string{c.Identity.Plugin})
		}
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		x.typed.from = explain.Configuration{File: config, Expected: true}
	}
	if err := x.typed.configure(c.Dialects, entry.Config); err != nil {
		return nil, fmt.Errorf("--config %s: %w", config, err)
	}
	return x, nil
}

// sources are files that replace the cluster as the source of the pod and of the settings.
type sources struct {
	file, config string
	// trouble takes the pod of a workload that has some.
	trouble bool
}

func (o *sources) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "a file with a pod, or with a workload such as a Deployment, that need not be in the cluster; - is standard input. A node with an agent says what decides")
	cmd.Flags().StringVar(&o.config, "config", "", "a network configuration with the plugin's entry, instead of the one in force on the pod's node; none: the defaults")
}

// subjectOf returns the pod that the arguments or the flags name, with what becomes of it. It is never nil.
func (c *cluster) subjectOf(ctx context.Context, args []string, from sources) (*subject, error) {
	none := &subject{}
	x, err := c.explainer(from.config)
	switch {
	case err != nil:
		return none, err
	case from.file != "" && len(args) > 0:
		return none, cli.Usagef("%s: with --filename the file says which pod", args[0])
	case from.file != "":
		m, err := c.manifest(from.file)
		if err != nil {
			return none, err
		}
		s := &subject{nodeView: x.any(ctx), pod: m.Pod, fromFile: true, template: m.Template}
		x.explain(ctx, s)
		return s, nil
	}
	var choose func([]corev1.Pod) (*corev1.Pod, string)
	if from.trouble {
		choose = func(pods []corev1.Pod) (*corev1.Pod, string) { return x.troubled(ctx, pods) }
	}
	pod, err := c.find(ctx, args, choose)
	if err != nil {
		return none, err
	}
	return x.subject(ctx, pod), nil
}

// manifest reads a pod from a file. One without a namespace is in the one that kubectl's flags say.
func (c *cluster) manifest(name string) (m *explain.Manifest, err error) {
	text, err := c.streams().Read(name)
	if err == nil {
		m, err = explain.ParseManifest(text)
	}
	if err == nil && !m.Namespaced {
		m.Pod.Namespace, err = c.namespace()
	}
	if err != nil {
		return nil, fmt.Errorf("--filename %s: %w", name, err)
	}
	return m, nil
}

// subject is a pod with what its node's agent says of the node, and what becomes of it.
func (e *explainer) subject(ctx context.Context, pod *corev1.Pod) *subject {
	name := pod.Spec.NodeName
	if e.known[name] == nil {
		e.known[name] = e.view(ctx, name)
	}
	s := &subject{nodeView: *e.known[name], pod: pod}
	e.explain(ctx, s)
	return s
}

// view is a node with what decides on its pods.
func (e *explainer) view(ctx context.Context, name string) *nodeView {
	p := e.c.view(ctx, name)
	e.decide(p)
	return p
}

// explain fills in what becomes of the pod, if the configuration is known.
func (e *explainer) explain(ctx context.Context, s *subject) {
	name := s.pod.Namespace
	if _, asked := e.namespaces[name]; !asked {
		ns, err := e.c.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			ns = nil
		}
		if err != nil && ctx.Err() == nil {
			visible.To(e.c.Stderr).Printf("warning: the pod's Namespace is not known: %v\n", err)
		}
		e.namespaces[name] = ns
	}
	s.selector, s.product, s.namespace = e.c.finder.Selector, e.c.Identity, e.namespaces[name]
	if d := s.deciding; d != nil {
		s.explained, s.undecided = explain.Pod(d.meshes, explain.Input{
			Subject: dialect.Subject{Pod: s.pod, Namespace: s.namespace, Addrs: explain.Addrs(s.pod)}, Identity: s.product, Facts: e.c.Facts, Template: s.template, Online: true, Configuration: d.from,
		})
	}
}

var errNameConfig = errors.New("--config FILE gives one, --config none goes by the defaults")

// decide reads the configuration that counts on a node.
func (e *explainer) decide(p *nodeView) {
	i := p.node.Installed
	switch {
	case e.typed != nil:
		p.deciding = e.typed
	case p.asking != nil:
		p.undecided = fmt.Errorf("the configuration that decides on the pod is not known: %w\n%w", p.asking, errNameConfig)
	case len(i.Config) == 0 && i.File != "":
		p.undecided = errors.Join(fmt.Errorf("the plugin's entry on node %s is wrong: %s", p.agent.Node, i.Error), errNameConfig)
	case len(i.Config) == 0 && i.Unread:
		p.undecided = errors.Join(fmt.Errorf("it is not known whether node %s has a configuration of the plugin: %s", p.agent.Node, i.Error), errNameConfig)
	case len(i.Config) == 0:
		p.undecided = errors.Join(fmt.Errorf("node %s has no configuration of the plugin: %s", p.agent.Node, i.Error), errNameConfig)
	default:
		d := &deciding{text: i.Config, from: explain.Configuration{File: fmt.Sprintf("node %s: %s", p.agent.Node, cmp.Or(i.File, "the agent's settings")), Expected: true}}
		if err := d.parse(e.c.Identity, e.c.Dialects); err != nil {
			p.undecided = errors.Join(fmt.Errorf("the plugin's entry on node %s cannot be read by this version of %s: %w", p.agent.Node, e.c.Identity.Kubectl, err), errNameConfig)
			return
		}
		p.deciding = d
	}
}

// troubled returns the pod with the most trouble, by what each node's agent says of all its pods and what the settings mean, and says
// how many others have some. The pods are in the order in which they are else preferred.
func (e *explainer) troubled(ctx context.Context, pods []corev1.Pod) (worst *corev1.Pod, why string) {
	nodes := map[string]bool{}
	for i := range pods {
		nodes[pods[i].Spec.NodeName] = true
	}
	names := slices.Collect(maps.Keys(nodes))
	for i, p := range each(askAtOnce, names, func(_ int, name string) *nodeView { return e.view(ctx, name) }) {
		e.known[names[i]] = p
	}
	const wrong, unsure, well, deleted = 0, 1, 2, 3
	least, some := deleted+1, 0
	for i := range pods {
		pod := &pods[i]
		s := e.subject(ctx, pod)
		// That nobody has looked into it is no trouble.
		is := live.OnNode{Pod: agentapi.Pod{Records: []attachment.Record{{Selected: true}}, LiveError: "not looked at"}}
		for _, state := range s.node.Pods {
			if podid.Is(pod, state.Namespace, state.Name, state.UID) {
				is.State = &state
			}
		}
		rank := well
		switch now := s.live(is).Now(); {
		case now.Health == live.Wrong:
			rank = wrong
		case now.Code == statuscode.Ending:
			rank = deleted
		case now.Trouble():
			rank = unsure
		}
		if rank < well {
			some++
		}
		if rank < least {
			least, worst = rank, pod
		}
	}
	switch {
	case some == 1:
		why = ", which has trouble"
	case some > 1:
		why = ", which has trouble; " + kubectl.Many(some-1, "other has", "others have") + " too: " + e.c.Identity.Kubectl + " explain --all-pods says how each is"
	}
	return worst, why
}

// maxAsked bounds the agents that are asked for a pod that is on no node.
const maxAsked = 5

// any is the first node whose agent has a configuration, in the order of the nodes.
func (e *explainer) any(ctx context.Context) (p nodeView) {
	if e.typed != nil {
		return nodeView{deciding: e.typed}
	}
	found, err := e.c.agentsByNode(ctx, "")
	p.asking = err
	if err == nil {
		p.asking = agents.ErrNoAgent
	}
	nodes := slices.SortedFunc(maps.Keys(found), func(a, b string) int {
		return cmp.Or(cmp.Compare(found[a].Trouble, found[b].Trouble), cmp.Compare(a, b))
	})
	for _, node := range nodes[:min(len(nodes), maxAsked)] {
		p.agent = found[node]
		if p.node, p.asking = e.c.node(ctx, p.agent); p.asking == nil && len(p.node.Installed.Config) > 0 {
			break
		}
	}
	e.decide(&p)
	return p
}

var errNotScheduled = errors.New("the pod is on no node yet")

// view asks the agent of a node. An empty name is none.
func (c *cluster) view(ctx context.Context, name string) *nodeView {
	p := &nodeView{}
	if name == "" {
		p.asking = errNotScheduled
		return p
	}
	if p.agent, p.asking = c.agentOn(ctx, name); p.asking == nil {
		p.node, p.asking = c.node(ctx, p.agent)
	}
	if errors.Is(p.asking, agents.ErrNoAgent) {
		if all, err := c.agentsByNode(ctx, ""); err == nil && len(all) == 0 { // else it is that node's trouble alone, as far as is known
			p.asking = fmt.Errorf("%w (looked for a DaemonSet of pods with the labels %s)", agents.ErrNoAgents, c.finder.Selector)
		}
	}
	return p
}

// look asks the agent for what is on the node of the pod, and enters the pod if that is wanted. The error says why the agent has told
// nothing.
func (s *subject) look(ctx context.Context, c *cluster) (p agentapi.Pod, err error) {
	switch {
	case s.asking != nil:
		err = s.asking
	case s.pod.Spec.HostNetwork:
		return agentapi.Pod{LiveError: onHostNetwork}, nil
	default:
		p, err = c.tells(ctx, s.agent, s.pod)
	}
	if s.enters(p, err) {
		switch failed := s.enter(ctx, c, &p); {
		case failed != nil && err != nil:
			err = fmt.Errorf("%w; %w", err, failed)
		case failed != nil:
			p.LiveError += "; " + failed.Error()
		}
	}
	return p, err
}

const onHostNetwork = "the pod is on the host's network, which is never redirected"
