package kubectlcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
)

// showCommand prints the live rules with their counters.
func (c *cluster) showCommand() *cobra.Command {
	var show printers.Show
	var enter enterFlags
	cmd := &cobra.Command{
		Use: "show (POD | KIND/NAME)", Short: "show a pod's live rules, what each has matched, and why it is there",
		Long: "The agent reads them if it may enter pods' network namespaces; where it may not, a\nshort-lived pod on the node does, with --enter.\nnftables counts only where a rule says so; the plugin's rules for it do not.",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: c.completePods,
		PreRunE: func(*cobra.Command, []string) error {
			if show.Watch && enter.enter {
				return cli.Usagef("--watch and --enter: a pod that is made on the node looks once")
			}
			return cmp.Or(show.Check(), enter.check())
		},
		RunE: c.query(func(ctx context.Context, args []string) error {
			pod, err := c.find(ctx, args, nil)
			if err != nil {
				return err
			}
			s := &subject{pod: pod, nodeView: *c.view(ctx, pod.Spec.NodeName), flags: enter}
			return show.Print(ctx, c.Stdout, func() {}, func() (seen printers.Seen, err error) {
				p, err := s.rules(ctx, c)
				if err != nil {
					return seen, fmt.Errorf("the live rules of pod %s/%s are not known: %w", pod.Namespace, pod.Name, err)
				}
				seen.Live = p.Live
				if p.BypassError != "" {
					err = errors.New(p.BypassError)
				}
				seen.Find(bypass.Told(p.Bypasses, err))
				seen.Find(nil, p.Differences)
				return seen, nil
			})
		}),
	}
	enter.register(cmd)
	show.Describe(cmd)
	return cmd
}

// completePods are the names of the pods in the namespace, for the shell.
func (c *cluster) completePods(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(cmd.Context(), "pods")
}

// completeNamespaces are the names of the namespaces, for the shell.
func (c *cluster) completeNamespaces(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return c.complete(cmd.Context(), "namespaces")
}

func (c *cluster) complete(ctx context.Context, resource string) (names []string, _ cobra.ShellCompDirective) {
	err, namespace := c.open(), ""
	if err == nil && resource == "pods" {
		namespace, err = c.namespace()
	}
	var list metav1.PartialObjectMetadataList
	if err == nil {
		err = getJSON(ctx, c.client.CoreV1().RESTClient().Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Param("limit", strconv.Itoa(apilist.PageSize)), &list)
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// getJSON reads those fields of an object that into has.
func getJSON(ctx context.Context, r *rest.Request, into any) error {
	text, err := r.SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
