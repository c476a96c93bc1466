// Package redirectcmd implements the command line of meshcni-redirect, which explains, prints, traces, shows, applies,
// checks, removes and validates the redirection of one pod. It needs no cluster. A [Program] with other dialects serves
// your own mesh.
package redirectcmd

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/mesh"
)

// The exit codes that are not those of every command, which package cli has.
const (
	// exitRefused means that the pod's settings are refused, that the live rules differ, or that something failed.
	exitRefused = cli.ExitFailed
	// exitMissing means that validate found no redirection. Repair controllers recognize broken pods by it.
	exitMissing = 126
)

// Program is the redirect program. The zero value is meshcni-redirect with no
// environment and input, whose output is discarded.
type Program struct {
	// Identity is the product's. The plugin's type in it is that of the entry in the node's network configuration, from which the
	// settings come that no flag gives.
	Identity meshcni.Identity
	// Dialects are the values of --dialect; the first is the default. Nil means those of this module.
	Dialects []dialect.Dialect
	// Facts describe your own meshes for people and commands, beside their dialects. This module's are known.
	Facts mesh.List
	// CNIConfDirs are the directories of that configuration; the first that exists counts. The variable
	// PREFIX_CNI_CONF_DIR, with the identity's prefix, names another. Nil means /host/etc/cni/net.d and /etc/cni/net.d; with
	// none, nothing is looked for.
	CNIConfDirs []string
	// Env looks up an environment variable, like os.LookupEnv. Nil: none is set.
	Env func(name string) (string, bool)
	// Nil Stdin is empty. Nil Stdout and Stderr discard.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// ReadFile reads the files that flags name, and /etc/resolv.conf. Default: os.ReadFile.
	ReadFile func(name string) ([]byte, error)

	clear func() // clears the terminal, if Stdout is one
	json  *bool  // whether all that is said is in JSON; nil unless the command is Istio's
}

// errSilent is a failure that the command has reported itself.
const errSilent = cli.Exit(exitRefused)

// Exec runs the program with the arguments, environment and streams of this process, until SIGINT or SIGTERM, and then exits. It
// does not return. A process that is called istio-iptables, by a link or as a copy, runs that command if Istio is among the Dialects.
func (p Program) Exec() {
	p.Env, p.Stdin, p.Stdout, p.Stderr = os.LookupEnv, os.Stdin, os.Stdout, os.Stderr
	p.setDefaults()
	cli.Exec(func(ctx context.Context, args []string) int {
		if p.servesIstio() {
			args = called(os.Args[0], args)
		}
		return p.Main(ctx, args)
	})
}

// Main runs the program with args, which do not include the program's name, and
// returns its exit code. Concurrent calls are safe.
func (p Program) Main(ctx context.Context, args []string) int {
	p.setDefaults()
	if cli.Invalid(p.Stderr, p.name(), p.Identity.Validate(), cli.NoDialects(p.Dialects)) {
		return exitRefused
	}
	p.clear = clearer(p.Stdout)
	if len(args) > 0 && args[0] == istioCommand && p.servesIstio() {
		p.json = new(bool)
		p.Stdout, p.Stderr = &lines{to: p.Stdout, json: p.json, level: slog.LevelInfo}, &lines{to: p.Stderr, json: p.json, level: slog.LevelError}
	}
	return cli.Program{Name: p.name(), Version: p.Identity.Version, Stdout: p.Stdout, Stderr: p.Stderr}.RunClean(ctx, args, p.command)
}

// command is the program's command, which writes to the streams.
func (p Program) command(stdout, stderr io.Writer) *cobra.Command {
	p.Stdout, p.Stderr = stdout, stderr
	root := &cobra.Command{
		Short: "explain, print, trace, show, apply, check and validate a pod's redirection into its mesh proxy",
		Long:  "Exit codes: 0; 1 refused, failed, or the live rules differ; 2 usage; validate 126 when redirection is missing.",
	}
	root.AddCommand(
		p.explainCommand(), p.rulesCommand(), p.traceCommand(), p.compareCommand(), p.showCommand(), p.manifestsCommand(),
		p.liveCommand("apply [--netns PATH] (-f pod.yaml | flags)", "Apply the pod's rules in its network namespace", runApply),
		p.liveCommand("check [--netns PATH] (-f pod.yaml | flags)", "Compare the live rules with the wanted ones", runCheck),
		p.liveCommand("cleanup [--netns PATH] [-f pod.yaml | flags]", "Remove the mesh's rules", runCleanup),
		p.validateCommand(),
	)
	if p.servesIstio() {
		root.AddCommand(p.istioCommand())
	}
	return root
}

func (p *Program) setDefaults() {
	p.Identity = p.Identity.WithDefaults()
	cli.Default[io.Reader](&p.Stdin, strings.NewReader(""))
	cli.Default(&p.Stdout, io.Discard)
	cli.Default(&p.Stderr, io.Discard)
	if p.Dialects == nil {
		p.Dialects = builtin.All()
	}
	p.Facts = facts.Beside(p.Facts, p.Dialects)
	if p.Env == nil {
		p.Env = func(string) (string, bool) { return "", false }
	}
	if p.CNIConfDirs == nil {
		p.CNIConfDirs = defaultConfDirs
	}
	if p.ReadFile == nil {
		p.ReadFile = os.ReadFile
	}
}

func (p Program) name() string { return p.Identity.Program("redirect") }

// clearer returns a function that clears w if that is a terminal (ECMA-48).
func clearer(w io.Writer) func() {
	if f, ok := w.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			return func() { _, _ = f.WriteString("\x1b[H\x1b[2J") }
		}
	}
	return func() {}
}
