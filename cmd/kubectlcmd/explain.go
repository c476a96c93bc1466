package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/diagnosis/live"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/status"
)

const podUse = "(POD | KIND/NAME | -f FILE)"

// planCommand makes a command that prints what should be.
func (c *cluster) planCommand(name string, describe func(*cobra.Command), check func(cmd *cobra.Command, stdin bool) error, print func(printers.Streams, explain.Explanation) error) *cobra.Command {
	var from sources
	cmd := &cobra.Command{
		Use: name + " " + podUse, Args: cobra.ArbitraryArgs, ValidArgsFunction: c.completePods,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return check(cmd, from.file == "-") },
		RunE: c.query(func(ctx context.Context, args []string) error {
			s, err := c.subjectOf(ctx, args, from)
			if err = cmp.Or(err, s.undecided); err != nil {
				return err
			}
			return print(c.streams(), s.explained)
		}),
	}
	describe(cmd)
	from.flags(cmd)
	return cmd
}

func (c *cluster) rulesCommand() *cobra.Command {
	var rules printers.Rules
	return c.planCommand("rules", rules.Describe, func(*cobra.Command, bool) error { return nil }, rules.Print)
}

func (c *cluster) traceCommand() *cobra.Command {
	var trace printers.Trace
	return c.planCommand("trace", trace.Describe, trace.Check, trace.Print)
}

// streams are the program's.
func (p Program) streams() printers.Streams {
	return printers.Streams{In: p.Stdin, Out: p.Stdout, Err: p.Stderr, ReadFile: os.ReadFile}
}

// explainFlags are those of explain.
type explainFlags struct {
	sources
	several
	enterFlags
	printers.Explain
	code string
}

// explainCommand prints what should be, and beside it what is.
func (c *cluster) explainCommand() *cobra.Command {
	o := explainFlags{sources: sources{trouble: true}}
	cmd := &cobra.Command{
		Use:   "explain (" + strings.Trim(podUse, "()") + " | KIND/NAME --all-pods | -l SELECTOR)",
		Short: "say what is wrong with a pod, and what to do; then what should be, and what is on its node",
		Long:  "Exits 1 if something is wrong with the pod; 3 if that cannot be told. Of several pods\nit says in one line each how they are, and exits as the worst of them says.",
		Args:  cobra.ArbitraryArgs, ValidArgsFunction: c.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			many := o.several.asked(cmd)
			switch err := o.enterFlags.check(); {
			case o.code != "" && len(args) > 0:
				return cli.Usagef("--code: of no pod")
			case o.code != "":
				return printers.Code(c.Stdout, c.Identity, o.code, o.Output == "json")
			case err != nil:
				return err
			case many && (o.enter || o.image != ""):
				return cli.Usagef("--enter, --image: of one pod, not with --selector and --all-pods")
			case many && o.file != "":
				return cli.Usagef("--filename: with --selector and --all-pods the pods are the cluster's")
			case many:
				return c.query(func(ctx context.Context, args []string) error { return c.explainMany(ctx, args, o) })(cmd, args)
			}
			return c.query(func(ctx context.Context, args []string) error { return c.explainOne(ctx, args, o) })(cmd, args)
		},
	}
	o.Describe(cmd)
	cmd.Flags().StringVar(&o.code, "code", "", "say what this code means, instead of a pod")
	o.enterFlags.register(cmd)
	o.sources.flags(cmd)
	o.several.flags(cmd)
	return cmd
}

// explainOne says of a pod how it is and what should be, and what is on its node. Of one in a file it says what should be.
func (c *cluster) explainOne(ctx context.Context, args []string, o explainFlags) error {
	s, err := c.subjectOf(ctx, args, o.sources)
	if err != nil {
		return err
	}
	planned := s.undecided
	switch v := s.explained.Verdict; {
	case planned != nil:
	case s.refused():
		planned = cli.Exit(exitWrong)
	case s.fromFile && v.Code == status.CodeNamespaceUnknown:
		planned = cli.Exit(exitUnknown)
	}
	switch {
	case s.fromFile && s.undecided != nil:
		return planned
	case s.fromFile:
		return cmp.Or(o.Print(c.Stdout, s.explained), planned)
	}
	s.flags = o.enterFlags
	p := c.live(ctx, s)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := p.Now()
	return cmp.Or(printNow(c.Stdout, p, now, o), planned, exit(now.Health))
}

// briefly is the output of explain --brief as JSON.
type briefly struct {
	Now     live.Now        `json:"now"`
	Verdict explain.Verdict `json:"verdict"`
}

// printNow prints how the pod is and what should be, and what is on its node, as the flags say.
func printNow(w io.Writer, p live.Pod, now live.Now, o explainFlags) error {
	v := p.Explained.Verdict
	switch {
	case o.Output == "json" && o.Brief:
		return printers.JSON(w, briefly{now, v})
	case o.Output == "json":
		all := struct {
			*explain.Explanation
			Now    live.Now    `json:"now"`
			OnNode live.OnNode `json:"onNode"`
		}{Now: now, OnNode: p.OnNode}
		if v.Code != "" {
			all.Explanation = &p.Explained
		}
		return printers.JSON(w, all)
	case v.Code == "" && !now.Trouble():
		return nil // no decision was reached, and the error says why
	}
	if err := now.WriteWith(w, v); o.Brief || v.Code == "" || err != nil {
		return err
	}
	out := visible.To(w)
	out.Printf("\n")
	return errors.Join(out.Err(), p.Explained.WriteDetails(w), p.WriteDetails(w))
}

// several selects the pods of an explain of more than one.
type several struct {
	selector string
	all      bool // of a workload
}

func (m *several) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&m.selector, "selector", "l", "", "labels of pods, of each of which one line says how it is")
	cmd.Flags().BoolVar(&m.all, "all-pods", false, "with KIND/NAME: the same for all its pods")
}

// asked reports whether it is about several pods.
func (m *several) asked(cmd *cobra.Command) bool { return m.all || cmd.Flags().Changed("selector") }

// podLine is the line of one of several pods.
type podLine struct {
	Pod explain.PodName `json:"pod"`
	briefly
}

// explainMany says of each pod how it is.
func (c *cluster) explainMany(ctx context.Context, args []string, o explainFlags) error {
	namespace, err := c.namespace()
	if err != nil {
		return err
	}
	selector, err := c.selects(ctx, namespace, args, o.several)
	if err != nil {
		return err
	}
	x, err := c.explainer(o.config)
	if err != nil {
		return err
	}
	lines, seen, first := []podLine{}, 0, ""
	var worst error
	out := visible.To(c.Stdout)
	err = apilist.Each(ctx, c.client.CoreV1().Pods(namespace).List, metav1.ListOptions{LabelSelector: selector}, func(pod *corev1.Pod) {
		seen++
		s := x.subject(ctx, pod)
		now, v := c.live(ctx, s).Now(), s.explained.Verdict
		if worst == nil || now.Health == live.Wrong {
			worst = cmp.Or(exit(now.Health), worst)
		}
		if now.Trouble() && first == "" {
			first = pod.Name
		}
		if o.Output == "json" {
			lines = append(lines, podLine{explain.PodName{Namespace: pod.Namespace, Name: pod.Name}, briefly{now, v}})
		} else {
			out.Printf("%s: %s\n", pod.Name, now.Sentence)
		}
	})
	switch {
	case err != nil:
		return fmt.Errorf("list pods: %w", err)
	case ctx.Err() != nil:
		return ctx.Err()
	case seen == 0:
		return fmt.Errorf("no pod in namespace %s has the labels %s", namespace, selector)
	case o.Output == "json":
		return cmp.Or(printers.JSON(c.Stdout, lines), worst)
	case first != "":
		out.Printf("next: %s explain -n %s %s says what to do\n", c.Identity.Kubectl, namespace, first)
	}
	return cmp.Or(out.Err(), worst)
}

// selects returns the labels of the pods that are meant.
func (c *cluster) selects(ctx context.Context, namespace string, args []string, m several) (string, error) {
	switch {
	case m.all && m.selector != "":
		return "", cli.Usagef("--selector, --all-pods: only one of them")
	case !m.all && len(args) > 0:
		return "", cli.Usagef("%s: with --selector the labels say which pods", args[0])
	case !m.all:
		return m.selector, nil
	}
	kind, name, err := split(args)
	if err == nil && kind == "pod" {
		err = cli.Usagef("--all-pods: name a workload, such as deploy/NAME")
	}
	if err != nil {
		return "", err
	}
	return c.selector(ctx, kind, namespace, name)
}
