//go:build linux

package nodecmd

import (
	"fmt"
	"io"
)

// Parse reads the settings that a command line, its command (run, install, uninstall) first, and an environment mean, for
// those who render or check manifests. Nothing is run; a configuration file and a template that they name are read. Errors
// are those that the program would end with: each bad value, and where it comes from.
func Parse(args []string, env func(string) (string, bool)) (Settings, error) {
	if env == nil {
		env = func(string) (string, bool) { return "", false }
	}
	root := App{Env: env, Stdout: io.Discard, Stderr: io.Discard}.command()
	c, rest, err := root.Find(args)
	if err != nil {
		return Settings{}, err
	}
	if c == root || c.Flags().Lookup("run-dir") == nil {
		return Settings{}, fmt.Errorf("no command that has settings in %q", args)
	}
	if err := c.ParseFlags(rest); err != nil {
		return Settings{}, err
	}
	if c.Flags().NArg() > 0 {
		return Settings{}, fmt.Errorf("unexpected %q", c.Flags().Args())
	}
	return resolve(changed(c), env)
}
