package apply

import (
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Runner starts a process in the namespace and waits for it. It is the one
// seam for processes; *netnsexec.NetNS and *netnsexec.Sandbox have it.
type Runner interface {
	Run(cmd *exec.Cmd) error
}

// Namespace is a pod's network namespace; *netnsexec.NetNS has it.
type Namespace interface {
	Runner
	// Do runs fn on a thread in the namespace.
	Do(fn func() error) error
	// Socket opens a socket in the namespace, for use from any thread.
	Socket(domain, typ, proto int) (fd int, err error)
}

// Result is what an Apply did.
type Result struct {
	// Backend is the backend's name, one of those of [ParseBackend] less auto.
	Backend string
	// Changed is false when the live rules were as wanted already.
	Changed bool
	// Skipped are families that the namespace's kernel does not have.
	Skipped []ruleset.Family
	// Unusable are parts of the wanted programs, besides their rules, that the
	// namespace does not take now. The rules of their family are in force.
	Unusable []Unusable
	// Processes is how many were started, Transactions how many changes of
	// rules the kernel made.
	Processes, Transactions int
	// Duration is the wall time of the Apply.
	Duration time.Duration
}

// Left returns what each of Unusable is.
func (r Result) Left() (what []string) {
	for _, u := range r.Unusable {
		what = append(what, u.What)
	}
	return what
}

// Unusable is an address or a route that a program needs and cannot have, since
// IPv6 is switched off in the namespace or on its lo. It is no failure: where it
// is off there is nothing to capture. Check does not report it missing until IPv6 is
// switched on; the next Apply then makes it.
type Unusable struct {
	Family ruleset.Family
	// What is the part, as an iproute2 command.
	What string
	// Reason says in words why it cannot be had.
	Reason string
}

// String returns for example "ipv6: IPv6 is switched off on lo (sysctl
// net.ipv6.conf.lo.disable_ipv6), so left out: ip -6 addr add ::6/128 dev lo".
func (u Unusable) String() string {
	return fmt.Sprintf("%s: %s, so left out: %s", u.Family, u.Reason, u.What)
}

// ErrNoBackend says that rules cannot be applied on this host now: no usable
// iptables and no usable nftables. Check with errors.Is(err, apply.ErrNoBackend).
var ErrNoBackend = errors.New("no usable firewall backend")

// FamilyError is the failure of one family. Get at it with errors.As. The
// other family is then as it was before.
type FamilyError struct {
	Family ruleset.Family
	// Op is "apply", "check" or "remove".
	Op  string
	Err error
}

// Error returns for example "apply ipv6 rules: ip6tables-restore: exit status 2: ...".
func (e *FamilyError) Error() string { return fmt.Sprintf("%s %s rules: %v", e.Op, e.Family, e.Err) }

// Unwrap returns the cause.
func (e *FamilyError) Unwrap() error { return e.Err }

// NFT returns the ruleset as input for nft -f: one transaction that replaces an
// earlier program of the same owner. It has the same rules that the
// nftables backend writes. It is empty if no family has a program. Policy routing, which nftables
// lacks, is in comments as iproute2 commands.
func NFT(rs ruleset.Ruleset) string { return nft.Text(rs) }
