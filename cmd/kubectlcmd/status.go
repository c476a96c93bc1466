package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/node/daemonset"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/readytaint"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// askAtOnce bounds how many agents are asked at a time: each costs the API server a connection to a kubelet.
const askAtOnce = 50

// counts are the numbers of pods by state. Outside are those with a network of their own that are in no mesh, waiting also those that have no
// network yet, and starting these alone. What the agent cannot tell is unknown, as is the state of a newer agent.
type counts map[string]int

const starting = "starting"

// countStates are all, in the order of the table.
var countStates = []status.State{status.StateCaptured, status.StateOutside, status.StateWaiting, status.StateDrifted, status.StateFailed, status.StateUnknown}

func newCounts() counts {
	c := counts{starting: 0}
	for _, state := range countStates {
		c[string(state)] = 0
	}
	return c
}

func count(n agentapi.Node) counts {
	c := newCounts()
	for _, p := range n.Pods {
		state := p.State
		if !slices.Contains(countStates, state) {
			state = status.StateUnknown
		}
		c[string(state)]++
	}
	if n.PodsTotal != nil {
		c[string(status.StateOutside)] = max(0, *n.PodsTotal-(len(n.Pods)-c[string(status.StateOutside)]))
	}
	c[starting] = n.PodsStarting
	c[string(status.StateWaiting)] += n.PodsStarting
	return c
}

// nodeStatus is a node's row.
type nodeStatus struct {
	Node string `json:"node"`
	// State is ready, not-ready, unknown (its agent does not answer) or no-agent.
	State string `json:"state"`
	// Why lists the reasons that keep it from being ready, each beginning with its code, or the one by which it is unknown.
	Why      []string `json:"why,omitempty"`
	Version  string   `json:"version,omitempty"`
	Dialects []string `json:"dialects,omitempty"`
	Backend  string   `json:"backend,omitempty"`
	// BackendUsed is the back end that Backend stands for there.
	BackendUsed string `json:"backendUsed,omitempty"`
	// Alone: nothing is in the node's network, and the agent captures pods at the container runtime's hook.
	Alone bool `json:"alone,omitempty"`
	// Installation is the agent's DaemonSet, as NAMESPACE/NAME, where there is more than one.
	Installation string `json:"installation,omitempty"`
	// Pods is nil unless the agent has answered.
	Pods     counts   `json:"pods,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// The states of a node.
const (
	stateReady    = "ready"
	stateNotReady = "not-ready"
	stateUnknown  = "unknown"
	stateNoAgent  = "no-agent"
)

// clusterStatus is the state of a cluster, as status prints it.
type clusterStatus struct {
	Nodes []nodeStatus `json:"nodes"`
	// Total has the pods of the nodes whose agents have answered, and Ready how many nodes are.
	Total counts `json:"total"`
	Ready int    `json:"ready"`
	// Wrong are pods that need attention, maxWrong at most; WrongPods is how many there are.
	Wrong     []status.Pod `json:"wrong"`
	WrongPods int          `json:"wrongPods"`
	// Next lists the steps to take.
	Next []string `json:"next"`

	selector string // of the agents' pods
	product  meshcni.Identity
}

// maxWrong bounds the pods that are named, so that neither the answer nor the memory for it grows with what is wrong.
const maxWrong = 50

// exit is the code for scripts.
func (s clusterStatus) exit() error {
	unknown := len(s.Nodes) == 0
	for _, n := range s.Nodes {
		switch n.State {
		case stateNotReady, stateNoAgent:
			return cli.Exit(exitWrong)
		case stateUnknown:
			unknown = true
		}
	}
	switch {
	case s.WrongPods > 0:
		return cli.Exit(exitWrong)
	case unknown:
		return cli.Exit(exitUnknown)
	}
	return nil
}

func (c *cluster) statusCommand() *cobra.Command {
	var output string
	var watch bool
	interval := 5 * time.Second
	cmd := &cobra.Command{
		Use: "status", Short: "say of each node whether its new pods are captured, and how many pods are in which state",
		Long: "Exits 1 unless every node has a ready agent and no pod needs attention; 3 if all\nthat is known is well, and some agent does not answer.",
		PreRunE: func(*cobra.Command, []string) error {
			if interval <= 0 {
				return cli.Usagef("--interval %s: not above 0", interval)
			}
			return nil
		},
		RunE: c.query(func(ctx context.Context, _ []string) error {
			for {
				c.finder.Forget() // it may have been installed anew
				s, err := c.status(ctx)
				if err == nil {
					err = s.print(c, output)
				}
				switch {
				case ctx.Err() != nil && watch:
					return nil //nolint:nilerr // the caller ended it
				case !watch:
					return cmp.Or(err, s.exit())
				case err != nil:
					visible.To(c.Stderr).Printf("%s: %v\n", c.Identity.KubectlProgram(), err)
				}
				if kubectl.Wait(ctx, interval) != nil {
					return nil
				}
			}
		}),
	}
	cmd.Flags().VarP(cli.Choice(&output, "table", "json", "yaml"), "output", "o", "table, json or yaml")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "again and again, until it is interrupted")
	cmd.Flags().DurationVar(&interval, "interval", interval, "with --watch: how often")
	return cmd
}

// listNodes returns the names of all nodes that pods of the chart's DaemonSet could be on, and calls each of seen with each node.
func (c *cluster) listNodes(ctx context.Context, seen ...func(*corev1.Node)) (names []string, err error) {
	o := metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "!=windows"} // there is no plugin for it
	err = apilist.Each(ctx, c.client.CoreV1().Nodes().List, o, func(n *corev1.Node) {
		names = append(names, n.Name)
		for _, see := range seen {
			see(n)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// errUnwanted: no DaemonSet of the agents wants the node. It is an ErrNoAgent.
var errUnwanted = fmt.Errorf("%w: it is left out, and an entry of the plugin may be left there", agents.ErrNoAgent)

// unwanted is an errUnwanted with the reasons, or nil if a DaemonSet wants the node, or that cannot be told.
func unwanted(node *corev1.Node, sets []*appsv1.DaemonSet) error {
	var why []string
	for _, set := range sets {
		place, reason, err := daemonset.Place(node, &set.Spec.Template.Spec, "")
		if err != nil || place == readytaint.ForAgents {
			return nil //nolint:nilerr // then no agent is there for another reason
		}
		why = append(why, "DaemonSet "+set.Namespace+"/"+set.Name+" does not want the node: "+reason)
	}
	if why == nil {
		return nil
	}
	return fmt.Errorf("%w (%s)", errUnwanted, strings.Join(why, "; "))
}

// eachNode asks the agents of all nodes, and calls each with what they say, one after the other: err says why one has not answered, and is an
// errUnwanted where none is to be. The agent of a node without one has no more than the node's name. It keeps nothing of the answers.
func (c *cluster) eachNode(ctx context.Context, each func(a agents.Agent, n agentapi.Node, err error)) error {
	var places []*corev1.Node // no more of each than is looked at
	nodes, err := c.listNodes(ctx, func(n *corev1.Node) {
		place := &corev1.Node{Spec: corev1.NodeSpec{Taints: n.Spec.Taints}}
		place.Name, place.Labels, place.Status.NodeInfo.OperatingSystem = n.Name, n.Labels, n.Status.NodeInfo.OperatingSystem
		places = append(places, place)
	})
	if err != nil {
		return err
	}
	found, err := c.agentsByNode(ctx, "")
	if err != nil {
		return err
	}
	sets, err := c.daemonSets(ctx)
	if err != nil {
		return err
	}
	without := map[string]error{}
	for _, n := range places {
		if found[n.Name].Name == "" {
			without[n.Name] = cmp.Or(unwanted(n, sets), agents.ErrNoAgent)
		}
	}
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	var one sync.Mutex
	for _, node := range nodes {
		asking.Go(func() error {
			var n agentapi.Node
			a, err := found[node], without[node]
			if a.Node = node; a.Name != "" {
				n, err = c.node(ctx, a)
			}
			one.Lock()
			defer one.Unlock()
			each(a, n, err)
			return nil
		})
	}
	_ = asking.Wait() // none returns an error
	return ctx.Err()
}

func (c *cluster) status(ctx context.Context) (clusterStatus, error) {
	s := clusterStatus{selector: c.finder.Selector, product: c.Identity, Nodes: []nodeStatus{}, Total: newCounts(), Wrong: []status.Pod{}, Next: []string{}}
	if err := c.eachNode(ctx, s.add); err != nil {
		return s, err
	}
	slices.SortFunc(s.Nodes, func(a, b nodeStatus) int { return cmp.Compare(a.Node, b.Node) })
	if sets, err := c.daemonSets(ctx); err != nil || len(sets) < 2 {
		for i := range s.Nodes {
			s.Nodes[i].Installation = ""
		}
	}
	slices.SortFunc(s.Wrong, func(a, b status.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	s.Next = append(s.Next, s.next()...)
	return s, nil
}

func (s *clusterStatus) add(a agents.Agent, n agentapi.Node, err error) {
	row := nodeStatus{Node: a.Node}
	if a.DaemonSet != nil {
		row.Installation = a.DaemonSet.Namespace + "/" + a.DaemonSet.Name
	}
	switch {
	case errors.Is(err, agents.ErrNoAgent):
		row.State, row.Why = stateNoAgent, []string{err.Error()}
	case err != nil:
		row.State, row.Why = stateUnknown, visible.Lines(err)
	default:
		row.State = stateReady
		if !n.Ready {
			row.State = stateNotReady
		} else {
			s.Ready++
		}
		row.Why, row.Version, row.Dialects, row.Pods, row.Warnings = news.Reasons(n.News), n.Version, n.Dialects, count(n), news.Warnings(n.News)
		row.Backend, row.BackendUsed, row.Alone = n.Backend, n.BackendUsed, n.Installed.Alone
		for state, number := range row.Pods {
			s.Total[state] += number
		}
		for _, p := range n.Pods {
			if !p.NeedsAttention() {
				continue
			}
			if s.WrongPods++; len(s.Wrong) < maxWrong {
				s.Wrong = append(s.Wrong, p)
			}
		}
	}
	s.Nodes = append(s.Nodes, row)
}

// next returns the steps to take.
func (s *clusterStatus) next() (all []string) {
	states := map[string]int{}
	for _, n := range s.Nodes {
		states[n.State]++
	}
	if len(s.Nodes) == states[stateNoAgent] {
		return []string{"no node has an agent: install the chart as README.md says. If it is installed, see why its DaemonSet has no pods (" + daemonSets(s.selector) + "), or name its pods' labels by --agent-selector"}
	}
	if n := states[stateNoAgent]; n > 0 {
		all = append(all, kubectl.Many(n, "node has", "nodes have")+" no agent, and new pods of the mesh there bypass it: look at the DaemonSet's tolerations and nodeSelector ("+daemonSets(s.selector)+")")
	}
	if states[stateNotReady] > 0 {
		all = append(all, s.product.Text("a node is not ready: kubectl meshcni check says more, and docs/troubleshooting.md#the-node-is-not-ready has the code before the reason"))
	}
	if states[stateUnknown] > 0 {
		all = append(all, "an agent does not answer: look at its pod (kubectl get pods --all-namespaces --output wide --selector "+s.selector+"); asking it takes the right to create pods/portforward in its namespace")
	}
	if s.WrongPods > 0 {
		p := s.Wrong[0]
		all = append(all, fmt.Sprintf(s.product.Text("kubectl meshcni explain -n %s %s says what is wrong with that pod, and what to do"), p.Namespace, p.Name))
	}
	if n := s.Total[starting]; n > 0 {
		all = append(all, kubectl.Many(n, "pod has", "pods have")+s.product.Text(" no network yet: if that is still so in a minute, kubectl get pods --all-namespaces --field-selector status.phase=Pending names those that do not start, and kubectl meshcni explain says why"))
	}
	return all
}

func (s clusterStatus) print(c *cluster, output string) error {
	if output == "yaml" {
		text, err := yaml.Marshal(s)
		if err == nil {
			_, err = c.Stdout.Write(text)
		}
		return err
	}
	return c.print(output, s, s.table)
}

func (s clusterStatus) table(w *visible.Printer) error {
	table := w.Table()
	several := slices.ContainsFunc(s.Nodes, func(n nodeStatus) bool { return n.Installation != "" })
	end := func(installation string) {
		if several {
			table.Printf("\t%s", cmp.Or(installation, "-"))
		}
		table.Printf("\n")
	}
	table.Printf("NODE\tSTATE\tVERSION\tDIALECTS\tBACKEND\tCAPTURED\tOUTSIDE\tWAITING\tDRIFTED\tFAILED\tUNKNOWN")
	end("INSTALLATION")
	for _, n := range s.Nodes {
		table.Printf("%s\t%s\t%s\t%s\t%s", n.Node, n.State, cmp.Or(n.Version, "-"), cmp.Or(strings.Join(n.Dialects, ","), "-"), cmp.Or(strings.TrimSuffix(n.Backend+": "+n.BackendUsed, ": "), "-"))
		n.Pods.columns(table)
		end(n.Installation)
	}
	if len(s.Nodes) != 1 {
		table.Printf("%s\t%d ready\t\t\t", kubectl.Many(len(s.Nodes), "node", "nodes"), s.Ready)
		s.Total.columns(table)
		end("")
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if alone := len(slices.DeleteFunc(slices.Clone(s.Nodes), func(n nodeStatus) bool { return !n.Alone })); alone > 0 {
		w.Printf("%s captured at the container runtime's hook alone: nothing is in the network there\n", kubectl.Many(alone, "node has its pods", "nodes have their pods"))
	}
	for _, n := range s.Nodes {
		for _, why := range n.Why {
			if why != agents.ErrNoAgent.Error() { // the state says it
				w.Printf("%s is %s: %s\n", n.Node, n.State, why)
			}
		}
		for _, text := range n.Warnings {
			w.Printf("%s: warning: %s\n", n.Node, text)
		}
	}
	for _, p := range s.Wrong {
		w.Printf("pod %s/%s is %s: %s: %s\n", p.Namespace, p.Name, p.State, p.Reason, cmp.Or(p.Detail, "no detail"))
	}
	if n := s.WrongPods - len(s.Wrong); n > 0 {
		w.Printf("and %s\n", kubectl.Many(n, "more pod", "more pods"))
	}
	for _, text := range s.Next {
		w.Printf("next: %s\n", text)
	}
	return w.Err()
}

func (n counts) columns(table *visible.Table) {
	for _, state := range countStates {
		if n == nil {
			table.Printf("\t-")
		} else {
			table.Printf("\t%d", n[string(state)])
		}
	}
}

// daemonSets finds the agents' DaemonSet.
func daemonSets(selector string) string {
	return "kubectl get daemonset --all-namespaces --selector " + selector
}
