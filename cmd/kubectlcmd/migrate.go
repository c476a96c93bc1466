package kubectlcmd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
)

// migrateCommand is the program of the module migrate. Kubectl runs that by itself if it is in the PATH; archives and krew have it beside
// this program.
func (p Program) migrateCommand() *cobra.Command {
	name := p.Identity.KubectlProgram() + "-migrate"
	return &cobra.Command{
		Use: "migrate", Short: "say what it takes to move from another plugin or from init containers, and move nodes (" + name + ")",
		DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := p.besides(name)
			if err != nil {
				return fmt.Errorf("migrate is the program %s, which is neither beside this one nor in the PATH: %w", name, err)
			}
			return p.become(path, args)
		},
	}
}

// besides finds a program in the directory of this one, or in the PATH.
func besides(name string) (string, error) {
	own, err := os.Executable()
	if err == nil {
		own, err = filepath.EvalSymlinks(own) // krew's is a link
	}
	if err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(own), name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// become makes this process another program, or where a process cannot, runs it.
func become(path string, args []string) error {
	err := syscall.Exec(path, append([]string{path}, args...), os.Environ()) //nolint:gosec // the user's own program
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	cmd := exec.Command(path, args...) //nolint:gosec // the same
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return cli.Exit(ended.ExitCode())
	}
	return err
}
