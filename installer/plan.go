//go:build linux

package installer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/conflist"
)

// Want is what a plan is to bring about.
type Want int

const (
	// Installed: the plugin in the file that the runtime loads, and all it needs before it.
	Installed Want = iota
	// Absent: nothing of ours, except a binary that attachments still need.
	Absent
)

// Steps are a plan.
type Steps struct {
	// Actions in the order to do them in. One that fails ends those that need it, and no others.
	Actions []Action
	// Target is the name of the file that holds our entry when all is done; empty when Blocked or Absent.
	Target string
	// Network is the target's network.
	Network string
	// Passed are the files that the runtime looks at before Target and cannot load.
	Passed []conflist.Skipped
	// Blocked says why the aim cannot be reached now, each reason by itself; Actions then go as far as is safe. Empty when
	// it can.
	Blocked []*Blocked
	// Notes are for the log: nothing is wrong yet, or nothing that we could mend.
	Notes []string
}

// Blocked is why pods cannot be captured on this node now.
type Blocked struct {
	// Code is stable: no-network, conf-unreadable, named-file-missing, no-inline-plugins, unsupported-version, conf-dir,
	// bin-dir, no-binary, no-credentials, token-expired, no-api-server, bad-entry, own-name-taken, sorts-later, fight,
	// write-failed, uninstalled, still-named, superseded, starting.
	Code string
	Err  error
}

func (b *Blocked) Error() string { return b.Code + ": " + b.Err.Error() }
func (b *Blocked) Unwrap() error { return b.Err }

// Err is nil when there is no reason, else a *[Blocked] or several joined.
func (s Steps) Err() error { return reasons(s.Blocked) }

func reasons(blocked []*Blocked) error {
	if len(blocked) == 1 {
		return blocked[0]
	}
	var errs []error
	for _, b := range blocked {
		errs = append(errs, b)
	}
	return errors.Join(errs...)
}

type planner struct {
	Steps
	c     Config
	want  Want
	o     Observed
	entry []byte
	typ   string
}

// Plan says what to do on a node where o was seen. It has no effects and reads nothing but its arguments.
//
// Binary and kubeconfig do not depend on each other; the list waits for both to be there. What is in the way of one holds
// up no other.
func Plan(c Config, want Want, o Observed) Steps {
	p := &planner{c: c, want: want, o: o}
	for _, path := range o.Stale {
		p.do(Action{Op: OpRemoveTemp, Path: path, Cause: "killed-run"})
	}
	var err error
	if p.entry, err = c.Entry(); err != nil {
		if want == Installed {
			p.block("bad-entry", err)
		}
		p.entry = nil
	}
	p.typ = pluginType(p.entry)
	switch {
	case want == Absent:
		p.uninstall()
	case p.entry != nil:
		p.install()
	default:
		p.kubeconfig() // which the entry that is there may need
	}
	if len(p.Blocked) > 0 {
		p.Target = ""
	}
	p.link()
	return p.Steps
}

func (p *planner) install() {
	binaries, kubeconfig := p.binaries(), p.kubeconfig()
	p.record()
	before := len(p.Actions)
	if conf := p.conf(); conf && binaries && kubeconfig {
		p.notes()
		return
	}
	p.Actions = p.Actions[:before]
}

func (p *planner) do(a Action) { p.Actions = append(p.Actions, a) }

func (p *planner) block(code string, err error) bool {
	if slices.ContainsFunc(p.Blocked, func(b *Blocked) bool { return b.Code == code && b.Err.Error() == err.Error() }) {
		return false // of two directories, perhaps
	}
	p.Blocked = append(p.Blocked, &Blocked{code, err})
	return false
}

func (p *planner) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

func (p *planner) path(name string) string { return filepath.Join(p.c.CNIConfDir, name) }

// binaries is true when every binary directory has, or will have had, the plugin before the list names it.
func (p *planner) binaries() bool {
	from := filepath.Join(p.c.BinSourceDir, PluginName)
	ok := true
	for _, dir := range p.o.BinDirs {
		to := filepath.Join(dir.Path, p.typ)
		switch {
		case dir.Err != nil:
			ok = p.block("bin-dir", explain(fmt.Errorf("reading the binary directory: %w", dir.Err), dir.Path))
		case dir.Current:
		case p.o.SourceErr != nil && dir.Usable:
			p.note("keeping the binary that is in %s: %v", dir.Path, p.o.SourceErr)
		case p.o.SourceErr != nil:
			ok = p.block("no-binary", explain(fmt.Errorf("reading the binary to install: %w", p.o.SourceErr), from))
		case dir.Usable:
			p.do(Action{Op: OpBinary, From: from, Path: to, Cause: "binary-changed"})
		default:
			p.do(Action{Op: OpBinary, From: from, Path: to, Cause: "binary-missing"})
		}
	}
	return ok
}

// record remembers a type that no default tells, for an uninstall that is not told it either.
func (p *planner) record() {
	if p.typ != PluginName && !slices.Contains(p.o.Types, p.typ) {
		p.do(Action{Op: OpRecord, Path: p.c.record(), New: recordOf(append(slices.Clone(p.o.Types), p.typ)), Cause: "type-new"})
	}
}

func (p *planner) kubeconfig() bool {
	if p.o.CredentialsErr != nil {
		err := fmt.Errorf("reading the service account: %w (mount it at %s, or set --service-account-dir)", p.o.CredentialsErr, p.c.ServiceAccountDir)
		if p.o.Kubeconfig == nil {
			return p.block("no-credentials", err)
		}
		p.note("keeping the kubeconfig that is there: %v", err) // a rotation is under way, perhaps
		return true
	}
	if p.c.KubernetesHost == "" {
		return p.block("no-api-server", errors.New("the API server's address is unknown: set KUBERNETES_SERVICE_HOST or --kubernetes-service-host"))
	}
	if data, cause := wantKubeconfig(p.c, p.o); cause != "" {
		p.do(Action{Op: OpKubeconfig, Path: p.c.kubeconfig(), New: data, Cause: cause})
	}
	return true
}

func (p *planner) conf() bool {
	if p.o.Net == nil {
		return p.block("conf-dir", explain(fmt.Errorf("reading the configuration directory: %w", p.o.NetErr), p.c.CNIConfDir))
	}
	switch {
	case !p.c.Chained:
		return p.standalone()
	case p.c.OwnFile:
		return p.ownFile()
	}
	return p.chained()
}

func (p *planner) chained() bool {
	choice, ok := p.choose()
	if !ok {
		return false
	}
	p.Passed, p.Network = choice.Skipped, choice.File.Network()
	if choice.File.IsList() {
		p.Target = choice.Name
		found := choice.File.Bytes()
		with, err := conflist.Insert(found, p.entry)
		switch {
		case errors.Is(err, conflist.ErrNoInlinePlugins):
			return p.block("no-inline-plugins", fmt.Errorf("%s: %w: use --own-file or --cni-conf-name", choice.Name, err))
		case err != nil:
			return p.block("bad-entry", fmt.Errorf("%s: %w", choice.Name, err))
		case !p.speaks(choice.Name, with):
			return false
		case bytes.Equal(with, found):
		case choice.File.Has(p.typ):
			p.do(Action{Op: OpReplace, Path: p.path(choice.Name), Old: found, New: with, Cause: "entry-changed"})
		default:
			p.do(Action{Op: OpReplace, Path: p.path(choice.Name), Old: found, New: with, Cause: "entry-removed"})
		}
	} else if !p.convert(choice) {
		return false
	}
	p.stripExcept(p.Target, false)
	return true
}

// speaks refuses a list in whose version the plugin would answer every call with an error: no pod could start.
func (p *planner) speaks(name string, list []byte) bool {
	f, err := conflist.Parse(list)
	if err != nil || p.o.Supports == nil {
		return true
	}
	version := f.CNIVersion()
	if version == "" {
		version = "0.1.0" // what the specification takes it for
	}
	if slices.Contains(p.o.Supports, version) {
		return true
	}
	return p.block("unsupported-version", fmt.Errorf("%s has cniVersion %q, and the plugin speaks %s: with it in that list no pod could start; "+
		"have the network's owner declare one of these", name, f.CNIVersion(), strings.Join(p.o.Supports, ", ")))
}

// choose finds the file to chain into: the named one, or the one that the runtime loads, ours apart.
func (p *planner) choose() (conflist.Choice, bool) {
	if p.c.CNIConfName == "" || !p.c.Chained || p.c.OwnFile {
		choice, err := conflist.Primary(p.o.Net, p.oursAlone()...)
		if err != nil {
			return choice, p.noChoice(err)
		}
		return choice, true
	}
	named := p.c.CNIConfName
	stem := strings.TrimSuffix(named, filepath.Ext(named))
	var errs []error
	for _, name := range slices.Compact([]string{named, stem + ".conf", stem + ".conflist"}) {
		data, err := fs.ReadFile(p.o.Net, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var f *conflist.File
		if err == nil {
			if f, err = conflist.ParseFile(name, data); err == nil {
				return conflist.Choice{Name: name, File: f}, true
			}
		}
		if !conflist.PassedOver(err) {
			return conflist.Choice{}, p.unreadable(name, err)
		}
		errs = append(errs, fmt.Errorf("%s: %w", name, err))
	}
	if len(errs) == 0 {
		errs = append(errs, errors.New("no such file"))
	}
	return conflist.Choice{}, p.block("named-file-missing", fmt.Errorf("looking for %s in %s: %w", named, p.c.CNIConfDir, errors.Join(errs...)))
}

// noChoice says why there is no file to go by. One that cannot be read is not one that is not there: the runtime may load it,
// and then the next in line would be the wrong one to chain into.
func (p *planner) noChoice(err error) bool {
	var unreadable *conflist.UnreadableError
	if errors.As(err, &unreadable) {
		return p.unreadable(unreadable.Name, unreadable.Err)
	}
	return p.block("no-network", fmt.Errorf("%s: %w", p.c.CNIConfDir, err))
}

func (p *planner) unreadable(name string, err error) bool {
	return p.block("conf-unreadable", explain(fmt.Errorf("%w; nothing is changed until it can be read or is gone",
		&conflist.UnreadableError{Name: p.path(name), Err: err}), p.path(name)))
}

// oursAlone are the files that we made: not the owner's, whatever the runtime thinks.
func (p *planner) oursAlone() []string {
	names := []string{}
	for _, name := range []string{p.c.ownName(), Config{Chained: true}.ownName(), Config{}.ownName()} {
		if f := p.parse(name); f != nil && f.Has(p.typ) {
			names = append(names, name)
		}
	}
	return names
}

func (p *planner) parse(name string) *conflist.File {
	data, err := fs.ReadFile(p.o.Net, name)
	if err != nil {
		return nil
	}
	f, err := conflist.Parse(data)
	if err != nil {
		return nil
	}
	return f
}

func (p *planner) notes() {
	for _, s := range p.Passed {
		p.note("the runtime looks at %s before %s and cannot load it (containerd then loads none): %v", s.Name, p.Target, s.Err)
	}
	f := p.parse(p.Target)
	if f == nil {
		return
	}
	if v := f.CNIVersion(); v == "" || v == "0.1.0" || v == "0.2.0" {
		p.note("%s: cniVersion %q is older than chaining (0.3.0)", p.Target, v)
	}
	for _, plugin := range f.Plugins() {
		there := func(d BinDir) bool { return slices.Contains(d.Names, plugin.Type) }
		if plugin.Type != p.typ && !slices.ContainsFunc(p.o.BinDirs, there) {
			p.note("%s names the plugin %q, which is in no --cni-bin-dir: is that the runtime's directory?", p.Target, plugin.Type)
		}
	}
}
