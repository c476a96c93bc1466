package apply

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/meshcni/meshcni/redirect/internal/nft"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Runner runs a process in the namespace. *netnsexec.NetNS and *netnsexec.Sandbox implement it.
type Runner interface {
	Run(cmd *exec.Cmd) error
}

// doer runs fn on a thread in the namespace. *netnsexec.NetNS implements it.
type doer interface {
	Do(fn func() error) error
}

// Namespace is a pod's network namespace. *netnsexec.NetNS implements it.
type Namespace interface {
	Runner
	doer
	// Socket opens a socket in the namespace, for use from any thread.
	Socket(domain, typ, proto int) (fd int, err error)
}

// Result is the result of an Apply.
type Result struct {
	// Backend is the name of the backend, never auto or iptables.
	Backend ruleset.Backend
	// Changed is false if the live rules were already as wanted.
	Changed bool
	// Skipped lists the families that the kernel does not have.
	Skipped []ruleset.Family
	// Unusable lists addresses and routes that the namespace does not accept now.
	// The rules of their family are in force.
	Unusable []Unusable
	// Refused joins the errors of backends that were to be taken before this one, and left everything as it was; nil: none was.
	Refused error
	// Past lists, where others have rules too, the packets that do not meet what the rules are for, though these are there, and those of
	// which that cannot be told; see [ruleset.KindFate].
	Past []ruleset.Difference
	// Processes counts the processes that were started, Transactions the transactions that the kernel committed.
	Processes, Transactions int
	// Duration is the wall time of Apply.
	Duration time.Duration
}

// Left returns the What of each element of Unusable.
func (r Result) Left() (what []string) {
	for _, u := range r.Unusable {
		what = append(what, u.What)
	}
	return what
}

// Bypassed is an error if packets are known not to meet what the rules are for, and names the first of them; see Past.
func (r Result) Bypassed() error {
	past := ruleset.Certain(r.Past)
	if len(past) == 0 {
		return nil
	}
	first := past[:min(3, len(past))]
	text := make([]string, len(first))
	for i, d := range first {
		text[i] = d.String()
	}
	return fmt.Errorf("the rules are there, and packets do not come to them, by what others have put before them or beside them: %s", strings.Join(text, "; "))
}

// Unusable is an address or a route that cannot be added because IPv6 is disabled in the namespace
// or on its lo. It is not a failure, since there is then no IPv6 to capture. Once IPv6 is enabled,
// Check reports it missing and the next Apply adds it.
type Unusable struct {
	Family ruleset.Family
	// What is the iproute2 command that would add it.
	What string
	// Reason is the kernel's reason not to add it.
	Reason string
}

// String returns for example "ipv6: IPv6 is switched off on lo (sysctl
// net.ipv6.conf.lo.disable_ipv6), so left out: ip -6 addr add ::6/128 dev lo".
func (u Unusable) String() string {
	return fmt.Sprintf("%s: %s, so left out: %s", u.Family, u.Reason, u.What)
}

// ErrNoBackend says that rules cannot be applied on this host: it has no usable
// iptables and no usable nftables. Check with errors.Is(err, apply.ErrNoBackend).
var ErrNoBackend = errors.New("no usable firewall backend")

// familyError is the failure of one family. All rules are then as they were before.
type familyError struct {
	family ruleset.Family
	op     string // "apply", "check" or "remove"
	err    error
}

// Error returns for example "apply ipv6 rules: ip6tables-restore: exit status 2: ...".
func (e *familyError) Error() string { return fmt.Sprintf("%s %s rules: %v", e.op, e.family, e.err) }

// Unwrap returns the cause.
func (e *familyError) Unwrap() error { return e.err }

// NFT returns the ruleset as input for nft -f: one transaction that replaces an earlier program of
// the same owner. It has the same rules that the nftables backend writes. It is empty if no family
// has a program. Policy routing, which nftables lacks, is in comments as iproute2 commands.
func NFT(rs ruleset.Ruleset) string { return nft.Text(rs) }
