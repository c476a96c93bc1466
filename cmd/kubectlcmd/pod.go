package kubectlcmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/liverules"
	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

var (
	errNotScheduled = errors.New("the pod is on no node yet")
	errNoSelector   = errors.New("it is empty")
)

var readFile = os.ReadFile

// mirror is the annotation by which a kubelet tells which static pod it mirrors: the runtime knows the pod by it.
const mirror = "kubernetes.io/config.mirror"

// look asks the agent for what is on the node of the pod.
func (s *subject) look(ctx context.Context, c *cluster) (p agentapi.Pod, err error) {
	if s.asking != nil {
		return p, s.asking
	}
	if s.pod.Spec.HostNetwork {
		return agentapi.Pod{LiveError: onHostNetwork}, nil
	}
	err = c.get(ctx, s.agent, agentapi.PodPath+cmp.Or(s.pod.Annotations[mirror], string(s.pod.UID)), &p)
	return p, err
}

// program is meshcni-redirect with the streams of this program.
func (c *cluster) program(stdout io.Writer) redirectcmd.Program {
	return redirectcmd.Program{Name: c.Name, Version: c.Version, Dialects: c.Dialects, Stdin: c.Stdin, Stdout: stdout, Stderr: c.Stderr, ReadFile: readFile}
}

const onHostNetwork = "the pod is on the host's network, which is never redirected"

const podUse = "(POD | KIND/NAME)"

func (c *cluster) configFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "config", "", "a network configuration with the plugin's entry, instead of the one in force on the pod's node; none: the defaults")
}

// planCommand makes a command that prints what should be.
func (c *cluster) planCommand(name string) *cobra.Command {
	var config string
	cmd := c.program(c.Stdout).Command(name, func(cmd *cobra.Command, args []string) (redirectcmd.Given, error) {
		_, g, err := c.given(cmd, args, config)
		return g, err
	})
	cmd.Use = name + " " + podUse
	cmd.Args, cmd.ValidArgsFunction = cobra.ArbitraryArgs, c.completePods
	c.configFlag(cmd, &config)
	return cmd
}

func (c *cluster) rulesCommand() *cobra.Command { return c.planCommand("rules") }
func (c *cluster) traceCommand() *cobra.Command { return c.planCommand("trace") }

// explainCommand prints what should be, and beside it what is.
func (c *cluster) explainCommand() *cobra.Command {
	var config string
	var plan bytes.Buffer
	var s *subject
	cmd := c.program(&plan).Command("explain", func(cmd *cobra.Command, args []string) (g redirectcmd.Given, err error) {
		s, g, err = c.given(cmd, args, config)
		return g, err
	})
	cmd.Use = "explain " + podUse
	cmd.Short = "say whether a pod is in the mesh, why, what its rules should be, and what is on its node"
	cmd.Long = "Exits 1 if the pod is refused, or if what is on its node is not what should be; 3 if\nthat cannot be told."
	cmd.Args, cmd.ValidArgsFunction = cobra.ArbitraryArgs, c.completePods
	c.configFlag(cmd, &config)
	planned := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := planned(cmd, args)
		if s == nil || plan.Len() == 0 {
			return err
		}
		is := c.onNode(cmd.Context(), s)
		if cmd.Flags().Lookup("output").Value.String() == "json" {
			if printed := is.json(c.Stdout, plan.Bytes()); printed != nil {
				return printed
			}
		} else {
			_, _ = plan.WriteTo(c.Stdout)
			is.print(c.Stdout)
		}
		return cmp.Or(err, is.exit())
	}
	return cmd
}

// onNode is what is on the node of a pod.
type onNode struct {
	Node string `json:"node,omitempty"`
	// Unknown says why the agent has not told. Then nothing below is known.
	Unknown string `json:"unknown,omitempty"`
	agentapi.Pod
	Events      []event `json:"events"`
	EventsError string  `json:"events_error,omitempty"`
}

// event is one of the pod's.
type event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// maxEvents is how many of the pod's newest events are shown.
const maxEvents = 10

func (c *cluster) onNode(ctx context.Context, s *subject) (is onNode) {
	is.Node, is.Events = s.pod.Spec.NodeName, []event{}
	p, err := s.look(ctx, c)
	if is.Pod = p; err != nil {
		is.Unknown = err.Error()
	}
	list, err := c.client.CoreV1().Events(s.pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(s.pod.UID)).String(), Limit: pageSize,
	})
	if err != nil {
		is.EventsError = err.Error()
		return is
	}
	for i := range list.Items {
		e := &list.Items[i]
		if e.InvolvedObject.UID != s.pod.UID {
			continue
		}
		is.Events = append(is.Events, event{when(e).UTC(), e.Type, e.Reason, e.Message})
	}
	slices.SortStableFunc(is.Events, func(a, b event) int { return a.Time.Compare(b.Time) })
	is.Events = is.Events[max(0, len(is.Events)-maxEvents):]
	return is
}

// exit is the code for scripts.
func (is onNode) exit() error {
	switch {
	case is.Unknown != "":
		return cli.Exit(ExitUnknown)
	case is.State != nil && is.State.Wrong || len(is.Lost) > 0:
		return cli.Exit(ExitWrong)
	}
	return nil
}

// json adds what is to the plan's object, as its field "onNode".
func (is onNode) json(w io.Writer, plan []byte) error {
	var all map[string]json.RawMessage
	err := json.Unmarshal(plan, &all)
	if err == nil {
		all["onNode"], err = json.Marshal(is)
	}
	return errors.Join(err, printJSON(w, all))
}

func (is onNode) print(w io.Writer) {
	fmt.Fprintf(w, "\non node %s\n", cmp.Or(is.Node, "(none)"))
	if is.Unknown != "" {
		fmt.Fprintf(w, "  unknown: %s\n", is.Unknown)
	} else {
		is.printState(w)
	}
	if is.EventsError != "" {
		fmt.Fprintf(w, "  its events are not known: %s\n", is.EventsError)
	}
	for _, e := range is.Events {
		fmt.Fprintf(w, "  event %s %s %s: %s\n", e.Time.Format(time.RFC3339), e.Type, e.Reason, e.Message)
	}
}

func (is onNode) printState(w io.Writer) {
	if s := is.State; s != nil {
		fmt.Fprintf(w, "  now: %s: %s", word(s.State), s.Reason)
		if s.Detail != "" {
			fmt.Fprintf(w, ": %s", s.Detail)
		}
		fmt.Fprintln(w)
	} else {
		fmt.Fprintln(w, "  now: the agent does not count the pod among those of the mesh")
	}
	for _, r := range is.Records {
		did := "passed over"
		if r.Selected {
			did = fmt.Sprintf("redirected by %s, %d rules", r.Backend, rulesOf(r.InForce()))
		}
		fmt.Fprintf(w, "  at %s %s: %s: %s (%s, %s)\n", r.Time.UTC().Format(time.RFC3339), r.By, did, r.Reason, cmp.Or(r.Dialect, "no dialect"), r.IfName)
	}
	if len(is.Records) == 0 {
		fmt.Fprintln(w, "  at ADD: there is no record; the plugin was not called for the pod, or its record is gone")
	}
	if is.RecordsError != "" {
		fmt.Fprintf(w, "  %s\n", is.RecordsError)
	}
	if is.LiveError != "" {
		fmt.Fprintf(w, "  live rules: not known: %s\n", is.LiveError)
		if is.LiveError == onHostNetwork {
			return
		}
		fmt.Fprintln(w, "  (to read them the agent has to be able to enter pods: the chart's repair.verifyInterval or repair.mode=repair)")
		return
	}
	ours := 0
	for _, r := range is.Live {
		if r.Ours {
			ours++
		}
	}
	fmt.Fprintf(w, "  live rules: %d of the mesh, %d others\n", ours, len(is.Live)-ours)
	for _, d := range is.Differences {
		kind := "differs since ADD"
		if slices.Contains(is.Lost, d) {
			kind = "LOST since ADD"
		}
		fmt.Fprintf(w, "  %s: %s\n", kind, d)
	}
}

func rulesOf(rs ruleset.Ruleset) (n int) {
	for _, f := range ruleset.Families {
		if p := rs.Program(f); p != nil {
			n += p.Rules()
		}
	}
	return n
}

// showCommand prints the live rules with their counters.
func (c *cluster) showCommand() *cobra.Command {
	var output string
	var watch bool
	interval := 2 * time.Second
	cmd := &cobra.Command{
		Use: "show " + podUse, Short: "show a pod's live rules, what each has matched, and why it is there",
		Long: "The agent reads them; it has to be able to enter pods' network namespaces.\nnftables counts only where a rule says so; the plugin's rules for it do not.",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: c.completePods,
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval <= 0 {
				return cli.Usagef("--interval %s: not above 0", interval)
			}
			if err := c.open(); err != nil {
				return err
			}
			pod, err := c.find(cmd.Context(), args)
			if err != nil {
				return err
			}
			s := &subject{pod: pod}
			s.ask(cmd.Context(), c)
			var before liverules.Seen
			for {
				p, err := s.look(cmd.Context(), c)
				if err == nil && p.LiveError != "" {
					err = errors.New(p.LiveError)
				}
				if cmd.Context().Err() != nil {
					return nil //nolint:nilerr // the caller ended it
				}
				if err != nil {
					return fmt.Errorf("the live rules of pod %s/%s are not known: %w", pod.Namespace, pod.Name, err)
				}
				rules, seen := liverules.Since(before, p.Live)
				if output == "json" {
					err = printJSON(c.Stdout, rules)
				} else {
					err = liverules.Print(c.Stdout, rules)
				}
				if err != nil || !watch {
					return err
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
