package migrate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/migrate/internal/migration"
)

// switchOptions are the flags of switch and back.
type switchOptions struct {
	from, daemonSet          string
	all, yes, dryRun, noTest bool
	image, confDir           string
	binDirs                  []string
	timeout, watch           time.Duration
}

func (o *switchOptions) check(c *cluster, args []string) error {
	switch {
	case o.all == (len(args) > 0):
		return c.usagef("name nodes, or give --all")
	case o.timeout <= 0:
		return c.usagef("--timeout %s: not above 0", o.timeout)
	case o.watch < 0:
		return c.usagef("--watch %s: below 0", o.watch)
	}
	return nil
}

// switcher takes nodes from another plugin to ours, or back.
type switcher struct {
	*cluster
	o switchOptions
	// from is the other plugin's name, which is its type. ds is its DaemonSet; nil if it has none any more.
	from   string
	ds     *appsv1.DaemonSet
	answer *bufio.Reader
}

// switchCommands are those that move nodes.
func (c *cluster) switchCommands() []*cobra.Command {
	command := func(use, short, long string, forward bool) *cobra.Command {
		o := switchOptions{timeout: 2 * time.Minute, watch: 10 * time.Second}
		cmd := &cobra.Command{
			Use: use, Short: short, Long: long, Args: cobra.ArbitraryArgs, ValidArgsFunction: cobra.NoFileCompletions,
			PreRunE: func(_ *cobra.Command, nodes []string) error { return o.check(c, nodes) },
			RunE: c.run(func(ctx context.Context, nodes []string) error {
				x := &switcher{cluster: c, o: o, answer: bufio.NewReader(c.Stdin)}
				return x.nodes(ctx, nodes, forward)
			}),
		}
		f := cmd.Flags()
		f.StringVar(&o.from, "from", "", "the other plugin: "+strings.Join(migration.Plugins(c.peers()), ", ")+" (default: the one that is found)")
		f.StringVar(&o.daemonSet, "daemonset", "", "the other plugin's DaemonSet, as NAMESPACE/NAME (default: it is looked for); needs --from")
		f.BoolVar(&o.all, "all", false, "all nodes, one after the other, until one fails")
		f.BoolVar(&o.yes, "yes", false, "do not ask")
		f.BoolVar(&o.dryRun, "dry-run", false, "show what would change, and change nothing")
		f.StringVar(&o.image, "image", "", "image of the pods that are made, which has the agent as its entry point (default: that of the node's agent)")
		f.StringVar(&o.confDir, "cni-conf-dir", "", "the node's directory of network configurations (default: the agent's, or "+defaultConfDir+")")
		f.StringSliceVar(&o.binDirs, "cni-bin-dir", nil, "the node's directories of plugins (default: the agent's, or /opt/cni/bin)")
		f.DurationVar(&o.timeout, "timeout", o.timeout, "how long each step on a node may take")
		f.DurationVar(&o.watch, "watch", o.watch, "how long to watch whether the change stays")
		if forward {
			f.BoolVar(&o.noTest, "no-test", false, "do not try connections between throw-away pods of the node afterwards")
		}
		return cmd
	}
	return []*cobra.Command{
		command("switch [NODE]...", "have only our plugin capture a node's new pods, with the other's still in the cluster", `On each node, with a check before each step: it keeps the other's agent off the
node, takes what is left of the other's entry out of the network configuration, and
tries connections between throw-away pods. It asks before it changes something. If a
step fails, it offers to go back; with --yes it goes back by itself. Run it again to
go on after an interrupt.`, true),
		command("back [NODE]...", "have the other plugin capture a node's new pods again, beside ours", `It lets the other's agent onto the node again, which puts its entry in. If the agent
does not, the entry goes back to where it was, byte for byte.`, false),
	}
}

// nodes takes the nodes forward or back, one after the other.
func (x *switcher) nodes(ctx context.Context, nodes []string, forward bool) error {
	all, err := x.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if !slices.Contains(all, node) {
			return fmt.Errorf("node %s: there is no such node that runs Linux", node)
		}
	}
	if x.o.all {
		nodes = all
	}
	if err := x.findOther(ctx, nodes); err != nil {
		return err
	}
	if err := x.may(ctx); err != nil {
		return err
	}
	each := x.backNode
	if forward {
		each = x.switchNode
		if err := x.chained(ctx); err != nil {
			return err
		}
	}
	for i, node := range nodes {
		err := each(ctx, node)
		if n := len(nodes) - i - 1; err != nil && n > 0 {
			err = errors.Join(err, fmt.Errorf("%s not begun with", kubectl.Many(n, "more node was", "more nodes were")))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findOther finds the other plugin: the one that is named, or that a node is switched from, or that there is.
func (x *switcher) findOther(ctx context.Context, nodes []string) error {
	plugins := migration.Plugins(x.peers())
	if x.from = x.o.from; x.from != "" && !slices.Contains(plugins, x.from) {
		return x.usagef("--from %q: none of %s", x.from, strings.Join(plugins, ", "))
	}
	for _, name := range nodes {
		if x.from != "" || x.o.daemonSet != "" {
			break
		}
		node, err := x.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			return err
		}
		if err == nil && slices.Contains(plugins, node.Labels[x.Identity.Key(migration.SwitchedFrom)]) {
			x.from = node.Labels[x.Identity.Key(migration.SwitchedFrom)]
		}
	}
	other, err := x.otherPlugin(ctx, x.from, x.o.daemonSet)
	switch {
	case err != nil:
		return err
	case other != nil:
		x.from, x.ds = other.mesh.Plugin.Type, other.ds
	case x.from == "":
		return fmt.Errorf("no DaemonSet of %s is in any namespace; --from names the plugin whose entry has been left", strings.Join(plugins, ", "))
	}
	return nil
}

// chained refuses a plugin whose work is no matter of an entry in the network configuration.
func (x *switcher) chained(ctx context.Context) error {
	if x.ds == nil {
		return nil
	}
	m := &move{cluster: x.cluster}
	from, _ := migration.Named(x.peers(), x.from)
	if err := m.read(ctx, found{from, x.ds}); err != nil {
		return err
	}
	if m.plan.OnNode() {
		return fmt.Errorf("%s serves pods of a mesh with a proxy on the node, and only one agent may hold the proxy's socket: a node cannot be switched with both there; see docs/migrating.md", x.from)
	}
	return nil
}

// may refuses to begin without the rights to end, or to go back.
func (x *switcher) may(ctx context.Context) error {
	if x.o.dryRun {
		return nil
	}
	needs := []authorizationv1.ResourceAttributes{{Verb: "patch", Resource: "nodes"}}
	if x.ds != nil {
		needs = append(needs, authorizationv1.ResourceAttributes{Verb: "update", Group: "apps", Resource: "daemonsets", Namespace: x.ds.Namespace})
	}
	for _, r := range needs {
		review, err := x.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r},
		}, metav1.CreateOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("ask what you may do: %w", err)
		case review.Status.Allowed:
		case review.Status.EvaluationError != "":
			return fmt.Errorf("whether you may %s %s, which it takes, is not known: %s", r.Verb, r.Resource, review.Status.EvaluationError)
		default:
			return fmt.Errorf("you may not %s %s, which it takes", r.Verb, r.Resource)
		}
	}
	return nil
}

// say prints a step that has been done.
func (x *switcher) say(node, format string, args ...any) {
	visible.To(x.Stdout).Printf("%s: "+format+"\n", append([]any{node}, args...)...)
}

var errDeclined = errors.New("nothing was changed: the answer was not yes (--yes answers for you)")

// asks asks for confirmation.
func (x *switcher) asks(ctx context.Context, question string) error {
	if x.o.yes {
		return context.Cause(ctx) // nil, unless somebody has interrupted
	}
	visible.To(x.Stderr).Printf("%s [yes/no] ", question)
	said := make(chan string, 1)
	go func() {
		text, _ := x.answer.ReadString('\n') // at its end it is not yes
		said <- text
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case text := <-said:
		if strings.TrimSpace(text) != "yes" {
			return errDeclined
		}
		return nil
	}
}
