//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/internal/kernel/nfnetlink"
	"github.com/meshcni/meshcni/internal/nodecontrol"
	"github.com/meshcni/meshcni/redirect/apply"
)

// istioTable is istio-cni's table of nftables, and istioSets are its ipsets, for rules of iptables. Comments of the entries are pod UIDs.
const istioTable = "istio-ambient-nat"

var istioSets = []string{"istio-inpod-probes-v4", "istio-inpod-probes-v6"}

// TakeOver copies the entries of istio-cni, and once ours are in force removes its table and empties its ipsets, so that no probe goes
// without its exemption. Its rules of iptables stay, and match nothing any more. An address that is in our set already stays with its pod.
// With nothing of istio-cni's on the host, it is Ensure. Policy rules for branch ENIs become ours too. istio-cni must have been stopped: it
// would make them again.
//
// There is no way back to be called. While both are in force, both give the same source; so start the other agent, let it
// fill its set, and then call Remove.
func (s *Set) TakeOver(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	theirs, err := s.readIstio(ctx)
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
		rerr = s.eachIPSet(func(h *netlink.Handle, set *netlink.IPSetResult) error {
			if len(set.Entries) == 0 {
				return nil
			}
			return h.IpsetFlush(set.SetName)
		})
	}
	if rerr == nil {
		rerr = s.dropTable(ctx, istioTable)
	}
	if rerr != nil && !errors.Is(rerr, apply.ErrNoBackend) {
		return result, fmt.Errorf("take over probe exemption: remove the other agent's: %w", rerr)
	}
	return result, err
}

// readIstio returns its entries. One whose comment is no UID cannot be kept for a pod, and is left out: the pod's own Put follows.
func (s *Set) readIstio(ctx context.Context) (Entries, error) {
	all := Entries{}
	err := s.eachIPSet(func(_ *netlink.Handle, set *netlink.IPSetResult) error {
		for _, e := range set.Entries {
			if a, ok := netip.AddrFromSlice(e.IP); ok {
				all[a.Unmap()] = types.UID(e.Comment)
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
	maps.DeleteFunc(all, func(a netip.Addr, uid types.UID) bool { return check(uid, a) != nil })
	return all, err
}

// eachIPSet calls fn with each of istio-cni's ipsets that there is.
func (s *Set) eachIPSet(fn func(*netlink.Handle, *netlink.IPSetResult) error) error {
	var h *netlink.Handle
	err := s.o.NetNS.Do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer h.Close()
	for _, name := range istioSets {
		set, err := h.IpsetList(name)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
			return nil // the kernel has no ipset
		case err == nil:
			set.SetName = name
			err = fn(h, set)
		}
		if err != nil {
			return fmt.Errorf("ipset %s: %w", name, err)
		}
	}
	return nil
}
