package apply

import (
	"context"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Backend applies rules to one namespace. A call that fails restores the rules
// that it found, or its error says that it could not.
type Backend interface {
	// Name is never ruleset.BackendAuto or ruleset.BackendIptables.
	Name() ruleset.Backend
	// Apply makes the live rules those of rs, which must be valid: see [ruleset.Ruleset.Validate]. So the zero Ruleset, as of a plan that
	// came with an error, is an error here and in Check.
	Apply(ctx context.Context, rs ruleset.Ruleset) (Result, error)
	// Check returns the differences between the live rules and rs, or nil.
	Check(ctx context.Context, rs ruleset.Ruleset) ([]ruleset.Difference, error)
	// Remove removes the owner's rules and routing, whichever backend made them,
	// and so restores the namespace as it was before the first Apply.
	Remove(ctx context.Context, owner ruleset.Ownership) error
}

// Options are for [Choose], [Available] and [Live]. The zero value is enough.
type Options struct {
	// Backend is the backend to use; empty is [ruleset.BackendAuto].
	Backend ruleset.Backend
	// Runner starts the iptables programs. Nil is the Sandbox of a *netnsexec.NetNS, which keeps
	// the host's name service and xtables lock out of the way, and any other Namespace itself.
	Runner Runner
	// Path lists the directories with the iptables programs, as $PATH does; empty is [DefaultPath].
	Path string
	// Broken are backends that are known not to work on this host, and why. [ruleset.BackendAuto] and [ruleset.BackendIptables] pass over
	// them, unless there is no other. Nil: none is.
	Broken map[ruleset.Backend]string
	// Root is the root directory of the iptables programs, for a container without programs of its own; empty is the
	// process's own root. "/proc/1/root" is the host's, in a container that shares the host's PID namespace. It needs
	// CAP_SYS_CHROOT. [Choose] and [Available] fail if it cannot be read.
	Root string
}

// DefaultPath lists the directories in which distributions install iptables. The
// process's own PATH is not used, because container runtimes often set none.
const DefaultPath = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin:/usr/local/bin"
