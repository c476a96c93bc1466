//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/nfnetlink"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// What istio-cni's ambient agent keeps on a host for the same purpose: an iptables chain of table nat to which POSTROUTING jumps, and an
// nftables table of family inet.
const istioChain, istioTable = "ISTIO_POSTRT", "istio-ambient-nat"

// istioSets are its ipsets of addresses, whose comments are pod UIDs.
var istioSets = []string{"istio-inpod-probes-v4", "istio-inpod-probes-v6"}

// TakeOver copies the entries of istio-cni, the predecessor, and once ours are in force removes its rules, sets and table, so that no
// probe goes without its exemption. An address that is in our set already stays with its pod. With nothing of the
// predecessor's on the host, it is Ensure. Policy rules for branch ENIs become ours too. The predecessor must have been stopped: it would make them again.
//
// There is no way back to be called. While both are in force, both give the same source; so start the other agent, let it
// fill its set, and then call Remove.
func (s *Set) TakeOver(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	theirs, err := s.readPredecessor(ctx)
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
		rerr = s.removePredecessor(ctx)
	}
	if err := rerr; err != nil {
		return result, fmt.Errorf("take over probe exemption: remove the other agent's: %w", err)
	}
	return result, err
}

// readPredecessor returns its entries. One whose comment is no UID cannot be kept for a pod, and is left out: the pod's
// own Put follows.
func (s *Set) readPredecessor(ctx context.Context) (Entries, error) {
	all := Entries{}
	err := s.sets(func(h *netlink.Handle) error {
		for _, name := range istioSets {
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
			w.Text(unix.NFTA_SET_TABLE, istioTable)
		}, func(m nfnetlink.Message) {
			if m.Text(unix.NFTA_SET_TABLE) == istioTable {
				sets = append(sets, m.Text(unix.NFTA_SET_NAME))
			}
		})
		for _, set := range sets {
			if err == nil {
				err = readElements(c, istioTable, set, all)
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

func (s *Set) removePredecessor(ctx context.Context) error {
	var jumps []jump
	for _, f := range ruleset.Families {
		jumps = append(jumps, jump{family: f, table: "nat", from: "POSTROUTING"})
	}
	if err := s.dropRules(ctx, istioChain, jumps); err != nil {
		return err
	}
	if err := s.destroy(ctx, istioSets...); err != nil && !errors.Is(err, apply.ErrNoBackend) {
		return err
	}
	if err := s.dropTable(ctx, istioTable); err != nil && !errors.Is(err, apply.ErrNoBackend) {
		return err
	}
	return nil
}
