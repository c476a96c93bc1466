//go:build linux

package probes

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// A pod of the AWS VPC CNI may have a network interface of its own, a branch ENI, and the host then sends everything for
// it through the cloud's network: the connection with our source would never arrive, nor its answers come back. Such a
// node has early demultiplexing off, and for the pod's veth a policy rule "iif VETH lookup TABLE", where the table has
// the pod's route. Two more rules then lead the host's connections over the veth.

// earlyDemux is the host's switch that lets packets find their socket before their route.
const earlyDemux = "/proc/sys/net/ipv4/tcp_early_demux"

// forwardPriority is that of the rule to the pod: the VPC CNI's own rules for pods are at it, and main's is after it.
const forwardPriority = 512

// ruleProtocol tells our policy rules from others': a number that iproute2's rt_protos leaves free.
const ruleProtocol = 173

// route makes the policy rules those that the entries need, and returns for how many addresses there are some.
//
// Where the host needs none and we made none, they are not even listed, unless all is to be looked at.
func (s *Set) route(entries Entries, all bool) (routed int, err error) {
	if !all && !s.routed {
		off, err := s.branchHost()
		if err != nil || !off {
			return 0, err
		}
	}
	return s.wantRules(entries, false)
}

func (s *Set) wantRules(entries Entries, adopt bool) (routed int, err error) {
	return s.rules(adopt, func(h *netlink.Handle, f ruleset.Family, all []netlink.Rule) ([]netlink.Rule, error) {
		off, err := earlyDemuxOff()
		if err != nil || !off {
			return nil, err
		}
		return branches(h, f, all, entries)
	})
}

func (s *Set) branchHost() (off bool, err error) {
	err = s.o.NetNS.Do(func() (err error) {
		off, err = earlyDemuxOff()
		return err
	})
	return off, err
}

// earlyDemuxOff looks at the calling thread's namespace.
func earlyDemuxOff() (bool, error) {
	off, err := os.ReadFile(earlyDemux)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at early demultiplexing: %w", err)
	}
	return strings.TrimSpace(string(off)) == "0", nil
}

// unroute removes all of our policy rules.
func (s *Set) unroute() error {
	_, err := s.rules(false, func(*netlink.Handle, ruleset.Family, []netlink.Rule) ([]netlink.Rule, error) { return nil, nil })
	return err
}

// rules makes our policy rules of each family those that want returns of all that are there. want runs in the host's
// namespace. adopt removes rules that are the same but another's.
func (s *Set) rules(adopt bool, want func(h *netlink.Handle, f ruleset.Family, all []netlink.Rule) ([]netlink.Rule, error)) (routed int, err error) {
	err = s.o.NetNS.Do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open route socket: %w", err)
		}
		defer h.Close()
		for _, f := range s.families {
			all, err := h.RuleList(int(header[f].proto))
			if err != nil {
				return fmt.Errorf("list %s policy rules: %w", f, err)
			}
			wanted, err := want(h, f, all)
			if err != nil {
				return err
			}
			if err := replace(h, f, all, wanted, adopt); err != nil {
				return err
			}
			for _, r := range wanted {
				if r.Dst != nil {
					routed++
				}
			}
		}
		return nil
	})
	s.routed = routed > 0 || err != nil
	return routed, err
}

// branches finds the addresses that have a branch ENI, and the rules that each needs.
func branches(h *netlink.Handle, f ruleset.Family, all []netlink.Rule, entries Entries) (want []netlink.Rule, err error) {
	for _, rule := range all {
		if rule.IifName == "" || rule.Table <= 0 || rule.Table >= unix.RT_TABLE_DEFAULT && rule.Table <= unix.RT_TABLE_LOCAL || rule.Protocol == ruleProtocol {
			continue
		}
		link, err := h.LinkByName(rule.IifName)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("look for interface %q of a policy rule: %w", rule.IifName, err)
		}
		routes, err := h.RouteListFiltered(int(header[f].proto), &netlink.Route{Table: rule.Table, LinkIndex: link.Attrs().Index}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_OIF)
		if err != nil {
			return nil, fmt.Errorf("list routes of table %d: %w", rule.Table, err)
		}
		for _, r := range routes {
			a, ok := host(r.Dst)
			if _, ours := entries[a]; !ok || !ours {
				continue
			}
			if rule.Priority < 2 {
				return nil, fmt.Errorf("the policy rule of interface %s has priority %d, so that none can come before it for the answers of %s", rule.IifName, rule.Priority, a)
			}
			to, back := newRule(f), newRule(f)
			to.Priority, to.Dst, to.Table = forwardPriority, r.Dst, rule.Table
			back.Priority, back.IifName, back.Table = rule.Priority-1, rule.IifName, unix.RT_TABLE_LOCAL
			want = append(want, to, back)
		}
	}
	return want, nil
}

func newRule(f ruleset.Family) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Protocol = int(header[f].proto), ruleProtocol
	return *r
}

// host returns the address of a route to a single one.
func host(n *net.IPNet) (netip.Addr, bool) {
	if n == nil {
		return netip.Addr{}, false
	}
	ones, bits := n.Mask.Size()
	a, ok := netip.AddrFromSlice(n.IP)
	return a.Unmap(), ok && ones == bits
}

// key tells our rules from each other.
func key(r netlink.Rule) string {
	return fmt.Sprint(r.Priority, r.Dst, r.IifName, r.Table)
}

// replace adds what is missing before it deletes what is not wanted: of ours what has gone, and with adopt what another
// has made of the same. The kernel takes rules that differ in their protocol only.
func replace(h *netlink.Handle, f ruleset.Family, all, want []netlink.Rule, adopt bool) error {
	live, wanted := map[string]bool{}, map[string]bool{}
	for _, r := range all {
		if r.Protocol == ruleProtocol {
			live[key(r)] = true
		}
	}
	for _, r := range want {
		if k := key(r); !live[k] && !wanted[k] {
			if err := h.RuleAdd(&r); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("add %s policy rule %d: %w", f, r.Priority, err)
			}
		}
		wanted[key(r)] = true
	}
	for _, r := range all {
		if ours := r.Protocol == ruleProtocol; ours == wanted[key(r)] || !ours && !adopt {
			continue
		}
		r.Family = int(header[f].proto)
		if err := h.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete %s policy rule %d: %w", f, r.Priority, err)
		}
	}
	return nil
}
