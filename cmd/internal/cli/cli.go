// Package cli runs the command lines of meshcni's programs, which share the handling of flags and their environment
// variables, help, version, messages and exit codes.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/internal/program/version"
	"github.com/meshcni/meshcni/internal/text/visible"
)

// The exit codes that the programs share. A program may have more: see [Exit].
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usage marks err as a mistake on the command line: [Program.Run] returns [ExitUsage]. It is nil if err is.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// Usagef is [Usage] of a formatted error.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Exit is an error that makes [Program.Run] return the code and print nothing,
// because the command has printed its own message.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Program is a command line with its streams.
type Program struct {
	// Name begins every message. Version is what --version prints after it. Default: this module's, with the build.
	Name, Version string
	// Stdout and Stderr are required.
	Stdout, Stderr io.Writer
	// Root is the program's command. Run sets its Use. With subcommands it needs no RunE of its own.
	Root *cobra.Command
}

// Default sets a field of a program that has its zero value.
func Default[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }

// Run runs the program with args, which do not include the program's name, and returns its exit code.
func (p Program) Run(ctx context.Context, args []string) int {
	p.prepare()
	p.Root.SetArgs(Joined(p.Root, args))
	p.Root.SetOut(p.Stdout)
	p.Root.SetErr(p.Stderr)
	err := p.Root.ExecuteContext(ctx)
	var usage usageError
	var exit Exit
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return int(exit)
	}
	out := visible.To(p.Stderr)
	for _, line := range visible.Lines(err) {
		if line = strings.TrimSpace(line); line != "" {
			out.Printf("%s: %s\n", p.Name, line)
		}
	}
	if errors.As(err, &usage) {
		out.Printf("%s: see --help\n", p.Name)
		return ExitUsage
	}
	return ExitFailed
}

func (p Program) prepare() {
	root := p.Root
	root.Use = p.Name
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	root.SetHelpFunc(help)
	var names []string
	for _, c := range root.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
		if c.Args == nil {
			c.Args = noArgs
		}
	}
	show := func(c *cobra.Command, _ []string) error {
		_, err := fmt.Fprintln(c.OutOrStdout(), p.Name, cmp.Or(p.Version, version.Long()))
		return err
	}
	run := root.RunE
	root.Args = noArgs
	if len(names) > 0 && run == nil {
		run = func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usagef("unknown command %q: not one of %s", args[0], strings.Join(names, ", "))
			}
			return Usagef("name a command: %s", strings.Join(names, ", "))
		}
		root.Args = cobra.ArbitraryArgs
	}
	if len(names) > 0 {
		root.AddCommand(&cobra.Command{Use: "version", Short: "print the version", Args: noArgs, RunE: show})
	}
	// Cobra's own version flag has a template, which links text/template; with
	// that the linker keeps every exported method of the program, 6 MB of them.
	asked := root.Flags().BoolP("version", "v", false, "print the version")
	root.RunE = func(c *cobra.Command, args []string) error {
		if *asked {
			return show(c, nil)
		}
		return run(c, args)
	}
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("unexpected argument %q: everything is said by flags", args[0])
	}
	return nil
}
