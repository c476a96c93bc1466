package apply

import (
	"context"
	"fmt"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Name is a backend as configuration calls it.
type Name string

// The backends.
const (
	// Auto is iptables when a usable binary is on the host, else nftables.
	Auto Name = "auto"
	// Iptables is the variant in use in the namespace, else nft, else legacy.
	Iptables       Name = "iptables"
	IptablesNFT    Name = "iptables-nft"
	IptablesLegacy Name = "iptables-legacy"
	Nftables       Name = "nftables"
)

var names = []Name{Auto, Iptables, IptablesNFT, IptablesLegacy, Nftables}

// ParseBackend reads a backend's name; empty is [Auto].
func ParseBackend(s string) (Name, error) {
	if s == "" {
		return Auto, nil
	}
	for _, n := range names {
		if string(n) == s {
			return n, nil
		}
	}
	return "", fmt.Errorf("backend %q: not one of auto, iptables, iptables-nft, iptables-legacy, nftables", s)
}

// Backend puts rules into one namespace. The context bounds each call; a
// failure leaves the namespace as it was found, or says that it could not.
type Backend interface {
	// Name is the backend's, never Auto or Iptables.
	Name() Name
	// Apply makes the live rules those of rs.
	Apply(ctx context.Context, rs ruleset.Ruleset) (Result, error)
	// Check returns how the live rules differ from rs; nil when they don't.
	Check(ctx context.Context, rs ruleset.Ruleset) ([]ruleset.Difference, error)
	// Remove takes out all rules and routing of the owner, whichever backend
	// made them, and leaves the namespace as it was before the first Apply.
	Remove(ctx context.Context, owner ruleset.Owner) error
}

// Options are for [Choose], [Available] and [Live]. The zero value is enough.
type Options struct {
	// Backend is the one wanted; empty is [Auto].
	Backend Name
	// Runner starts the iptables programs. Nil is the Sandbox of a
	// *netnsexec.NetNS, which keeps the host's name service and xtables lock out
	// of the way, and any other Namespace itself.
	Runner Runner
	// Path is where binaries are looked for, in the form of $PATH; empty is
	// [DefaultPath].
	Path string
	// Root is the root directory in which binaries are looked for and with which
	// they run, for a container that has none of its own; empty is our own root.
	// "/proc/1/root" is the host's in a container that shares the host's processes.
	// A Runner that covers files, such as *netnsexec.Sandbox, covers them there.
	// It needs CAP_SYS_CHROOT. A directory that cannot be read is an error of
	// [Choose] and [Available]: not to know is not the same as to find nothing.
	Root string
}

// DefaultPath has the directories in which distributions install iptables. The
// process's own PATH is not asked: container runtimes often set none.
const DefaultPath = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin:/usr/local/bin"
