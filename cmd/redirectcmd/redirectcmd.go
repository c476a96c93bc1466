// Package redirectcmd is the command line of meshcni-redirect as a function:
// arguments, environment and streams in, exit code out. It explains, prints,
// traces, shows, applies, checks, removes and validates the redirection of one
// pod, and needs no cluster. [Program] takes dialects of your own.
package redirectcmd

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/dialects"
	"github.com/meshcni/meshcni/internal/version"
)

// The exit codes.
const (
	// ExitOK: done; a pod outside the mesh counts as done, too.
	ExitOK = cli.ExitOK
	// ExitRefused: the pod's configuration is refused, the live rules differ,
	// or something failed.
	ExitRefused = cli.ExitFailed
	// ExitUsage: the command line, or a variable that stands for a flag, is wrong.
	ExitUsage = cli.ExitUsage
	// ExitMissing is of validate alone: redirection is missing. Repair
	// controllers know a pod that needs them by it.
	ExitMissing = 126
)

// Program is meshcni-redirect, or a program like it for a mesh of one's own.
type Program struct {
	// Name is the program's. Default meshcni-redirect.
	Name string
	// Version is what --version prints after the name. Default: this module's.
	Version string
	// Dialects are those that --dialect may name, the default first. Nil: this
	// module's.
	Dialects []dialect.Dialect
	// Env looks up an environment variable, as os.LookupEnv does. Nil: there are none.
	Env func(name string) (string, bool)
	// Stdin may be nil, which is empty. Nil Stdout and Stderr discard.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// ReadFile reads the files that flags name, and /etc/resolv.conf; nil is os.ReadFile.
	ReadFile func(name string) ([]byte, error)

	clear func() // clears the terminal, if Stdout is one
}

// errSilent is a failure about which all has been said.
const errSilent = cli.Exit(ExitRefused)

// Exec runs the program as this process: its arguments, environment, streams
// and signals. It does not return.
func (p Program) Exec() {
	p.Env, p.Stdin, p.Stdout, p.Stderr = os.LookupEnv, os.Stdin, os.Stdout, os.Stderr
	cli.Exec(p.Main)
}

// Main runs the program and returns its exit code. Args are those after the
// program's name. It changes nothing in the process, so that calls may run side
// by side.
func (p Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	stdout, stderr := &cleanWriter{to: p.Stdout}, &cleanWriter{to: p.Stderr}
	p.clear = clearer(p.Stdout)
	p.Stdout, p.Stderr = stdout, stderr
	root := &cobra.Command{
		Short: "explain, print, trace, show, apply, check and validate a pod's redirection into its mesh proxy",
		Long:  "Exit codes: 0; 1 refused, failed, or the live rules differ; 2 usage; validate 126 when redirection is missing.",
	}
	root.AddCommand(
		p.explainCommand(), p.rulesCommand(), p.traceCommand(), p.compareCommand(), p.showCommand(),
		p.applyCommand(), p.checkCommand(), p.cleanupCommand(), p.validateCommand(),
	)
	code := cli.Program{Name: p.Name, Version: p.Version, Stdout: p.Stdout, Stderr: p.Stderr, Root: root}.Run(ctx, args)
	if err := errors.Join(stdout.err, stderr.err); code == ExitOK && err != nil {
		return ExitRefused
	}
	return code
}

func (p *Program) setDefaults() {
	cli.Default(&p.Name, "meshcni-redirect")
	cli.Default(&p.Version, version.Long())
	cli.Default[io.Reader](&p.Stdin, strings.NewReader(""))
	cli.Default(&p.Stdout, io.Discard)
	cli.Default(&p.Stderr, io.Discard)
	if p.Dialects == nil {
		p.Dialects = dialects.All()
	}
	if p.Env == nil {
		p.Env = func(string) (string, bool) { return "", false }
	}
	if p.ReadFile == nil {
		p.ReadFile = os.ReadFile
	}
}

// clearer clears the screen and goes to its first line (ECMA-48), if w is a
// terminal.
func clearer(w io.Writer) func() {
	if f, ok := w.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			return func() { _, _ = f.WriteString("\x1b[H\x1b[2J") }
		}
	}
	return func() {}
}
