package kubectlcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// askFunc is an [asker].
type askFunc func(ctx context.Context, a agents.Agent, path string, into any) error

func (f askFunc) get(ctx context.Context, a agents.Agent, path string, into any) error {
	return f(ctx, a, path, into)
}

// lend is the cluster for commands of other modules.
func (c *cluster) lend() *kubectl.Cluster {
	k := &kubectl.Cluster{
		Identity: c.Identity, Dialects: c.Dialects, Facts: c.Facts, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr,
		Usage: cli.Usage, Exit: func(code int) error { return cli.Exit(code) },
		Choice: func(to *string, words ...string) kubectl.Flag { return cli.Choice(to, words...) },
		Print:  c.print, Progress: c.progress, Leave: c.leave, Uninterrupted: uninterrupted,
		EachNode: c.eachNode, Namespaces: c.namespaces, DaemonSets: c.daemonSets, AgentOn: c.agentOn,
		Nodes: func(ctx context.Context) ([]string, error) { return c.listNodes(ctx) },
		Pods: func(ctx context.Context, ds *appsv1.DaemonSet, node string) ([]corev1.Pod, error) {
			return c.finder.Pods(ctx, ds, node)
		},
		Node: c.node, Pod: c.tells, Look: c.lookInto, Job: c.runJob, Test: c.lentTest, Faults: c.faults, HostDir: onHost,
		Configured: func(entry []byte, node string) (dialect.Set, error) {
			d := deciding{text: entry, node: node}
			err := d.parse(c.Identity, c.Dialects)
			return d.meshes, err
		},
	}
	k.Run = func(ctx context.Context, do func(context.Context) error) error {
		return c.within(ctx, func(ctx context.Context) error {
			if k.Client = c.client; k.Ask != nil {
				c.agents = askFunc(k.Ask)
			}
			return do(ctx)
		})
	}
	return k
}

// lentTest is the command test of one node.
func (c *cluster) lentTest(ctx context.Context, node, image string, timeout time.Duration) (kubectl.Test, error) {
	r, err := c.trial(ctx, trialOptions{image: image, timeout: timeout, names: []string{node}})
	failed := slices.ContainsFunc(r.Rows, func(row trialRow) bool { return row.Result == resultFailed })
	return kubectl.Test{Print: r.print, Failed: failed, Unsure: errors.Is(r.exit(), cli.Exit(exitUnknown)), Left: r.Left}, err
}

// faults are those of a node, pods apart, for which the operator is not to be asked.
func (c *cluster) faults(name string, n agentapi.Node) (errs []error, warnings []string) {
	f := &findings{product: c.Identity, known: map[[2]string]*finding{}}
	f.node("node/"+name, n)
	if n.Installed.Loaded != "" {
		errs = append(errs, fmt.Errorf("%s: the runtime loads %s, and our entry is in %s", codeNotLoaded, n.Installed.Loaded, n.Installed.File))
	}
	for _, found := range f.all {
		text := string(found.Code) + ": " + found.Text
		switch {
		case slices.Contains([]status.Code{codePodBypasses, codePodDrifted, codePodWaiting, codeOtherMesh, codeNotLast, codeNotLoaded}, found.Code):
		case found.Level == levelWarning:
			warnings = append(warnings, text)
		default:
			errs = append(errs, errors.New(text))
		}
	}
	return errs, warnings
}
