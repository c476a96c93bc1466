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
	candidates := []Name{IptablesNFT, IptablesLegacy, Nftables}
	switch o.Backend {
	case Iptables:
		candidates = candidates[:2]
	case IptablesNFT, IptablesLegacy, Nftables:
		candidates = []Name{o.Backend}
	}
	var errs []error
	for _, name := range candidates {
		var err error
		if name != Nftables {
			_, err = o.tools(name)
		} else if _, lerr := listTables(); lerr != nil { // a pod's namespace has the same kernel
			err = fmt.Errorf("%w: nftables: %w", ErrNoBackend, lerr)
		}
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Choose returns the backend for a namespace and starts no process. For [Auto] and [Iptables] it takes the variant that
// is in use in the namespace if its programs are on the host, else nft before legacy. A variant is in use if it has
// tables with rules; empty legacy tables, which nobody can remove, do not count.
//
// [Auto] takes native nftables if the host has no iptables programs, and for a namespace that belongs to another user
// namespace, as that of a pod with hostUsers: false: the kernel refuses iptables' owner match there.
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
	case IptablesNFT, IptablesLegacy:
		return backend(newIPTables(ns, o.Backend, o))
	case Nftables:
		return native{newNFTables(ns), o}, nil
	case Auto, Iptables, "":
	default:
		_, err := ParseBackend(string(o.Backend))
		return nil, err
	}
	if o.Backend != Iptables {
		foreign, err := ofAnotherUser(ns)
		if err != nil {
			return nil, fmt.Errorf("choose firewall backend: %w", err)
		}
		if foreign {
			return native{newNFTables(ns), o}, nil
		}
	}
	nft, errNFT := newIPTables(ns, IptablesNFT, o)
	legacy, errLegacy := newIPTables(ns, IptablesLegacy, o)
	switch {
	case nft == nil && legacy == nil && o.Backend == Iptables:
		return nil, errors.Join(errNFT, errLegacy)
	case nft == nil && legacy == nil:
		return native{newNFTables(ns), o}, nil
	case legacy == nil:
		return nft, nil
	case nft == nil:
		return legacy, nil
	}
	h, err := look(ns)
	if err != nil {
		return nil, fmt.Errorf("choose firewall backend: %w", err)
	}
	for _, f := range ruleset.Families {
		if h.usesNFT(f) {
			return nft, nil
		}
	}
	if h.noNFT || len(h.legacy[ruleset.IPv4])+len(h.legacy[ruleset.IPv6]) > 0 {
		return legacy, nil
	}
	return nft, nil
}

func backend(b *iptablesBackend, err error) (Backend, error) {
	if err != nil {
		return nil, err // not a nil *iptablesBackend in an interface
	}
	return b, nil
}
