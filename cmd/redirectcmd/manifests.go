package redirectcmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/cmd/internal/printers"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/status"
)

// The bounds of what is checked at once, in bytes and files.
const (
	maxManifests     = 64 << 20
	maxManifestFiles = 20_000
)

// manifestsCommand makes the check of manifests, which needs neither a cluster nor a node.
func (p Program) manifestsCommand() *cobra.Command {
	var print printers.Manifests
	var check explain.ManifestCheck
	var paths []string
	var strict bool
	fails := []string{"refused", string(status.CodeNothingCaptured)}
	cmd, c := p.settingsCommand("check-manifests [--as-injected] PATH…", "Say of all pods and workloads in files and folders what the plugin would make of them; fail if it is not as it should be", func(c *common, _ *cobra.Command) error {
		var unknown []string
		for _, kind := range fails {
			if !slices.Contains(explain.FindingKinds, kind) {
				unknown = append(unknown, kind)
			}
		}
		switch {
		case len(paths) == 0:
			return cli.Usagef("name files or folders with manifests; - is standard input")
		case len(unknown) > 0:
			return cli.Usagef("--fail-on %s: not one of %s", strings.Join(unknown, ","), strings.Join(explain.FindingKinds, ", "))
		}
		var err error
		if check.Files, err = c.manifests(paths); err != nil {
			return err
		}
		check.Lenient = !strict
		check.Each = explain.Input{Identity: c.Identity, Facts: c.Facts, Configuration: c.config}
		report := explain.CheckManifests(c.meshes, check)
		failing := report.Failing(fails...)
		if err := print.Print(c.Stdout, report, failing, fails); err != nil {
			return err
		}
		if len(report.Pods)+len(report.Unreadable)+len(report.PassedOver) == 0 {
			return errors.New("no manifest is in what was given")
		}
		if len(failing) > 0 {
			return errSilent
		}
		return nil
	})
	c.many = true
	cmd.Long = "Exits 0; 1 if a finding is of a kind of --fail-on, or a manifest cannot be read or decided; 2 usage.\n" +
		"Kinds of findings: " + strings.Join(explain.FindingKinds, ", ") + ".\nNamespaces among the manifests are looked at for the pods in them."
	flags := cmd.Flags()
	flags.StringVar(&c.configFile, "config", "", "the network configuration with the plugin's entry: a file, a directory, or - for standard input (default: none)")
	flags.StringArrayVarP(&paths, "file", "f", nil, "a file or folder too, as the arguments are (repeatable)")
	flags.StringVarP(&check.Namespace, "namespace", "n", "default", "namespace of objects that name none")
	flags.BoolVar(&check.AsInjected, "as-injected", false, "put the mesh's proxy into pods without one, as its injector would; a namespace that is not among the manifests asks for it")
	flags.BoolVar(&strict, "strict", true, "fail on fields that this program's version of Kubernetes does not have")
	flags.Var(cli.List(&fails, "a,b"), "fail-on", "kinds of findings that fail the check")
	print.Describe(cmd)
	run := cmd.RunE
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if paths = append(paths, args...); c.configFile == "-" && slices.Contains(paths, "-") {
			return cli.Usagef("the manifests and --config: only one of them can be standard input")
		}
		return run(cmd, args)
	}
	return cmd
}

// manifests reads files, those of YAML and JSON in folders, and standard input.
func (c *common) manifests(paths []string) (map[string][]byte, error) {
	files, total := map[string][]byte{}, 0
	var errs []error
	read := func(name, as string) {
		if _, ok := files[as]; ok || total > maxManifests {
			return
		}
		text, err := c.streams().ReadUpTo(name, maxManifests)
		if err == nil && len(files) == maxManifestFiles {
			err = fmt.Errorf("%s: more than %d files: check the rest by itself", name, maxManifestFiles)
		}
		if total += len(text); err == nil && total > maxManifests {
			err = fmt.Errorf("%s: more than %d MiB of manifests: check the rest by itself", name, maxManifests>>20)
		}
		if err != nil {
			errs = append(errs, err)
			return
		}
		files[as] = text
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case path == "-":
			read(path, "standard input")
		case err == nil && info.IsDir():
			found, err := manifestsIn(path)
			errs = append(errs, err)
			for _, name := range found {
				read(name, filepath.ToSlash(name))
			}
		case err == nil && info.Mode().IsRegular() && info.Size() > maxManifests:
			errs = append(errs, fmt.Errorf("read %s: larger than %d MiB", path, maxManifests>>20))
		default:
			read(path, filepath.ToSlash(path))
		}
	}
	return files, errors.Join(errs...)
}

// manifestsIn lists the files of YAML and JSON in a folder and those below, but for what is hidden. Links to folders are followed, each
// folder once.
func manifestsIn(folder string) (names []string, err error) {
	seen := map[string]bool{}
	var walk func(folder string) error
	walk = func(folder string) error {
		real, err := filepath.EvalSymlinks(folder)
		if err != nil || seen[real] {
			return err
		}
		seen[real] = true
		entries, err := os.ReadDir(folder)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := filepath.Join(folder, e.Name())
			manifest := slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(name)))
			if strings.HasPrefix(e.Name(), ".") {
				continue
			}
			info, err := os.Stat(name)
			switch {
			case err != nil && (manifest || e.IsDir()):
				return err
			case err != nil: // a link to nothing, which nobody takes for a manifest
			case info.IsDir():
				if err := walk(name); err != nil {
					return err
				}
			case manifest && !info.Mode().IsRegular():
				return fmt.Errorf("%s: it is no file", name)
			case manifest:
				names = append(names, name)
			}
		}
		return nil
	}
	if err = walk(folder); err == nil && len(names) == 0 {
		err = fmt.Errorf("%s: no .yaml, .yml or .json is in the folder", folder)
	}
	return names, err
}
