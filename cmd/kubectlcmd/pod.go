package kubectlcmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/liverules"
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/visible"
)

var (
	errNotScheduled = errors.New("the pod is on no node yet")
	errNoSelector   = errors.New("it is empty")
)

var readFile = os.ReadFile

// look asks the agent for what is on the node of the pod, and enters the pod if that is wanted. The error says why the agent has told
// nothing.
func (s *subject) look(ctx context.Context, c *cluster) (p agentapi.Pod, err error) {
	switch {
	case s.asking != nil:
		err = s.asking
	case s.pod.Spec.HostNetwork:
		return agentapi.Pod{LiveError: onHostNetwork}, nil
	default:
		p, err = c.tells(ctx, s.agent, s.pod)
	}
	if s.enters(p, err) {
		switch failed := s.enter(ctx, c, &p); {
		case failed != nil && err != nil:
			err = fmt.Errorf("%w; %w", err, failed)
		case failed != nil:
			p.LiveError += "; " + failed.Error()
		}
	}
	return p, err
}

// program is meshcni-redirect with the streams of this program.
func (c *cluster) program(stdout io.Writer) redirectcmd.Program {
	return redirectcmd.Program{Name: c.Name, Version: c.Version, Dialects: c.Dialects, Stdin: c.Stdin, Stdout: stdout, Stderr: c.Stderr, ReadFile: readFile}
}

const onHostNetwork = "the pod is on the host's network, which is never redirected"

const podUse = "(POD | KIND/NAME | -f FILE)"

// planCommand makes a command that prints what should be.
func (c *cluster) planCommand(name string) *cobra.Command {
	var from sources
	cmd := c.program(c.Stdout).Command(name, func(cmd *cobra.Command, args []string) (redirectcmd.Given, error) {
		_, g, err := c.given(cmd, args, from)
		return g, err
	})
	cmd.Use = name + " " + podUse
	cmd.Args, cmd.ValidArgsFunction = cobra.ArbitraryArgs, c.completePods
	from.flags(cmd)
	return cmd
}

func (c *cluster) rulesCommand() *cobra.Command { return c.planCommand("rules") }
func (c *cluster) traceCommand() *cobra.Command { return c.planCommand("trace") }

// briefly is the output of explain --brief as JSON.
type briefly struct {
	Now     present         `json:"now"`
	Verdict explain.Verdict `json:"verdict"`
}

// explainCommand prints what should be, and beside it what is.
func (c *cluster) explainCommand() *cobra.Command {
	from := sources{trouble: true}
	var plan bytes.Buffer
	var s *subject
	var enter enterFlags
	cmd := c.program(&plan).Command("explain", func(cmd *cobra.Command, args []string) (g redirectcmd.Given, err error) {
		if err = enter.check(); err == nil {
			s, g, err = c.given(cmd, args, from)
		}
		return g, err
	})
	enter.register(cmd)
	cmd.Use = "explain (" + strings.Trim(podUse, "()") + " | KIND/NAME --all-pods | -l SELECTOR)"
	cmd.Short = "say what is wrong with a pod, and what to do; then what should be, and what is on its node"
	cmd.Long = "Exits 1 if something is wrong with the pod; 3 if that cannot be told. Of several pods\nit says in one line each how they are, and exits as the worst of them says."
	cmd.Args, cmd.ValidArgsFunction = cobra.ArbitraryArgs, c.completePods
	from.flags(cmd)
	var many several
	many.flags(cmd)
	planned := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if many.asked(cmd) {
			if enter.enter || enter.image != "" {
				return cli.Usagef("--enter, --image: of one pod, not with --selector and --all-pods")
			}
			return c.explainMany(cmd.Context(), args, many, from, cmd.Flags().Lookup("output").Value.String())
		}
		err := planned(cmd, args)
		switch {
		case s == nil && err != nil && cmd.Context().Err() != nil:
			return context.Cause(cmd.Context())
		case s == nil:
			return err
		}
		if s.fromFile {
			return cmp.Or(s.printPlan(cmd, c.Stdout, &plan), err)
		}
		s.flags = enter
		is := c.onNode(cmd.Context(), s)
		if cmd.Context().Err() != nil {
			return errors.Join(context.Cause(cmd.Context()), s.left)
		}
		now := s.present(is)
		return s.conclude(s.printNow(cmd, c.Stdout, is, now, &plan), err, now)
	}
	return cmd
}

// printNow prints how the pod is and what should be, and what is on its node, as the flags say.
func (s *subject) printNow(cmd *cobra.Command, w io.Writer, is onNode, now present, plan *bytes.Buffer) error {
	v := s.explained.Verdict
	brief := cmd.Flags().Lookup("brief").Value.String() == "true"
	if cmd.Flags().Lookup("output").Value.String() == "json" {
		if brief {
			return printJSON(w, briefly{now, v})
		}
		return is.json(w, now, plan.Bytes())
	}
	if v.Code == "" && !now.trouble() {
		return nil // no decision was reached, and the plan's error says why
	}
	if err := now.print(w, v); brief || v.Code == "" || err != nil {
		return err
	}
	out := visible.To(w)
	out.Printf("\n")
	_, err := plan.WriteTo(w)
	is.print(out)
	return errors.Join(err, out.Err())
}

// conclude returns the error that explain ends with: of printing or planning, and of pods left behind, which no exit code may
// hide; else the exit code of how the pod is.
func (s *subject) conclude(printed, planned error, now present) error {
	var exit cli.Exit
	switch err := cmp.Or(printed, planned); {
	case s.left != nil && (err == nil || errors.As(err, &exit)):
		return s.left
	case err != nil:
		return errors.Join(err, s.left)
	case now.exit != 0:
		return cli.Exit(now.exit)
	}
	return nil
}

// printPlan prints what should be, of a pod that is in a file.
func (s *subject) printPlan(cmd *cobra.Command, w io.Writer, plan io.WriterTo) error {
	if cmd.Flags().Lookup("output").Value.String() != "json" && s.explained.Verdict.Code != "" {
		s.online()
		_, _ = s.explained.Verdict.WriteTo(w)
		if cmd.Flags().Lookup("brief").Value.String() != "true" {
			visible.To(w).Printf("\n")
		}
	}
	_, err := plan.WriteTo(w)
	return err
}

// showCommand prints the live rules with their counters.
func (c *cluster) showCommand() *cobra.Command {
	var output string
	var watch bool
	var enter enterFlags
	interval := 2 * time.Second
	cmd := &cobra.Command{
		Use: "show (POD | KIND/NAME)", Short: "show a pod's live rules, what each has matched, and why it is there",
		Long: "The agent reads them if it may enter pods' network namespaces; where it may not, a\nshort-lived pod on the node does, with --enter.\nnftables counts only where a rule says so; the plugin's rules for it do not.",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: c.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval <= 0 {
				return cli.Usagef("--interval %s: not above 0", interval)
			}
			if watch && enter.enter {
				return cli.Usagef("--watch and --enter: a pod that is made on the node looks once")
			}
			if err := cmp.Or(enter.check(), c.open()); err != nil {
				return err
			}
			pod, err := c.find(cmd.Context(), args)
			switch {
			case err != nil && cmd.Context().Err() != nil:
				return context.Cause(cmd.Context())
			case err != nil:
				return err
			}
			s := &subject{pod: pod, flags: enter}
			s.ask(cmd.Context(), c)
			var before liverules.Seen
			for {
				live, err := s.rules(cmd.Context(), c)
				switch {
				case cmd.Context().Err() != nil && watch:
					return nil //nolint:nilerr // the caller ended it
				case cmd.Context().Err() != nil:
					return errors.Join(context.Cause(cmd.Context()), s.left)
				case err != nil:
					return errors.Join(fmt.Errorf("the live rules of pod %s/%s are not known: %w", pod.Namespace, pod.Name, err), s.left)
				}
				rules, seen := liverules.Since(before, live)
				if output == "json" {
					err = printJSON(c.Stdout, rules)
				} else {
					err = liverules.Print(visible.To(c.Stdout), rules)
				}
				if err != nil || !watch {
					return cmp.Or(err, s.left)
				}
				before = seen
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(interval):
				}
			}
		},
	}
	cmd.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	enter.register(cmd)
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the rules again and again, with what each has matched since")
	cmd.Flags().DurationVar(&interval, "interval", interval, "with --watch: how often")
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
