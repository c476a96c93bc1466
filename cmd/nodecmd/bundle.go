//go:build linux

package nodecmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/diagnosis/bundle"
	"github.com/meshcni/meshcni/internal/files/confdir"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/program/version"
)

func (p Program) bundleCommand() *cobra.Command {
	var output, hostRoot string
	var pods []string
	c := &cobra.Command{
		Use: "support-bundle", Short: "collect what a report about this node needs, without secrets, as a tar.gz",
		Long: `support-bundle reads and changes nothing. What it cannot read it names in the
bundle's errors.txt. It leaves out tokens, keys, kubeconfigs, and whatever it
does not know in other plugins' configurations; look through it all the same.`,
	}
	flags := c.Flags()
	flags.SortFlags = false
	flags.StringVarP(&output, "output", "o", "-", "a file that does not exist yet; - is standard output")
	flags.StringArrayVar(&pods, "pod", nil, "NAMESPACE/NAME of a pod here whose live rules are wanted too (repeatable; needs the rights to enter it)")
	flags.StringVar(&hostRoot, "host-root", "", "the host's root directory, with its iptables: /host in a pod of kubectl debug (default: --repair-host-root's, or our own)")
	s := p.defaults()
	s.register(flags, p.Dialects)
	c.RunE = func(c *cobra.Command, _ []string) error {
		for _, pod := range pods {
			if ns, name, ok := strings.Cut(pod, "/"); !ok || ns == "" || name == "" || strings.Contains(name, "/") {
				return cli.Usagef("--pod %q: not NAMESPACE/NAME", pod)
			}
		}
		n := nodeBundle{program: p, pods: pods, scrub: &bundle.Scrubber{}, flags: flags, hostRoot: hostRoot}
		return p.toOutput(output, func(w io.Writer) error { return n.write(c.Context(), w) })
	}
	return c
}

// toOutput gives write a file that does not exist yet, or standard output. Only root may read the file.
func (p Program) toOutput(name string, write func(io.Writer) error) error {
	if name == "-" {
		if f, ok := p.Stdout.(*os.File); ok {
			if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
				return cli.Usagef("--output: a terminal shows no archive: name a file")
			}
		}
		return write(p.Stdout)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", name, err), os.Remove(name))
	}
	return nil
}

// nodeBundle collects a bundle.
type nodeBundle struct {
	program  Program
	settings settings
	flags    *pflag.FlagSet
	types    []string // the plugin's
	pods     []string
	hostRoot string
	scrub    *bundle.Scrubber
	*bundle.Bundle
}

func (n *nodeBundle) write(ctx context.Context, w io.Writer) error {
	n.Bundle = bundle.New(w, n.program.Identity.Program("support"), n.scrub)
	s, err := n.program.resolve(n.flags)
	if err != nil {
		n.Fail("settings.txt", err)
	}
	n.settings = s
	if n.hostRoot == "" {
		n.hostRoot = s.HostRoot
	}
	n.secrets()
	n.versions()
	n.configuration()
	n.networks()
	n.installation()
	n.decisions(ctx)
	n.agent(ctx)
	n.host(ctx)
	return n.Close()
}

// secrets tells the scrubber those that it must find wherever they are.
func (n *nodeBundle) secrets() {
	if token, err := bundle.Read(filepath.Join(n.settings.ServiceAccountDir, "token")); err == nil {
		n.scrub.Know(string(token))
	}
	text, err := bundle.Kubeconfig(filepath.Join(n.settings.RunDir, n.settings.KubeconfigName), n.scrub)
	entries, _ := os.ReadDir(n.settings.CNIConfDir)
	for _, e := range entries { // those of other plugins
		if strings.Contains(e.Name(), "kubeconfig") {
			_, _ = bundle.Kubeconfig(filepath.Join(n.settings.CNIConfDir, e.Name()), n.scrub)
		}
	}
	n.Add("run/kubeconfig.txt", text, err)
}

func (n *nodeBundle) versions() {
	n.Add("version.txt", fmt.Appendf(nil, "%s %s\n%s %s/%s\ncollected at %s on node %q as user %d\n", n.program.Identity.Agent, cmp.Or(n.program.Identity.Version, version.Long()),
		runtime.Version(), runtime.GOOS, runtime.GOARCH, time.Now().UTC().Format(time.RFC3339), n.settings.Node, os.Getuid()), nil)
}

// configuration adds the settings that count, and the files that they come from.
func (n *nodeBundle) configuration() {
	s := n.settings
	resolved := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.register(resolved, n.program.Dialects)
	var b bytes.Buffer
	resolved.VisitAll(func(f *pflag.Flag) { fmt.Fprintf(&b, "%s: %s\n", f.Name, f.Value) })
	r := s.Repair
	fmt.Fprintf(&b, "repair-verify-interval: %s\nrepair-host-root: %s\nrepair-node-budget: %+v\n",
		r.VerifyInterval, s.HostRoot, r.NodeBudget)
	n.Add("settings.txt", b.Bytes(), nil)
	if s.configFile != "" {
		raw, err := readKeys(s.configFile)
		for key, value := range raw {
			if resolved.Lookup(key) == nil {
				raw[key] = fmt.Sprintf("no such key: %d bytes left out", len(fmt.Sprint(value)))
			}
		}
		text, yamlErr := yaml.Marshal(raw)
		n.Add("config.yaml", text, errors.Join(err, yamlErr))
	}
	entry, err := s.Entry()
	var typ struct{ Type string }
	_ = json.Unmarshal(entry, &typ)
	record, recordErr := bundle.Read(filepath.Join(s.RunDir, "types"))
	if recordErr != nil && !errors.Is(recordErr, fs.ErrNotExist) {
		n.Fail("run/types", recordErr)
	}
	n.types = slices.Compact(append([]string{s.Plugin.Type, typ.Type}, strings.Fields(string(record))...))
	n.network("entry-wanted.json", entry, err)
}

func (n *nodeBundle) network(name string, text []byte, err error) {
	if err == nil {
		text, err = bundle.NetworkConfig(text)
	}
	n.Add(name, text, err)
}

// networks adds the runtime's network configurations, and says which has the entry that counts.
func (n *nodeBundle) networks() {
	dir := n.settings.CNIConfDir
	list, err := bundle.List(dir)
	n.Add("net.d/list.txt", list, err)
	e, err := confdir.Entry(dir, n.program.Identity, n.types)
	said := fmt.Sprintf("the entry is in %s\n", e.File)
	if e.Loaded != "" {
		said += fmt.Sprintf("the runtime loads %s\n", e.Loaded)
	}
	meshes, wrong := dialect.Configure(n.program.Dialects, e.Config)
	if unknown := meshes.Unknown(e.Unknown); len(unknown) > 0 {
		said += fmt.Sprintf("unknown keys: %s\n", strings.Join(unknown, ", "))
	}
	if wrong != nil {
		said += wrong.Error() + "\n"
	}
	if err != nil {
		said = err.Error() + "\n"
	}
	n.Add("net.d/installed.txt", []byte(said), nil)
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil:
			n.Fail("net.d/"+name, err)
		case e.IsDir() && strings.Count(name, "/") > 0:
			return fs.SkipDir
		case !e.IsDir() && (strings.Contains(name, ".conf") || strings.Contains(name, ".json")):
			text, err := bundle.Read(path)
			n.network("net.d/"+name, text, err)
		}
		return nil
	})
}

// installation adds what the agent has put onto the node.
func (n *nodeBundle) installation() {
	s := n.settings
	var b bytes.Buffer
	dirs := append([]string{s.RunDir, s.BinSourceDir}, s.CNIBinDirs...)
	for _, dir := range dirs {
		text, err := bundle.List(dir)
		b.Write(append(text, '\n'))
		if err != nil {
			n.Fail("files.txt", err)
		}
	}
	for _, dir := range dirs[1:] {
		for _, name := range append(slices.Clone(n.types), s.BinaryName) {
			if text, err := bundle.Digest(filepath.Join(dir, name)); err == nil {
				b.Write(text)
			}
		}
	}
	n.Add("files.txt", b.Bytes(), nil)
	text, err := bundle.Read(filepath.Join(s.RunDir, "status.json"))
	if !errors.Is(err, fs.ErrNotExist) {
		n.Add("run/status.json", text, err)
	}
	cache, err := bundle.Cache(s.CNICacheDir, n.types)
	n.Add("cni-cache.txt", cache, err)
}

// maxLogs bounds the plugin's logs that are taken; it keeps fewer.
const maxLogs = 8

// decisions adds the plugin's log and records, and the rules of the pods that are asked for.
func (n *nodeBundle) decisions(ctx context.Context) {
	logs, _ := filepath.Glob(filepath.Join(n.settings.RunDir, "plugin.log*")) // the pattern is well-formed
	if len(logs) == 0 {
		n.Fail("run/plugin.log", &fs.PathError{Op: "open", Path: filepath.Join(n.settings.RunDir, "plugin.log"), Err: fs.ErrNotExist})
	}
	for _, path := range logs[:min(len(logs), maxLogs)] {
		text, err := bundle.ReadEnd(path)
		n.Add("run/"+filepath.Base(path), text, err)
	}
	known := inventory.New(inventory.Options{Records: attachment.Open(n.settings.RunDir), CacheDir: n.settings.CNICacheDir})
	text, records, err := bundle.Records(known)
	n.Add("run/attachments.jsonl", text, err)
	for _, pod := range n.pods {
		i := 0
		for r := range slices.Values(records) {
			if r.Pod.Namespace+"/"+r.Pod.Name != pod {
				continue
			}
			i++
			text, err := bundle.Rules(ctx, known, r, n.hostRoot)
			n.Add(fmt.Sprintf("pods/%s-%d.json", strings.ReplaceAll(pod, "/", "_"), i), text, err)
		}
		if i == 0 {
			n.Fail("pods/"+pod, errors.New("the plugin has no record of the pod"))
		}
	}
}

// agent adds what a running agent says of itself.
func (n *nodeBundle) agent(ctx context.Context) {
	for _, ask := range []struct{ address, path string }{
		{n.settings.HealthAddress, "/healthz"}, {n.settings.HealthAddress, "/readyz"}, {n.settings.MetricsAddress, "/metrics"},
	} {
		name := "agent" + ask.path + ".txt"
		if ask.address == "" {
			n.Fail(name, errors.New("the agent serves it nowhere"))
			continue
		}
		text, err := bundle.Get(ctx, ask.address, ask.path)
		n.Add(name, text, err)
	}
}

func (n *nodeBundle) host(ctx context.Context) {
	text, err := bundle.Kernel(n.hostRoot)
	n.Add("host/kernel.txt", text, err)
	text, err = bundle.Programs(ctx, n.hostRoot)
	n.Add("host/programs.txt", text, err)
}
