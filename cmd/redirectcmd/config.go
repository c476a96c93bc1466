package redirectcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/files/confdir"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// defaultConfDirs are the runtime's configuration directory as the agent's container has it, and as the node has it.
var defaultConfDirs = []string{"/host/etc/cni/net.d", "/etc/cni/net.d"}

const none = "none"

// configure takes the settings that no flag gives from the installed configuration.
func (c *common) configure() error {
	e, err := c.installed()
	var no *netconf.NoEntryError
	switch {
	case errors.As(err, &no) && c.configFile == "":
		c.config = explain.Configuration{None: no.Why, Expected: !no.NoDir}
		return nil
	case err != nil && c.configFile != "":
		return fmt.Errorf("--config: %w", err)
	case err != nil:
		return fmt.Errorf("%w\n%w", err, errors.New("--config FILE gives the configuration, --config none goes without one"))
	case e.File == "":
		c.config = explain.NoConfiguration
		return nil
	}
	c.config = explain.Configuration{File: e.File, Loaded: e.Loaded, Expected: true}
	return errors.Join(c.take(reflect.ValueOf(e.Config)), c.take(reflect.ValueOf(e.Kubernetes)), c.takeMeshes(e.Meshes))
}

// takeMeshes takes the meshes' own settings, but for those that were typed.
func (c *common) takeMeshes(meshes map[string]json.RawMessage) error {
	typed := map[pflag.Value]string{}
	c.flags.Visit(func(f *pflag.Flag) {
		if _, ok := f.Value.(*cli.MeshSetting); ok {
			c.config.Flags, typed[f.Value] = append(c.config.Flags, "--"+f.Name), f.Value.String()
		}
	})
	c.plugin.Meshes = meshes
	var errs []error
	for setting, text := range typed {
		errs = append(errs, setting.Set(text))
	}
	return errors.Join(errs...)
}

// take gives the flags that were not typed the values of the keys of their names.
func (c *common) take(keys reflect.Value) error {
	var errs []error
	for i := range keys.NumField() {
		key, _, _ := strings.Cut(keys.Type().Field(i).Tag.Get("json"), ",")
		f := c.flags.Lookup(strings.ReplaceAll(key, "_", "-"))
		switch {
		case f == nil: // not about a single pod
		case f.Changed:
			c.config.Flags = append(c.config.Flags, "--"+f.Name)
		default:
			value := fmt.Sprint(keys.Field(i))
			if list, ok := keys.Field(i).Interface().([]string); ok {
				value = strings.Join(list, ",")
			}
			if value == "" {
				break // the flag's default is the key's
			}
			if err := f.Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %w", c.config.File, key, err))
			}
		}
	}
	return errors.Join(errs...)
}

// origin says for an error where a setting comes from: the flag, or the installed configuration's key.
func (c *common) origin(flag, key string) string {
	if c.config.File == "" || slices.Contains(c.config.Flags, "--"+flag) {
		return "--" + flag
	}
	return c.config.File + ": " + key
}

// installed finds the plugin's entry. Without an error and a file, none is wanted.
func (c *common) installed() (e netconf.Entry, err error) {
	if c.configFile == none || c.configFile == "" && c.file == "" && !c.optional { // then flags say what the rules are
		return e, nil
	}
	types, unread := c.types()
	info, statErr := os.Stat(c.configFile)
	if c.configFile == "" {
		e, err = c.installedHere(types)
	} else if statErr == nil && info.IsDir() {
		e, err = confdir.Entry(c.configFile, c.Identity, types)
	} else {
		var data []byte
		if data, err = c.streams().Read(c.configFile); err == nil {
			e, err = netconf.FindIn(c.configFile, data, c.Identity, types)
		}
	}
	if no := (*netconf.NoEntryError)(nil); unread != nil && errors.As(err, &no) && !no.NoDir {
		err = fmt.Errorf("%s, and whether it has another type is unknown: %w", no.Why, unread)
	}
	return e, err
}

// installedHere looks into the first directory of network configurations that is there.
func (c *common) installedHere(types []string) (e netconf.Entry, err error) {
	dirs := c.CNIConfDirs
	if dir, ok := c.Env(c.Identity.Env("cni-conf-dir")); ok && dir != "" {
		dirs = []string{dir}
	}
	for _, dir := range dirs {
		var no *netconf.NoEntryError
		if e, err = confdir.Entry(dir, c.Identity, types); !errors.As(err, &no) || !no.NoDir {
			return e, err
		}
	}
	if len(dirs) == 0 {
		return e, &netconf.NoEntryError{Why: "none is looked for", NoDir: true}
	}
	return e, &netconf.NoEntryError{Why: "no directory " + strings.Join(dirs, " or "), NoDir: true}
}

// types are the types that the plugin's entry may have: the usual one, and those on the agent's record, which it keeps for
// templates (--plugin-config).
func (c *common) types() (types []string, err error) {
	dirs := []string{c.Identity.RunDir, "/host/run/" + filepath.Base(c.Identity.RunDir)}
	if dir, ok := c.Env(c.Identity.Env("run-dir")); ok && dir != "" {
		dirs = []string{dir}
	}
	var errs []error
	types = []string{c.Identity.Plugin}
	for _, dir := range dirs {
		text, err := c.ReadFile(filepath.Join(dir, "types"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		types = append(types, strings.Fields(string(text))...)
	}
	return types, errors.Join(errs...)
}
