package redirectcmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
)

func (p Program) explainCommand() *cobra.Command {
	var print printers.Explain
	cmd, c := p.newCommand("explain (-f pod.yaml | CODE)", "Say whether the pod is captured, why, and what to do; then where each setting comes from, and what the rules are", func(c *common, _ *cobra.Command) error {
		x, err := c.explained(nil)
		if err != nil {
			return err // no decision was reached: a file cannot be read, say
		}
		if err := print.Print(c.Stdout, x.Explanation); err != nil || x.Err() == nil {
			return err
		}
		return errSilent
	})
	c.templates = true
	ofPod := cmd.RunE
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return ofPod(cmd, args)
		case len(args) > 1 || c.file != "":
			return cli.Usagef("%s: one code, or the pod of -f", strings.Join(args, " "))
		}
		return printers.Code(c.Stdout, c.Identity, args[0], print.Output == "json")
	}
	print.Describe(cmd)
	return cmd
}

func (p Program) rulesCommand() *cobra.Command {
	var rules printers.Rules
	cmd, c := p.newCommand("rules (-f pod.yaml | flags)", "", func(c *common, _ *cobra.Command) error {
		x, err := c.explained(nil)
		if err != nil {
			return err
		}
		return rules.Print(c.streams(), x.Explanation)
	})
	c.templates = true
	c.ruleFlags = addRuleFlags(cmd.Flags())
	rules.Describe(cmd)
	return cmd
}

func (p Program) traceCommand() *cobra.Command {
	var trace printers.Trace
	cmd, c := p.newCommand("trace -f pod.yaml [--connection] (--direction out --dst A --dport N … | --packets -)", "", func(c *common, cmd *cobra.Command) error {
		if err := trace.Check(cmd, c.inputs() > 0); err != nil {
			return err
		}
		x, err := c.explained(nil)
		if err != nil {
			return err
		}
		return trace.Print(c.streams(), x.Explanation)
	})
	c.templates = true
	trace.Describe(cmd)
	return cmd
}

// streams are the program's.
func (p Program) streams() printers.Streams {
	return printers.Streams{In: p.Stdin, Out: p.Stdout, Err: p.Stderr, ReadFile: p.ReadFile}
}

// object reads the one object of a file.
func object[T any](p Program, name, kind string, parse func([]byte) (*T, error)) (*T, error) {
	b, err := p.streams().Read(name)
	if err != nil {
		return nil, err
	}
	o, err := parse(b)
	if err != nil {
		if name == "-" {
			name = "standard input"
		}
		return nil, fmt.Errorf("read %s from %s: %w", kind, name, err)
	}
	return o, nil
}
