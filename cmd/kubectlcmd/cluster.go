package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// cluster is the source of all commands.
type cluster struct {
	Program
	kube         *genericclioptions.ConfigFlags
	finder       agents.Finder
	agentTimeout time.Duration

	client kubernetes.Interface
	agents asker

	mu   sync.Mutex
	left error // names the pods that were made and could not be deleted
}

// flags registers those of all commands.
func (c *cluster) flags(flags *pflag.FlagSet) {
	c.kube = genericclioptions.NewConfigFlags(true)
	c.kube.AddFlags(flags)
	flags.StringVar(&c.finder.Selector, "agent-selector", c.Identity.AgentSelector, "labels of the agents' pods, by which their DaemonSet is found")
	flags.StringVar(&c.finder.Namespace, "agent-namespace", "", "the namespace of one installation (default: those of the ClusterRoleBindings "+c.Identity.PluginAccount+" and "+c.Identity.PluginAccount+"-…, or else "+c.Identity.Namespace+")")
	flags.DurationVar(&c.agentTimeout, "agent-timeout", patience, "how long one agent may take for an answer")
}

// run makes a command of a function, which gets a connection.
func (c *cluster) run(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return c.within(cmd.Context(), func(ctx context.Context) error { return do(ctx, args) })
	}
}

// within connects, and calls do. A pod that is left behind makes it fail, whatever else it has to say.
func (c *cluster) within(ctx context.Context, do func(context.Context) error) error {
	if err := c.open(); err != nil {
		return err
	}
	err := do(ctx)
	var exit cli.Exit
	if c.left != nil && errors.As(err, &exit) {
		err = nil // the program fails by what is left
	}
	return errors.Join(err, c.left)
}

// query is [cluster.run] of a command with an answer: one that is interrupted has none.
func (c *cluster) query(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return c.run(func(ctx context.Context, args []string) error {
		err := do(ctx, args)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return err
	})
}

// leave notes a pod that could not be deleted.
func (c *cluster) leave(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = errors.Join(c.left, err)
}

// print writes an answer as JSON, or by its own function.
func (c *cluster) print(output string, answer any, text func(*visible.Printer) error) error {
	if output == "json" {
		return printers.JSON(c.Stdout, answer)
	}
	return text(visible.To(c.Stdout))
}

// open connects.
func (c *cluster) open() error {
	config, client, err := c.connect(c.kube)
	if err != nil {
		return err
	}
	c.client, c.agents = client, c.ask(config)
	c.finder.Client, c.finder.Identity = client, c.Identity
	return nil
}

// namespace is the one that --namespace or the kubeconfig says.
func (c *cluster) namespace() (string, error) {
	ns, _, err := c.kube.ToRawKubeConfigLoader().Namespace()
	return ns, err
}

// get asks an agent.
func (c *cluster) get(ctx context.Context, a agents.Agent, path string, into any) error {
	if a.Trouble != "" {
		return fmt.Errorf("agent %s/%s cannot be asked: %s", a.Namespace, a.Name, a.Trouble)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.agentTimeout, fmt.Errorf("no answer within %s", c.agentTimeout))
	defer cancel()
	err := c.agents.get(ctx, a, path, into)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("ask agent %s/%s: %w", a.Namespace, a.Name, err)
	}
	return nil
}

// node asks an agent how its node is.
func (c *cluster) node(ctx context.Context, a agents.Agent) (n agentapi.Node, err error) {
	err = c.get(ctx, a, agentapi.NodePath, &n)
	return n, err
}

// finderFlags names the flags behind the fields of a Finder.
var finderFlags = map[string]string{"Namespace": "--agent-namespace", "Selector": "--agent-selector"}

// daemonSets returns the agents' DaemonSets, one for each installation.
func (c *cluster) daemonSets(ctx context.Context) ([]*appsv1.DaemonSet, error) {
	sets, err := c.finder.DaemonSets(ctx)
	return sets, byFlag(err)
}

// agentsByNode returns the agent of each node that has one, or of one node.
func (c *cluster) agentsByNode(ctx context.Context, node string) (map[string]agents.Agent, error) {
	all, err := c.finder.ByNode(ctx, node)
	return all, byFlag(err)
}

// agentOn returns the agent of a node. errors.Is(err, agents.ErrNoAgent) if it has none.
func (c *cluster) agentOn(ctx context.Context, node string) (agents.Agent, error) {
	a, err := c.finder.On(ctx, node)
	return a, byFlag(err)
}

// byFlag names the flag that chooses, where it cannot be told which agents are meant.
func byFlag(err error) error {
	if which := (*agents.WhichError)(nil); errors.As(err, &which) {
		which.By = cmp.Or(finderFlags[which.By], which.By)
		return fmt.Errorf("find the agents: %w", which)
	}
	return err
}

// programOf is the command of the agent's container, as its DaemonSet has it.
func programOf(a agents.Agent) image {
	c := agentContainer(a.Template())
	return image{c.Image, c.Command}
}

// agentContainer returns the container of an agent's pod that has the agent: the first if no probe tells.
func agentContainer(agent *corev1.PodSpec) *corev1.Container {
	if c := agents.Probed(agent); c != nil {
		return c
	}
	return &agent.Containers[0] // the API server takes no pod without one
}
