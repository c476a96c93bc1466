package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/text/visible"
)

// The results of a connection.
const (
	resultOK      = "ok"
	resultFailed  = "failed"
	resultUnknown = "unknown" // it could not be tried, for no fault of the installation that is known
)

// trialRow is the result of one connection, or of a step before it.
type trialRow struct {
	Node string `json:"node"`
	// Dialect is the mesh whose pod was tried; empty: none was.
	Dialect string `json:"dialect,omitempty"`
	// Family is IPv4 or IPv6; empty: no connection was tried.
	Family string `json:"family,omitempty"`
	// What is the connection, such as outbound, or what has to come before it, such as "pods start".
	What   string `json:"what"`
	Result string `json:"result"`
	// Detail is the reason that the result is not ok.
	Detail string `json:"detail,omitempty"`
}

// trialReport is the output of test.
type trialReport struct {
	Rows []trialRow `json:"rows"`
	// Nodes counts those that were tried, of Of.
	Nodes int `json:"nodes"`
	Of    int `json:"of"`
	// Namespace had the pods. Left names what is still there and was not to be.
	Namespace string   `json:"namespace"`
	Left      []string `json:"left,omitempty"`
}

func (r trialReport) exit() error {
	count := map[string]int{}
	for _, row := range r.Rows {
		count[row.Result]++
	}
	switch {
	case count[resultFailed] > 0 || len(r.Left) > 0:
		return cli.Exit(exitWrong)
	case count[resultUnknown] > 0 || count[resultOK] == 0:
		return cli.Exit(exitUnknown)
	}
	return nil
}

// trialOptions are the flags of test.
type trialOptions struct {
	image   string
	keep    bool
	timeout time.Duration
	nodes   int
	names   []string
	// namespace is one that is there; empty: the test makes its own.
	namespace string
}

func (c *cluster) testCommand() *cobra.Command {
	o := trialOptions{timeout: 2 * time.Minute, nodes: 10}
	var output string
	cmd := &cobra.Command{
		Use: "test", Short: "run a throw-away pod of each mesh on each node, and say which connections went past the proxy",
		Long: `On each node it runs a pod of each mesh that the plugin knows, which makes
connections as an application and as the proxy, and takes one from the node. It
deletes the pods again, also when it is interrupted. Exits 1 if a connection went
where it should not, or something could not be deleted; 3 if something could not be
tried. Without --namespace it makes a namespace of its own.`,
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.timeout <= 0:
				return cli.Usagef("--timeout %s: not above 0", o.timeout)
			case o.nodes < 0:
				return cli.Usagef("--nodes %d: below 0", o.nodes)
			case cmd.Flags().Changed("namespace"):
				o.namespace = *c.kube.Namespace
			}
			return nil
		},
		RunE: c.query(func(ctx context.Context, _ []string) error {
			r, err := c.trial(ctx, o)
			for _, left := range r.Left {
				visible.To(c.Stderr).Printf("%s: left behind: %s\n", c.Identity.KubectlProgram(), left)
			}
			if err = cmp.Or(err, ctx.Err()); err != nil {
				return err
			}
			return cmp.Or(c.print(output, r, r.print), r.exit())
		}),
	}
	cmd.Flags().StringVar(&o.image, "image", "", "image of the pods, which has the agent as its entry point (default: that of the node's agent)")
	cmd.Flags().BoolVar(&o.keep, "keep", false, "leave the pods, which have ended, for a look at them")
	cmd.Flags().DurationVar(&o.timeout, "timeout", o.timeout, "how long all of it may take, except for the deletion")
	cmd.Flags().IntVar(&o.nodes, "nodes", o.nodes, "how many nodes to try at most, in the order of their names; 0: all")
	cmd.Flags().StringSliceVar(&o.names, "node", nil, "a node to try, and no others; again or with commas for more")
	cmd.Flags().VarP(cli.Choice(&output, "table", "json"), "output", "o", "table or json")
	return cmd
}

// trial makes the pods and the connections, and deletes the pods whatever happens. With an error, the report has what is left
// behind.
func (c *cluster) trial(ctx context.Context, o trialOptions) (r trialReport, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("not within %s", o.timeout))
	defer stop()
	nodes, total, err := c.trialNodes(ctx, o)
	if err != nil {
		return r, err
	}
	agents, err := c.agentsByNode(ctx, "")
	if err != nil {
		return r, err
	}
	t := newTrial(c, o)
	r.Nodes, r.Of, r.Namespace = len(nodes), total, t.run.namespace
	defer func() { r.Left = t.clean(ctx) }()
	if err := t.prepare(ctx); err != nil {
		return r, err
	}
	r.Rows = t.all(ctx, nodes, agents)
	return r, nil
}

// trialNodes returns the nodes to try, and how many there are.
func (c *cluster) trialNodes(ctx context.Context, o trialOptions) (nodes []string, total int, err error) {
	all, err := c.listNodes(ctx)
	if err != nil {
		return nil, 0, err
	}
	if len(o.names) == 0 {
		nodes = all
		if o.nodes > 0 && len(all) > o.nodes {
			nodes = all[:o.nodes]
			visible.To(c.Stderr).Printf("testing %d of %d nodes; --nodes 0 tries all\n", len(nodes), len(all))
		}
		return nodes, len(all), nil
	}
	var unknown []error
	for _, name := range o.names {
		switch {
		case !slices.Contains(all, name):
			unknown = append(unknown, fmt.Errorf("--node %s: there is no such node", name))
		case !slices.Contains(nodes, name):
			nodes = append(nodes, name)
		}
	}
	return nodes, len(all), errors.Join(unknown...)
}

func (r trialReport) print(w *visible.Printer) error {
	table := w.Table()
	table.Printf("NODE\tMESH\tFAMILY\tCONNECTION\tRESULT\n")
	count := map[string]int{}
	for _, row := range r.Rows {
		count[row.Result]++
		table.Printf("%s\t%s\t%s\t%s\t%s\n", row.Node, cmp.Or(row.Dialect, "-"), cmp.Or(row.Family, "-"), row.What, row.Result)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, row := range r.Rows {
		if row.Detail != "" {
			at := []string{row.Node, row.Dialect, row.Family, row.What}
			at = slices.DeleteFunc(at, func(s string) bool { return s == "" })
			w.Printf("%s: %s: %s\n", strings.Join(at, " "), row.Result, row.Detail)
		}
	}
	w.Printf("%d of %d nodes were tried: %d ok, %d failed, %d unknown\n", r.Nodes, r.Of, count[resultOK], count[resultFailed], count[resultUnknown])
	return w.Err()
}
