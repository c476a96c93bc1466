// Package redirectcmd is the program meshcni-redirect as a function: arguments,
// environment and streams in, exit code out. It explains, prints, traces,
// applies, checks, removes and validates the redirection of one pod, and needs
// no cluster.
//
// The central function is [Main].
package redirectcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	// ExitOK: done; a pod outside the mesh counts as done, too.
	ExitOK = 0
	// ExitRefused: the pod's configuration is refused, the live rules differ,
	// or something failed.
	ExitRefused = 1
	// ExitUsage: the command line, or a variable that stands for a flag, is wrong.
	ExitUsage = 2
	// ExitMissing is of validate alone: redirection is missing. Repair
	// controllers know a pod that needs them by it.
	ExitMissing = 126
)

// IO is what the program has of its surroundings.
type IO struct {
	// Env is the environment as of os.Environ; of several values of one name
	// the last counts.
	Env []string
	// Stdin may be nil, which is empty. Stdout and Stderr may not.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// ReadFile reads the files that flags name, and /etc/resolv.conf; nil is os.ReadFile.
	ReadFile func(name string) ([]byte, error)
	// Version is what --version prints.
	Version string
}

// lookup returns a variable, and whether it is there.
func (i IO) lookup(name string) (string, bool) {
	for n := len(i.Env) - 1; n >= 0; n-- {
		if v, ok := strings.CutPrefix(i.Env[n], name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// usageError makes Main return [ExitUsage].
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errSilent is a failure of which all has been said; Main returns [ExitRefused].
var errSilent = errors.New("")

// exitError makes Main return the code, of which all has been said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main runs the program. Args are those after the program's name. It changes
// nothing in the process, so that calls may run side by side.
func Main(ctx context.Context, args []string, i IO) int {
	stdout, stderr := &cleanWriter{to: i.Stdout}, &cleanWriter{to: i.Stderr}
	i.Stdout, i.Stderr = stdout, stderr
	if i.Stdin == nil {
		i.Stdin = strings.NewReader("")
	}
	if i.ReadFile == nil {
		i.ReadFile = os.ReadFile
	}
	root := root(i)
	root.SetArgs(append([]string{}, args...)) // never nil, which would mean os.Args
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = errors.Join(stdout.err, stderr.err)
	}
	var usage usageError
	var exit exitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return int(exit)
	case errors.Is(err, errSilent):
		return ExitRefused
	case errors.As(err, &usage):
		fmt.Fprintf(i.Stderr, "meshcni-redirect: %v\n", err)
		return ExitUsage
	}
	fmt.Fprintf(i.Stderr, "meshcni-redirect: %v\n", err)
	return ExitRefused
}

func root(i IO) *cobra.Command {
	var showVersion bool
	cmd := &cobra.Command{
		Use:   "meshcni-redirect",
		Short: "Explain, print, trace, apply, check and validate a pod's redirection into its mesh proxy",
		Long: `meshcni-redirect works on one pod's redirection rules, without a cluster.

Exit codes: 0; 1 refused, failed, or the live rules differ; 2 usage; validate 126 when redirection is missing.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q: see meshcni-redirect --help", args[0])
			}
			if showVersion {
				return i.printVersion()
			}
			_ = cmd.Help()
			return exitError(ExitUsage)
		},
	}
	cmd.SetIn(i.Stdin)
	cmd.SetOut(i.Stdout)
	cmd.SetErr(i.Stderr)
	// Not cobra's own version flag with a template: that links text/template, with which the linker keeps every exported
	// method of the program, 6 MB of them.
	cmd.Flags().BoolVarP(&showVersion, "version", "v", false, "say which build this is")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.AddCommand(
		explainCommand(i), rulesCommand(i), traceCommand(i), compareCommand(i),
		applyCommand(i), checkCommand(i), cleanupCommand(i), validateCommand(i), versionCommand(i),
	)
	for _, sub := range cmd.Commands() {
		sub.Args = func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unexpected argument %q: everything is said by flags", args[0])
			}
			return nil
		}
	}
	return cmd
}

func versionCommand(i IO) *cobra.Command {
	return &cobra.Command{Use: "version", Short: "say which build this is", RunE: func(*cobra.Command, []string) error { return i.printVersion() }}
}

func (i IO) printVersion() error {
	_, err := fmt.Fprintln(i.Stdout, "meshcni-redirect", i.Version)
	return err
}
