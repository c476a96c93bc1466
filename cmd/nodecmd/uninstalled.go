//go:build linux

package nodecmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/apiserver"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/uninstallwait"
	"github.com/meshcni/meshcni/internal/text/visible"
)

// maxPending bounds the nodes that an error names. The rest are counted.
const maxPending = 100

// remains lists the files that an uninstall leaves, on purpose.
const remains = `Pods that run with a sidecar keep their rules, and stay in the mesh, until they are started anew.
On a node with such pods the plugin's binary and records stay too, since the runtime calls it when they end.
`

// awaitUninstall makes the command that a release's removal ends with. Pods of a DaemonSet run "uninstall" on each node; it
// waits for all of them and says of which nodes that failed.
func (p Program) awaitUninstall() *cobra.Command {
	var api apiserver.Access
	var namespace, daemonSet, agents string
	var testPods []string
	var patience time.Duration
	first := false
	c := &cobra.Command{
		Use: "await-uninstall", Short: "wait until each pod of a DaemonSet has run uninstall, and say on which nodes that failed",
		RunE: func(c *cobra.Command, _ []string) error {
			if namespace == "" || daemonSet == "" || api.Host == "" {
				return cli.Usage(errors.New("--pod-namespace, --daemonset-name and --kubernetes-service-host are required"))
			}
			config, err := api.Config()
			if err != nil {
				return err
			}
			config.UserAgent = p.Identity.Agent
			cluster, err := uninstallwait.Connect(config, namespace, daemonSet)
			if err != nil {
				return err
			}
			ctx, stop := context.WithTimeout(c.Context(), patience)
			defer stop()
			waiter := uninstallwait.Waiter{Cluster: cluster, Before: func(pod *corev1.Pod) bool {
				return agents != "" && strings.HasPrefix(pod.Name, agents)
			}}
			for _, name := range testPods {
				err = errors.Join(err, cluster.DeletePod(ctx, name))
			}
			nodes, pending := waiter.Wait(ctx, time.Second)
			out := visible.To(p.Stdout)
			switch {
			case first && len(pending) > 0:
				out.Printf("Pods of the node's proxy may not be released on these nodes yet:\n")
				for _, line := range named(pending) {
					out.Printf("  %s\n", line)
				}
				out.Printf("The uninstall goes on, and releases them in the end.\n")
				return err
			case first:
				out.Printf("Pods of the node's proxy are released on all %d nodes.\n", nodes)
				return err
			case len(pending) > 0:
				return errors.Join(err, uncleaned(p.Identity, pending, patience))
			}
			out.Printf("The plugin is uninstalled on all %d nodes. New pods are not captured.\n", nodes)
			out.Text(remains)
			return err
		},
	}
	c.Flags().SortFlags = false
	c.Flags().StringVar(&daemonSet, "daemonset-name", "", "the DaemonSet whose pods run uninstall")
	c.Flags().StringVar(&namespace, "pod-namespace", "", "its namespace")
	c.Flags().StringVar(&agents, "agent-prefix", "", "how the names of the agents' pods begin, which must be gone before")
	c.Flags().StringSliceVar(&testPods, "delete-pod", nil, "pods to delete first, such as those that tests have left")
	c.Flags().BoolVar(&first, "first-part", false, "the pods only release other pods, before anything is uninstalled: nodes where that is not done are named, and are no failure")
	c.Flags().DurationVar(&patience, "timeout", 2*time.Minute, "how long to wait")
	api.RegisterPod(c.Flags())
	fill := maps.Clone(apiserver.Variables)
	fill["pod-namespace"] = []string{"POD_NAMESPACE"}
	cli.BindEnv(c.Flags(), p.Identity.EnvPrefix, fill)
	c.PreRunE = func(c *cobra.Command, _ []string) error { return cli.Usage(cli.Fill(c.Flags(), cli.Env(p.Env))) }
	return c
}

// named lists nodes, a line each.
func named(pending []uninstallwait.Pending) (lines []string) {
	for _, a := range pending[:min(maxPending, len(pending))] {
		lines = append(lines, a.Node+": "+a.Why)
	}
	if more := len(pending) - maxPending; more > 0 {
		lines = append(lines, fmt.Sprintf("… and %d more", more))
	}
	return lines
}

// uncleaned is the error of nodes on which the plugin may be left.
func uncleaned(product meshcni.Identity, pending []uninstallwait.Pending, patience time.Duration) error {
	lines := []string{fmt.Sprintf("the plugin may be left on these nodes, after %s:", patience)}
	for _, line := range named(pending) {
		lines = append(lines, "  "+line)
	}
	lines = append(lines, product.Text("Once they are up, run \"meshcni-node uninstall\" on them, or install the release again and uninstall it"))
	all := make([]error, len(lines)) // one each, so that each stays a line where they are printed
	for i, line := range lines {
		all[i] = errors.New(line)
	}
	return errors.Join(all...)
}
