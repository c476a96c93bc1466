//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/meshcni/meshcni/internal/nfnetlink"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect/apply"
)

// predecessor lists the objects that another agent keeps on a host for the same purpose.
type predecessor struct {
	// sets are its ipsets of addresses, whose comments are pod UIDs.
	sets []string
	// chain is its iptables chain, to which built-in chains jump, by their tables.
	chain string
	jumps map[string]string
	// table is its nftables table of family inet; empty: it has none.
	table string
}

// former is this agent, until version 0.1.0, where it did not use nftables.
var (
	istioCNI = predecessor{
		sets: []string{"istio-inpod-probes-v4", "istio-inpod-probes-v6"}, chain: "ISTIO_POSTRT", jumps: map[string]string{"nat": "POSTROUTING"},
		table: "istio-ambient-nat",
	}
	former = predecessor{
		sets: []string{tableName + "-v4", tableName + "-v6"}, chain: strings.ToUpper(strings.ReplaceAll(tableName, "-", "_")),
		jumps: map[string]string{"nat": "POSTROUTING", "raw": "PREROUTING"},
	}
)

// TakeOver copies the entries of istio-cni, and of an agent of ours that used ipset, and once ours are in force removes their rules, sets
// and table, so that no probe goes without its exemption. An address that is in our set already stays with its pod. With nothing of a
// predecessor's on the host, it is Ensure. Policy rules for branch ENIs become ours too. The predecessor must have been stopped: it would make them again.
//
// There is no way back to be called. While both are in force, both give the same source; so start the other agent, let it
// fill its set, and then call Remove.
func (s *Set) TakeOver(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	theirs := Entries{}
	for _, p := range []predecessor{istioCNI, former} {
		if err := s.readPredecessor(ctx, p, theirs); err != nil {
			return Result{}, fmt.Errorf("take over probe exemption: %w", err)
		}
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
		rerr = errors.Join(s.removePredecessor(ctx, istioCNI), s.removePredecessor(ctx, former))
	}
	if err := rerr; err != nil {
		return result, fmt.Errorf("take over probe exemption: remove the other agent's: %w", err)
	}
	return result, err
}

// readPredecessor adds its entries. One whose comment is no UID cannot be kept for a pod, and is left out: the pod's
// own Put follows.
func (s *Set) readPredecessor(ctx context.Context, p predecessor, all Entries) error {
	err := s.sets(func(h *netlink.Handle) error {
		for _, name := range p.sets {
			set, err := h.IpsetList(name)
			switch {
			case errors.Is(err, unix.ENOENT):
				continue
			case noIPSets(err):
				return nil
			case err != nil:
				return fmt.Errorf("list ipset %s: %w", name, err)
			}
			for _, e := range set.Entries {
				if a, ok := netip.AddrFromSlice(e.IP); ok {
					all[a.Unmap()] = types.UID(e.Comment)
				}
			}
		}
		return nil
	})
	if err == nil && p.table != "" {
		err = s.session(ctx, func(c *nfnetlink.Conn) error {
			var sets []string
			err := c.Request(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFPROTO_INET, func(w *nfnetlink.Writer) {
				w.Text(unix.NFTA_SET_TABLE, p.table)
			}, func(m nfnetlink.Message) {
				if m.Text(unix.NFTA_SET_TABLE) == p.table {
					sets = append(sets, m.Text(unix.NFTA_SET_NAME))
				}
			})
			for _, set := range sets {
				if err == nil {
					err = readElements(c, p.table, set, all)
				}
			}
			return err
		})
	}
	for a, uid := range all {
		if check(uid, a) != nil {
			delete(all, a)
		}
	}
	return err
}

func (s *Set) removePredecessor(ctx context.Context, p predecessor) error {
	used, err := s.using(ctx, p)
	for _, variant := range used {
		err = errors.Join(err, s.dropFrom(ctx, variant, p))
	}
	if err == nil {
		err = s.destroy(ctx, p.sets)
	}
	if err == nil && p.table != "" {
		err = s.dropTable(ctx, p.table)
	}
	if errors.Is(err, apply.ErrNoBackend) {
		return nil // there cannot be one
	}
	return err
}

// sets calls fn with a handle in the host's namespace.
func (s *Set) sets(fn func(*netlink.Handle) error) error {
	var h *netlink.Handle
	err := s.o.NetNS.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer h.Close()
	return fn(h)
}

// noIPSets reports whether the kernel has no ipset.
func noIPSets(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL)
}

// destroy removes sets that no rule uses any more. The kernel frees those that iptables-nft deleted a moment later, and
// says until then that a set is busy.
func (s *Set) destroy(ctx context.Context, names []string) error {
	return s.sets(func(h *netlink.Handle) error {
		for _, name := range names {
			for pause := (wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: 100 * time.Millisecond}); ; {
				err := h.IpsetDestroy(name)
				if err == nil || errors.Is(err, unix.ENOENT) || noIPSets(err) {
					break
				}
				if !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) && !errors.Is(err, unix.EBUSY) {
					return fmt.Errorf("destroy ipset %s: %w", name, err)
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("destroy ipset %s, which a rule still uses: %w", name, context.Cause(ctx))
				case <-time.After(pause.Step()):
				}
			}
		}
		return nil
	})
}
