//go:build linux

package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/redirect/internal/chains"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// iptables-save does not quote. A name or a comment with a line feed looks like two lines, so a pod with CAP_NET_ADMIN
// can make it print rules that do not exist. The kernel tells the chains of the nft variant with their numbers of
// rules, and how many rules and chains a table of the legacy variant has. What a program prints, and a change that it
// reports, counts only if the kernel agrees.

// chainRules are the chains of iptables-nft's tables, each with the number of its rules.
type chainRules map[chainName]int

type chainName struct {
	family byte
	table  ruleset.Table
	name   string
}

// kernelRules asks the kernel about one family, or with NFPROTO_UNSPEC about all.
func kernelRules(ctx context.Context, ns Namespace, family byte) (chainRules, error) {
	var found chainRules
	err := newNFTables(ns).session(ctx, func(c *nftSession) (err error) {
		found, err = c.countRules(family)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count rules: %w", err)
	}
	return found, nil
}

func (c *nlConn) countRules(family byte) (chainRules, error) {
	found := chainRules{}
	err := c.Request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family, nil, func(m nfnetlink.Message) {
		ch := parseChain(m)
		if t, err := ruleset.ParseTable(ch.table); err == nil {
			found[chainName{ch.family, t, ch.name}] = 0
		}
	})
	if err != nil {
		return nil, err
	}
	// One list for all tables: only their names are looked at.
	many := map[byte]int{} // by family
	err = c.Request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, family, nil, func(m nfnetlink.Message) {
		table, chain := m.Text(unix.NFTA_RULE_TABLE), m.Text(unix.NFTA_RULE_CHAIN)
		if (nftTable{m.Family, table}).isIptables() {
			many[m.Family]++
		}
		if t, err := ruleset.ParseTable(table); err == nil {
			found[chainName{m.Family, t, chain}]++
		}
	})
	for _, rules := range many {
		err = cmp.Or(err, few(rules))
	}
	if err != nil {
		return nil, err
	}
	return found, c.measureSets(family)
}

// setWeight is the cost of a byte of set elements in bytes of rules: iptables 1.8.9 needs 300 bytes for an
// element of 16, and about twice its size for a rule. The kernel starts from the front for each part of its answer, so
// it takes 20 s for 800,000 elements. Our largest program has 20,000, of 40 bytes.
const setWeight = 24

// measureSets fails if the sets in iptables-nft's tables hold too much. Its programs read all sets, used or not.
func (c *nlConn) measureSets(family byte) error {
	sets, err := c.listSets(family, nftTable.isIptables)
	for t, names := range sets {
		for _, name := range names {
			if err := c.readElements(t, name, setWeight, func(nfnetlink.Message) {}); err != nil {
				return err
			}
		}
	}
	return err
}

// maxLive is the most rules of one family that are read: five times our own bound. A pod with
// CAP_NET_ADMIN may make any number, and iptables-nft-save takes up to 100 µs for each.
const maxLive = 50_000

// few fails where there are more rules than are read.
func few(rules int) error {
	if rules > maxLive {
		return fmt.Errorf("%w: they are over %d rules", nfnetlink.ErrLong, maxLive)
	}
	return nil
}

// maxReads bounds how often rules are read that change meanwhile.
const maxReads = 3

// saved reads what is live for a change.
func (s *session) saved(ctx context.Context, c *change) (ruleset.LiveChains, error) {
	return s.list(ctx, c.tools.variant, c.family, []ruleset.Ownership{c.want.Owner}, c.tools.save[c.family])
}

// list reads what is live by a program that saves, and makes sure that the chains of the owners and the built-in ones are the kernel's.
func (s *session) list(ctx context.Context, variant ruleset.Backend, f ruleset.Family, owners []ruleset.Ownership, save string, args ...string) (ruleset.LiveChains, error) {
	for reads := 1; ; reads++ {
		var rules chainRules
		if variant == ruleset.BackendIptablesNFT {
			var err error
			if rules, err = kernelRules(ctx, s.ns, nfProto(f)); err != nil {
				return nil, err
			}
		} else if err := s.measureLegacy(f); err != nil {
			return nil, err
		}
		text, err := s.run(ctx, "", save, args...)
		if err != nil {
			return nil, err
		}
		live, err := ruleset.Parse(f, text, rules.names()...)
		switch {
		case err != nil:
		case rules != nil:
			for _, owner := range owners {
				err = cmp.Or(err, rules.agree(owner, live))
			}
		default:
			err = s.legacyAgrees(f, live)
		}
		if err == nil || reads == maxReads {
			return live, err
		}
	}
}

func (r chainRules) names() (names []string) {
	for c := range r {
		if !chains.Safe(c.name) {
			names = append(names, c.name)
		}
	}
	return names
}

// errText says that a text of rules is not what the kernel has.
var errText = errors.New("what the program prints is not what the kernel has, so the rules cannot be told")

// agree compares the chains that matter: the owner's, and the built-in ones.
func (r chainRules) agree(owner ruleset.Ownership, live ruleset.LiveChains) error {
	matters := func(name string) bool { return owner.OwnsChain(name) || chains.IsBuiltin(name) }
	seen := chainRules{}
	for _, c := range live {
		table, err := ruleset.ParseTable(c.Table)
		if err != nil || !matters(c.Name) {
			continue
		}
		at := chainName{nfProto(c.Family), table, c.Name}
		if _, there := r[at]; !there && !chains.IsBuiltin(c.Name) {
			return fmt.Errorf("chain %s of table %s: %w", c.Name, table, errText)
		}
		seen[at] = len(c.Rules)
	}
	for at, n := range r {
		if printed, there := seen[at]; matters(at.name) && (printed != n || !there && n > 0) {
			return fmt.Errorf("chain %s of table %s has %d rules, printed are %d: %w", at.name, at.table, n, printed, errText)
		}
	}
	return nil
}

// errNothing says that a change was not made though its program said so.
var errNothing = errors.New("the program reported success, but the kernel does not have the rules")

// change makes changes, of all families at once, and makes sure that they were made.
func (s *session) change(ctx context.Context, changes []*change) error {
	err := each(changes, func(c *change) error { return s.apply(ctx, c) })
	if err != nil {
		return err
	}
	var rules chainRules // of the nft variant, asked for once
	for _, c := range changes {
		switch {
		case !c.attempted:
			continue
		case c.tools.variant != ruleset.BackendIptablesNFT:
			err = s.verifyText(ctx, c)
		default:
			if rules == nil {
				if rules, err = kernelRules(ctx, s.ns, unix.NFPROTO_UNSPEC); err != nil {
					return err
				}
			}
			err = rules.verify(c.want)
		}
		if err != nil {
			return &familyError{family: c.family, op: "apply", err: err}
		}
	}
	return nil
}

// verifyText verifies a change of the legacy variant by reading the rules again. The
// kernel tells only how many there are, which is enough where there were none.
func (s *session) verifyText(ctx context.Context, c *change) error {
	if c.live == nil {
		return s.verifyNew(c.want)
	}
	now, err := s.saved(ctx, c)
	if err != nil {
		return err
	}
	if diffs := c.want.Diff(now); len(diffs) > 0 {
		return fmt.Errorf("%w: %d differences, the first: %s", errNothing, len(diffs), diffs[0])
	}
	return nil
}

func (r chainRules) verify(want *ruleset.FamilyRuleset) error {
	family := nfProto(want.Family)
	for _, w := range want.Chains {
		n, there := r[chainName{family, w.Table, w.Name}]
		if !there || n < len(w.Rules) || n > len(w.Rules) && !chains.IsBuiltin(w.Name) {
			return fmt.Errorf("%w: chain %s of table %s has %d rules, not %d", errNothing, w.Name, w.Table, n, len(w.Rules))
		}
	}
	for at, n := range r {
		if at.family == family && n > 0 && want.Owner.OwnsChain(at.name) && want.Chain(at.table, at.name) == nil {
			return fmt.Errorf("%w: chain %s of table %s has %d rules, not 0", errNothing, at.name, at.table, n)
		}
	}
	return nil
}
