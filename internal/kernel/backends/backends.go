//go:build linux

// Package backends finds out which backends can write pods' rules on this host. That a program or a module is there says little, so each backend
// writes rules in an empty network namespace, as the plugin does in a pod's. What the agent finds, it leaves in the run directory for the plugin.
package backends

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Trial is rules that need something of the host.
type Trial struct {
	Name string
	// Needed: a backend without it is of no use.
	Needed    bool
	Redirects []redirect.Redirect
}

// Sidecars returns rules of a pod with a proxy, with every match and target that its settings alone can need in a family.
func Sidecars(family ruleset.Family) redirect.Redirect {
	r := redirect.Default()
	r.Proxy.GIDs = []uint32{1337}
	r.Inbound.ExcludePorts, r.Outbound.ExcludePorts = redirect.Ports(15020, 15021, 15090), redirect.Ports(443, 3306)
	if r.IPv6 = redirect.FamilyPass; family == ruleset.IPv6 {
		r.IPv4, r.IPv6 = redirect.FamilyPass, redirect.FamilyCapture
	}
	return r
}

// Finding is the outcome of a backend's trials.
type Finding struct {
	Backend ruleset.Backend
	// Refused has the reasons by the trial's name, and Why the first of these in one line.
	Refused map[string]error
	Why     string
	// Useless: a trial that is needed was refused.
	Useless bool
	// Unknown: it cannot be tried. Absent: the host has no program of it.
	Unknown, Absent error
}

// Found are the findings, in the order in which backends are chosen.
type Found []Finding

var all = []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy, ruleset.BackendNftables}

// wanted reports whether a name stands for the backend.
func wanted(name, backend ruleset.Backend) bool {
	switch name {
	case ruleset.BackendAuto, "":
		return true
	case ruleset.BackendIptables:
		return backend != ruleset.BackendNftables
	}
	return name == backend
}

// Try has every backend try all. A nil blind says that the programs of o.Root are the host's. The kernel loads its modules, as it does for the
// first pod; those of iptables-legacy only where somebody has them, or nothing else will do.
func Try(ctx context.Context, o apply.Options, blind error, trials []Trial) (found Found) {
	for _, name := range all {
		if name == ruleset.BackendIptablesLegacy && o.Backend != name && len(found) > 0 && found[0].whole() && !legacyThere() {
			continue
		}
		found = append(found, try(ctx, name, o, blind, trials))
	}
	return found
}

// legacyThere reports whether the kernel has the tables of iptables-legacy.
func legacyThere() bool {
	_, err := os.Stat("/proc/thread-self/net/ip_tables_names")
	return err == nil
}

func try(ctx context.Context, name ruleset.Backend, o apply.Options, blind error, trials []Trial) Finding {
	f := Finding{Backend: name, Refused: map[string]error{}}
	if blind != nil && name != ruleset.BackendNftables {
		f.Unknown = blind
		return f
	}
	for _, t := range trials {
		for _, r := range t.Redirects {
			refused := false
			if refused, f.Absent, f.Unknown = write(ctx, name, o, r, &f, t); f.Absent != nil || f.Unknown != nil {
				return f
			}
			if refused {
				f.Useless = f.Useless || t.Needed
				break
			}
		}
	}
	return f
}

// write makes rules in a namespace that ends with it.
func write(ctx context.Context, name ruleset.Backend, o apply.Options, r redirect.Redirect, f *Finding, t Trial) (refused bool, absent, unknown error) {
	rules, err := r.Ruleset()
	if err != nil {
		return false, nil, err
	}
	ns, err := netnsexec.New()
	if err != nil {
		return false, nil, err
	}
	defer func() { _ = ns.Close() }()
	o.Backend = name
	b, err := apply.Choose(ctx, ns, o)
	if errors.Is(err, apply.ErrNoBackend) {
		return false, err, nil
	}
	if err != nil {
		return false, nil, err
	}
	if _, err = b.Apply(ctx, rules); err == nil {
		return false, nil, nil
	}
	// In a container some things are not permitted that the plugin may do.
	text := err.Error()
	if ctx.Err() != nil || errors.Is(err, fs.ErrPermission) || strings.Contains(text, "ermission denied") || strings.Contains(text, "not permitted") {
		return false, nil, err
	}
	if f.Refused[t.Name] = err; f.Why == "" {
		text, _, _ = strings.Cut(text, "; backend: ") // the remedy is another here
		f.Why = t.Name + ": " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
	}
	return true, nil, nil
}

// whole reports whether a backend does all.
func (f Finding) whole() bool { return len(f.Refused) == 0 && f.Unknown == nil && f.Absent == nil }

// of returns the findings of what a name stands for and the host has.
func (f Found) of(name ruleset.Backend) Found {
	return slices.DeleteFunc(slices.Clone(f), func(x Finding) bool { return !wanted(name, x.Backend) || x.Absent != nil })
}

// Known reports whether nothing that the name stands for is unknown.
func (f Found) Known(name ruleset.Backend) bool {
	return len(f) > 0 && !slices.ContainsFunc(f.of(name), func(x Finding) bool { return x.Unknown != nil })
}

// Broken returns the backends that a name stands for and that are to be passed over, and why: where one does all, those that do not; else those
// that are of no use.
func (f Found) Broken(name ruleset.Backend) map[ruleset.Backend]string {
	broken := map[ruleset.Backend]string{}
	candidates := f.of(name)
	one := slices.ContainsFunc(candidates, Finding.whole)
	for _, x := range candidates {
		if x.Useless || one && len(x.Refused) > 0 {
			broken[x.Backend] = x.Why
		}
	}
	return broken
}

// First returns the finding of the backend that an empty namespace would get; nil: there is none.
func (f Found) First(name ruleset.Backend) *Finding {
	broken, candidates := f.Broken(name), f.of(name)
	for i, x := range candidates {
		if broken[x.Backend] == "" {
			return &candidates[i]
		}
	}
	if len(candidates) > 0 {
		return &candidates[0]
	}
	return nil
}

// Err returns an error if no backend that the name stands for is of use, and says which other is. What is unknown may be.
func (f Found) Err(name ruleset.Backend) error {
	var errs []error
	for _, x := range f {
		if !wanted(name, x.Backend) {
			continue
		}
		switch {
		case x.Absent != nil:
			errs = append(errs, x.Absent)
		case !x.Useless:
			return nil
		default:
			errs = append(errs, fmt.Errorf("%s refuses pods' rules: %s", x.Backend, x.Why))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	remedy := "no backend works here: load the modules that are named"
	for _, x := range f {
		if x.whole() {
			remedy = fmt.Sprintf("set backend: %s, which works here", x.Backend)
		}
	}
	return fmt.Errorf("%w, with backend: %s; %s: %w", apply.ErrNoBackend, cmp.Or(name, ruleset.BackendAuto), remedy, errors.Join(errs...))
}

// answer is the file's content.
type answer struct {
	Kernel  string                     `json:"kernel"`
	Backend ruleset.Backend            `json:"backend"`
	Broken  map[ruleset.Backend]string `json:"broken"`
}

const (
	file     = "backends.json"
	maxBytes = 64 << 10
)

// Write tells the plugin what to pass over.
func (f Found) Write(runDir string, name ruleset.Backend) error {
	text, err := json.Marshal(answer{release(), name, f.Broken(name)})
	if err != nil {
		return err
	}
	return diskfile.Write(filepath.Join(runDir, file), text, 0o644)
}

// Forget takes it back.
func Forget(runDir string) error {
	err := os.Remove(filepath.Join(runDir, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Read returns what the agent has found for a name with this kernel. ok: it has tried.
func Read(runDir string, name ruleset.Backend) (broken map[ruleset.Backend]string, ok bool) {
	f, err := os.OpenFile(filepath.Join(runDir, file), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, false
	}
	defer func() { _ = f.Close() }()
	var a answer
	text, err := io.ReadAll(io.LimitReader(f, maxBytes))
	if err != nil || json.Unmarshal(text, &a) != nil || a.Kernel != release() || a.Backend != name {
		return nil, false
	}
	return a.Broken, true
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// Usable returns an error if no backend that the name stands for can write the rules of pods with a proxy. It tries them until one does.
func Usable(ctx context.Context, name ruleset.Backend) error {
	trials := []Trial{{Name: "redirection", Needed: true, Redirects: []redirect.Redirect{Sidecars(ruleset.IPv4)}}}
	var found Found
	for _, b := range all {
		x := try(ctx, b, apply.Options{}, nil, trials)
		found = append(found, x)
		if !wanted(name, b) {
			continue
		}
		if x.whole() {
			return nil
		}
		if x.Unknown != nil {
			return apply.Available(apply.Options{Backend: name})
		}
	}
	return found.Err(name)
}
