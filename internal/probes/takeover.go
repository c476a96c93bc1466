//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/nfnetlink"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Predecessor names what another agent keeps on a host for the same purpose.
type Predecessor struct {
	// Sets are ipsets of addresses, whose comments are pod UIDs.
	Sets []string
	// Chain is the iptables chain of table nat that uses them, to which POSTROUTING jumps.
	Chain string
	// Table is the nftables table of family inet that has sets and rules.
	Table string
}

// IstioCNI is the set that istio-cni's ambient agent keeps.
func IstioCNI() Predecessor {
	return Predecessor{Sets: []string{"istio-inpod-probes-v4", "istio-inpod-probes-v6"}, Chain: "ISTIO_POSTRT", Table: "istio-ambient-nat"}
}

var chainForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,27}$`)

// TakeOver copies the predecessor's entries, and once ours are in force removes its rules, sets and table, so that no
// probe goes without its exemption. An address that is in our set already stays with its pod. With nothing of the
// predecessor's on the host, it is Ensure. Policy rules for branch ENIs become ours too. The predecessor must have been stopped: it would make them again.
//
// There is no way back to be called. While both are in force, both give the same source; so start the other agent, let it
// fill its set, and then call Remove.
func (s *Set) TakeOver(ctx context.Context, p Predecessor) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if p.Chain != "" && !chainForm.MatchString(p.Chain) {
		return Result{}, fmt.Errorf("take over probe exemption: chain %q: not the name of a chain", p.Chain)
	}
	theirs, err := s.readPredecessor(ctx, p)
	if err != nil {
		return Result{}, fmt.Errorf("take over probe exemption: %w", err)
	}
	result, err := s.update(ctx, "take over probe exemption", true, func(have Entries) Entries {
		all := maps.Clone(theirs)
		maps.Copy(all, have)
		return all
	})
	var unexempt *nodecontrol.UnexemptError // of a family that has no exemption any more
	if err != nil && !errors.As(err, &unexempt) {
		return result, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var rerr error
	if result.Routed, rerr = s.wantRules(result.entries, true); rerr == nil {
		rerr = s.removePredecessor(ctx, p)
	}
	if err := rerr; err != nil {
		return result, fmt.Errorf("take over probe exemption: remove the other agent's: %w", err)
	}
	return result, err
}

// readPredecessor returns its entries. One whose comment is no UID cannot be kept for a pod, and is left out: the pod's
// own Put follows.
func (s *Set) readPredecessor(ctx context.Context, p Predecessor) (Entries, error) {
	all := Entries{}
	err := s.sets(func(h *netlink.Handle) error {
		for _, name := range p.Sets {
			set, err := listSet(h, name)
			if errors.Is(err, apply.ErrNoBackend) {
				return nil
			}
			if err != nil {
				return err
			}
			if set != nil {
				entriesOf(set, all)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = s.session(ctx, func(c *nfnetlink.Conn) error {
		var sets []string
		err := c.Request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFPROTO_INET, func(w *nfnetlink.Writer) {
			w.Text(unix.NFTA_SET_TABLE, p.Table)
		}, func(m nfnetlink.Message) {
			if m.Text(unix.NFTA_SET_TABLE) == p.Table {
				sets = append(sets, m.Text(unix.NFTA_SET_NAME))
			}
		})
		for _, set := range sets {
			if err == nil {
				err = readElements(c, p.Table, set, all)
			}
		}
		return err
	})
	if errors.Is(err, apply.ErrNoBackend) {
		err = nil
	}
	for a, uid := range all {
		if check(uid, a) != nil {
			delete(all, a)
		}
	}
	return all, err
}

func (s *Set) removePredecessor(ctx context.Context, p Predecessor) error {
	if p.Chain != "" {
		var jumps []jump
		for _, f := range ruleset.Families {
			jumps = append(jumps, jump{family: f, table: "nat", from: "POSTROUTING"})
		}
		if err := s.dropRules(ctx, p.Chain, jumps); err != nil {
			return err
		}
	}
	if err := s.destroy(ctx, p.Sets...); err != nil && !errors.Is(err, apply.ErrNoBackend) {
		return err
	}
	if err := s.dropTable(ctx, p.Table); err != nil && !errors.Is(err, apply.ErrNoBackend) {
		return err
	}
	return nil
}
