//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

func (o Options) path() string {
	if o.Path == "" {
		return DefaultPath
	}
	return o.Path
}

// find returns the first executable of the name in the path.
func (o Options) find(name string) (string, bool) {
	for dir := range strings.SplitSeq(o.path(), ":") {
		full := filepath.Join(dir, name)
		if file, err := o.real(full); err != nil {
			continue
		} else if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return full, true
		}
	}
	return "", false
}

// Available returns nil if the backend could work on this host, as far as that is known without a
// namespace. The error is [ErrNoBackend], or that of an Options.Root that cannot be read.
func Available(o Options) error {
	if err := o.reachable(); err != nil {
		return err
	}
	var errs []error
	for _, name := range candidatesOf(o.Backend) {
		var err error
		if why := o.Broken[name]; why != "" {
			err = fmt.Errorf("%w: %s: %s", ErrNoBackend, name, why)
		} else if name != ruleset.BackendNftables {
			_, err = o.tools(name)
		} else if _, _, lerr := listTables(); lerr != nil { // a pod's namespace has the same kernel
			err = fmt.Errorf("%w: nftables: %w", ErrNoBackend, lerr)
		}
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// candidatesOf lists the backends that a name stands for, in the order in which they are tried in an empty namespace.
func candidatesOf(name ruleset.Backend) []ruleset.Backend {
	all := []ruleset.Backend{ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy, ruleset.BackendNftables}
	switch name {
	case ruleset.BackendIptables:
		return all[:2]
	case ruleset.BackendAuto, "":
		return all
	}
	return []ruleset.Backend{name}
}

// Choose returns the backend for a namespace and starts no process. For [ruleset.BackendAuto] and [ruleset.BackendIptables] it takes the variant that
// is in use in the namespace if its programs are on the host, else nft before legacy. A variant is in use if it has
// tables with rules; empty legacy tables, which nobody can remove, do not count.
//
// [ruleset.BackendAuto] takes native nftables if the host has no iptables programs, and for a namespace that belongs to another user
// namespace, as that of a pod with hostUsers: false: the kernel refuses iptables' owner match there. With both names, an Apply goes on to the
// next backend that the name stands for when a program or the kernel refuses the rules, and everything is as it was: see Result.Refused.
//
// The error is [ErrNoBackend] if what was asked for is missing, or the system's if Options.Root cannot be read.
func Choose(ctx context.Context, ns Namespace, o Options) (Backend, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("choose firewall backend: %w", context.Cause(ctx))
	}
	if err := o.reachable(); err != nil {
		return nil, fmt.Errorf("choose firewall backend: %w", err)
	}
	switch o.Backend {
	case ruleset.BackendIptablesNFT, ruleset.BackendIptablesLegacy:
		return backend(newIPTables(ns, o.Backend, o))
	case ruleset.BackendNftables:
		return native{newNFTables(ns), o}, nil
	case ruleset.BackendAuto, ruleset.BackendIptables, "":
	default:
		_, err := ruleset.ParseBackend(string(o.Backend))
		return nil, err
	}
	if o.Backend != ruleset.BackendIptables {
		foreign, err := ofAnotherUser(ns)
		if err != nil {
			return nil, fmt.Errorf("choose firewall backend: %w", err)
		}
		if foreign {
			return native{newNFTables(ns), o}, nil
		}
	}
	found, err := o.candidates(ns)
	if err != nil {
		return nil, fmt.Errorf("choose firewall backend: %w", err)
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return &fallback{all: found}, nil
}

// candidates are the backends of [ruleset.BackendAuto] or [ruleset.BackendIptables] that the host has, the best for the namespace first.
func (o Options) candidates(ns Namespace) (found []Backend, err error) {
	var errs []error
	for _, name := range candidatesOf(o.Backend) {
		switch why := o.Broken[name]; {
		case why != "":
			errs = append(errs, fmt.Errorf("%w: %s: %s", ErrNoBackend, name, why))
		case name == ruleset.BackendNftables:
			found = append(found, native{newNFTables(ns), o})
		default:
			b, err := newIPTables(ns, name, o)
			errs = append(errs, err)
			if err == nil {
				found = append(found, b)
			}
		}
	}
	switch {
	case len(found) == 0 && len(o.Broken) > 0: // what is known may be old
		o.Broken = nil
		return o.candidates(ns)
	case len(found) == 0:
		return nil, errors.Join(errs...)
	case len(found) == 1 || found[1].Name() == ruleset.BackendNftables:
		return found, nil
	}
	h, err := look(ns)
	if err != nil {
		return nil, err
	}
	if !h.usesNFT(ruleset.IPv4) && !h.usesNFT(ruleset.IPv6) && (h.noNFT || len(h.legacy[ruleset.IPv4])+len(h.legacy[ruleset.IPv6]) > 0) {
		found[0], found[1] = found[1], found[0]
	}
	return found, nil
}

func backend(b *iptablesBackend, err error) (Backend, error) {
	if err != nil {
		return nil, err // not a nil *iptablesBackend in an interface
	}
	return b, nil
}
