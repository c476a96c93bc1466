package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// askAtOnce bounds how many agents are asked at a time: each costs the API server a connection to a kubelet.
const askAtOnce = 50

// counts are the numbers of pods by state.
type counts struct {
	Captured int `json:"captured"`
	// Outside are the pods with a network of their own that are in no mesh.
	Outside int `json:"outside"`
	// Waiting are pods whose proxy does not listen yet, or that have no network yet.
	Waiting int `json:"waiting"`
	// Starting are those of the waiting that have no network yet.
	Starting int `json:"starting"`
	// Drifted are pods without some of the rules that they should have, and Failed those in the mesh without any.
	Drifted int `json:"drifted"`
	Failed  int `json:"failed"`
	// Unknown are pods of which the agent cannot tell.
	Unknown int `json:"unknown"`
}

func (n *counts) add(m counts) {
	n.Captured += m.Captured
	n.Outside += m.Outside
	n.Waiting += m.Waiting
	n.Starting += m.Starting
	n.Drifted += m.Drifted
	n.Failed += m.Failed
	n.Unknown += m.Unknown
}

func count(n agentapi.Node) (c counts) {
	listed := 0
	c.Waiting, c.Starting = n.PodsStarting, n.PodsStarting
	for _, p := range n.Pods {
		listed++
		switch p.State {
		case status.StateCaptured:
			c.Captured++
		case status.StateOutside:
			listed--
			c.Outside++
		case status.StateDrifted:
			c.Drifted++
		case status.StateFailed:
			c.Failed++
		case status.StateWaiting:
			c.Waiting++
		default: // also a word of a newer agent
			c.Unknown++
		}
	}
	if n.PodsTotal != nil {
		c.Outside = max(0, *n.PodsTotal-listed)
	}
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
	// Pods is nil unless the agent has answered.
	Pods     *counts  `json:"pods,omitempty"`
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
}

// maxWrong bounds the pods that are named, so that neither the answer nor the memory for it grows with what is wrong.
const maxWrong = 50

// exit is the code for scripts.
func (s clusterStatus) exit() error {
	unknown := len(s.Nodes) == 0
	for _, n := range s.Nodes {
		switch n.State {
		case stateNotReady, stateNoAgent:
			return cli.Exit(ExitWrong)
		case stateUnknown:
			unknown = true
		}
	}
	switch {
	case s.WrongPods > 0:
		return cli.Exit(ExitWrong)
	case unknown:
		return cli.Exit(ExitUnknown)
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval <= 0 {
				return cli.Usagef("--interval %s: not above 0", interval)
			}
			if err := c.open(); err != nil {
				return err
			}
			for {
				c.forget() // it may have been installed anew
				s, err := c.status(cmd.Context())
				if err == nil {
					err = s.print(c.Stdout, output)
				}
				switch {
				case cmd.Context().Err() != nil && watch:
					return nil //nolint:nilerr // the caller ended it
				case cmd.Context().Err() != nil && err != nil:
					return context.Cause(cmd.Context())
				case err != nil && !watch:
					return err
				case !watch:
					return s.exit()
				case err != nil:
					visible.To(c.Stderr).Printf("%s: %v\n", c.Name, err)
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(interval):
				}
			}
		},
	}
	cmd.Flags().VarP(cli.Choice(&output, "table", "json", "yaml"), "output", "o", "table, json or yaml")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "again and again, until it is interrupted")
	cmd.Flags().DurationVar(&interval, "interval", interval, "with --watch: how often")
	return cmd
}

// listNodes returns the names of all nodes that pods of the chart's DaemonSet could be on.
func (c *cluster) listNodes(ctx context.Context) (names []string, err error) {
	o := metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "!=windows"} // there is no plugin for it
	if err := list(ctx, c.client.CoreV1().Nodes().List, o, func(n *corev1.Node) { names = append(names, n.Name) }); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// eachNode asks the agents of all nodes, and calls each with what they say, one after the other: err says why one has not answered.
// It keeps nothing of the answers.
func (c *cluster) eachNode(ctx context.Context, each func(node string, n agentapi.Node, err error)) error {
	nodes, err := c.listNodes(ctx)
	if err != nil {
		return err
	}
	agents, err := c.agentsByNode(ctx)
	if err != nil {
		return err
	}
	type answer struct {
		node string
		n    agentapi.Node
		err  error
	}
	answers := make(chan answer)
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	go func() {
		defer close(answers)
		for _, node := range nodes {
			asking.Go(func() error {
				got := answer{node: node}
				if a, ok := agents[node]; ok {
					got.n, got.err = c.node(ctx, a)
				} else {
					got.err = errNoAgent
				}
				answers <- got
				return nil
			})
		}
		_ = asking.Wait() // none returns an error
	}()
	for got := range answers {
		each(got.node, got.n, got.err)
	}
	return ctx.Err()
}

func (c *cluster) status(ctx context.Context) (clusterStatus, error) {
	s := clusterStatus{selector: c.agentSelector, Nodes: []nodeStatus{}, Wrong: []status.Pod{}, Next: []string{}}
	if err := c.eachNode(ctx, s.add); err != nil {
		return s, err
	}
	slices.SortFunc(s.Nodes, func(a, b nodeStatus) int { return cmp.Compare(a.Node, b.Node) })
	slices.SortFunc(s.Wrong, func(a, b status.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	s.Next = append(s.Next, s.next()...)
	return s, nil
}

func (s *clusterStatus) add(node string, n agentapi.Node, err error) {
	row := nodeStatus{Node: node}
	switch {
	case errors.Is(err, errNoAgent):
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
		pods := count(n)
		row.Why, row.Version, row.Dialects, row.Backend, row.Pods, row.Warnings = n.NotReady, n.Version, n.Dialects, n.Backend, &pods, n.Warnings
		s.Total.add(pods)
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
		all = append(all, many(n, "node has", "nodes have")+" no agent, and new pods of the mesh there bypass it: look at the DaemonSet's tolerations and nodeSelector ("+daemonSets(s.selector)+")")
	}
	if states[stateNotReady] > 0 {
		all = append(all, "a node is not ready: kubectl meshcni check says more, and docs/troubleshooting.md#the-node-is-not-ready has the code before the reason")
	}
	if states[stateUnknown] > 0 {
		all = append(all, "an agent does not answer: look at its pod (kubectl get pods --all-namespaces --output wide --selector "+s.selector+"); asking it takes the right to create pods/portforward in its namespace")
	}
	if s.WrongPods > 0 {
		p := s.Wrong[0]
		all = append(all, fmt.Sprintf("kubectl meshcni explain -n %s %s says what is wrong with that pod, and what to do", p.Namespace, p.Name))
	}
	if s.Total.Starting > 0 {
		all = append(all, many(s.Total.Starting, "pod has", "pods have")+" no network yet: if that is still so in a minute, kubectl get pods --all-namespaces --field-selector status.phase=Pending names those that do not start, and kubectl meshcni explain says why")
	}
	return all
}
