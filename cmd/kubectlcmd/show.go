package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// showCommand prints the live rules with their counters.
func (c *cluster) showCommand() *cobra.Command {
	var show printers.Show
	var enter enterFlags
	cmd := &cobra.Command{
		Use: "show (POD | KIND/NAME)", Short: "show a pod's live rules, what each has matched, and why it is there",
		Long: "The agent reads them if it may enter pods' network namespaces; where it may not, a\nshort-lived pod on the node does, with --enter.\nnftables counts only where a rule says so; the plugin's rules for it do not.",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: c.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			if show.Watch && enter.enter {
				return cli.Usagef("--watch and --enter: a pod that is made on the node looks once")
			}
			if err := cmp.Or(show.Check(), enter.check(), c.open()); err != nil {
				return err
			}
			pod, err := c.find(cmd.Context(), args)
			switch {
			case err != nil && cmd.Context().Err() != nil:
				return context.Cause(cmd.Context())
			case err != nil:
				return err
			}
			s := &subject{pod: pod, place: *c.place(cmd.Context(), pod.Spec.NodeName), flags: enter}
			err = show.Print(cmd.Context(), c.Stdout, func() {}, func() (ruleset.Live, error) {
				live, err := s.rules(cmd.Context(), c)
				if err != nil {
					return nil, fmt.Errorf("the live rules of pod %s/%s are not known: %w", pod.Namespace, pod.Name, err)
				}
				return live, nil
			})
			return errors.Join(err, s.left)
		},
	}
	enter.register(cmd)
	show.Describe(cmd)
	return cmd
}

// completePods are the names of the pods in the namespace, for the shell.
func (c *cluster) completePods(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || c.open() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	namespace, err := c.namespace()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := c.client.CoreV1().Pods(namespace).List(cmd.Context(), metav1.ListOptions{Limit: pageSize})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeNamespaces are the names of the namespaces, for the shell.
func (c *cluster) completeNamespaces(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	if c.open() != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := c.client.CoreV1().Namespaces().List(cmd.Context(), metav1.ListOptions{Limit: pageSize})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
