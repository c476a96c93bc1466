package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/internal/api/rights"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/status"
)

// report is the output of check as JSON.
type report struct {
	Findings []*finding `json:"findings"`
	// Nodes and Pods are how many were looked at.
	Nodes int `json:"nodes"`
	Pods  int `json:"pods"`
}

func (r report) exit() error {
	levels := map[string]bool{}
	for _, f := range r.Findings {
		levels[f.Level] = true
	}
	switch {
	case levels[levelError]:
		return cli.Exit(exitWrong)
	case levels[levelUnknown]:
		return cli.Exit(exitUnknown)
	}
	return nil
}

func (c *cluster) checkCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "check", Short: "look at the whole installation, and say what is wrong with it",
		Long: "Each finding has a code, with a section on docs/check.md. Exits 1 if there is an\nerror, 3 if something could not be found out; warnings alone are no reason.",
		RunE: c.query(func(ctx context.Context, _ []string) error {
			r, err := c.check(ctx)
			if err != nil {
				return err
			}
			return cmp.Or(c.print(output, r, r.print), r.exit())
		}),
	}
	cmd.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	return cmd
}

func (c *cluster) progress(format string, args ...any) {
	visible.To(c.Stderr).Printf("checking "+format+"\n", args...)
}

func (c *cluster) check(ctx context.Context) (report, error) {
	f := &findings{product: c.Identity, known: map[[2]string]*finding{}}
	s := newSettings(c.Dialects)
	c.progress("the nodes")
	var r report
	needed, without := rightsWanted{}, 0
	err := c.eachNode(ctx, func(a agents.Agent, n agentapi.Node, err error) {
		if r.Nodes++; r.Nodes%100 == 0 {
			c.progress("the nodes: %d have been asked", r.Nodes)
		}
		where, rights := "node/"+a.Node, rights.Least(a.Node)
		switch {
		case errors.Is(err, errUnwanted):
			f.add(codeNodeUnwanted, levelError, where, err.Error())
		case errors.Is(err, agents.ErrNoAgent):
			without++
			f.add(codeNodeWithoutAgent, levelError, where, "has no agent: new pods of the mesh bypass it there, or do not start")
		case err != nil:
			f.add(codeAgentSilent, levelUnknown, where, err.Error())
		default:
			f.node(where, n)
			f.places(where, mountsOf(&a.Pod.Spec, agents.Probed(&a.Pod.Spec)), n)
			s.add(f, a.Node, n)
			if len(n.Rights) > 0 {
				rights = n.Rights
			}
		}
		if a.Name != "" {
			needed.add(a.Namespace, accountOf(a.Pod), a.Node, rights)
		}
	})
	if err != nil {
		return r, err
	}
	switch {
	case r.Nodes == 0:
		f.add(codeNoAgents, levelUnknown, "", "there is no node")
	case without == r.Nodes:
		f.all, f.known = nil, map[[2]string]*finding{}
		f.add(codeNoAgents, levelError, "", "no node has an agent: the chart is not installed, or its pods have other labels than "+c.finder.Selector)
	}
	s.compare(f)
	if len(needed.all) > 0 {
		c.progress("the accounts' rights")
		if err := c.addTaint(ctx, &needed); err != nil {
			f.add(codeAgentRights, levelUnknown, "", "whether the taint's controller has its rights is not known: list its pods: "+err.Error())
		}
		c.rights(ctx, f, needed)
	}
	c.progress("the meshes' injectors")
	webhooks := c.injectors(ctx, f, s)
	c.progress("the pods")
	r.Pods = c.pods(ctx, f, s, webhooks)
	codes := status.Codes(status.KindFinding)
	// The levels' words are in the order of their weight.
	slices.SortStableFunc(f.all, func(a, b *finding) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(slices.Index(codes, a.Code), slices.Index(codes, b.Code)), cmp.Compare(a.Text, b.Text))
	})
	r.Findings = append([]*finding{}, f.all...)
	for _, x := range r.Findings {
		slices.Sort(x.Where)
	}
	return r, ctx.Err()
}

// node adds what the agent of a node says.
func (f *findings) node(where string, n agentapi.Node) {
	for _, said := range n.News {
		_, own := status.Lookup(status.KindFinding, said.Code)
		switch {
		case said.Kind == status.KindReadiness && said.Code == codeNoBackend && n.BackendError != "": // see below
		case said.Kind == status.KindReadiness:
			f.add(codeNodeNotReady, levelError, where, said.String())
		case said.Kind == status.KindPod, said.Code == codeOtherDialect, !said.Attention: // the pods are findings of their own
		case own:
			f.add(said.Code, levelWarning, where, said.Text)
		default:
			f.add(codeNodeWarning, levelWarning, where, said.String())
		}
	}
	f.installed(where, n.Installed)
	if n.BackendError != "" {
		f.add(codeNoBackend, levelError, where, n.BackendError)
	}
	for _, p := range n.Pods {
		pod := "pod/" + p.Namespace + "/" + p.Name
		text := string(p.Reason)
		if p.Detail != "" {
			text += ": " + p.Detail
		}
		switch {
		case !p.NeedsAttention(), p.State == status.StateOutside, p.Reason == status.CodePodRefused: // a pod of another mesh, or with wrong settings, is found among all pods
		case p.State == status.StateFailed:
			f.add(codePodBypasses, levelError, pod, text)
		case p.State == status.StateDrifted:
			f.add(codePodDrifted, levelError, pod, text)
		default:
			f.add(codePodWaiting, levelWarning, pod, text)
		}
	}
}

// installed adds what is odd about the plugin's entry.
func (f *findings) installed(where string, i agentapi.Installed) {
	switch {
	case i.Alone:
		return
	case i.File == "" && i.Unread:
		f.add(codeConfigurationOdd, levelUnknown, where, i.Error)
		return
	case i.File == "":
		f.add(codeNotInstalled, levelError, where, cmp.Or(i.Error, "no network configuration has the plugin's entry"))
		return
	case i.Error != "":
		f.add(codeConfigurationOdd, levelError, where, i.Error)
	}
	if i.Loaded != "" {
		f.add(codeNotLoaded, levelWarning, where, fmt.Sprintf("the runtime loads %s, and the entry is in %s; that is meant only for Multus and with --cni-conf-name", i.Loaded, i.File))
	}
	if len(i.Unknown) > 0 {
		f.add(codeUnknownKeys, levelWarning, where, "keys that mean nothing to this version: "+strings.Join(i.Unknown, ", "))
	}
	if at := slices.Index(i.Plugins, i.Type()); at >= 0 && at < len(i.Plugins)-1 {
		f.add(codeNotLast, levelWarning, where, fmt.Sprintf("after %s come %s: what they change is not seen by it", i.Type(), strings.Join(i.Plugins[at+1:], ", ")))
	}
	if strings.HasPrefix(i.CNIVersion, "0.3.") || i.CNIVersion == "" {
		f.add(codeCNIVersionOld, levelWarning, where, fmt.Sprintf("the list's cniVersion is %q: CHECK came with 0.4.0", i.CNIVersion))
	}
}

func (r report) print(w *visible.Printer) error {
	for _, f := range r.Findings {
		w.Printf("%s: %s: %s\n", f.Level, f.Code, f.Text)
		if len(f.Where) > 0 {
			w.Printf("  %s\n", kubectl.AndMore(f.Where, f.Count))
		}
		w.Printf("  what to do: %s\n  %s\n", f.Remedy, f.Page)
	}
	w.Printf("%s and %s were looked at: %s\n", kubectl.Many(r.Nodes, "node", "nodes"), kubectl.Many(r.Pods, "pod", "pods"), kubectl.Many(len(r.Findings), "finding", "findings"))
	return w.Err()
}
