//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// xtables keeps one ipset a family by netlink, and rules that use it by the host's iptables. Its methods are of the
// variant, which is found out first.
type xtables struct {
	*Set
	variant ruleset.Backend
}

func (x *xtables) name() ruleset.Backend {
	if x.variant == "" {
		return ruleset.BackendIptables
	}
	return x.variant
}

var ipFamily = map[ruleset.Family]uint8{ruleset.IPv4: unix.AF_INET, ruleset.IPv6: unix.AF_INET6}

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

// listSet reads a set; nil means that there is none.
func listSet(h *netlink.Handle, name string) (*netlink.IPSetResult, error) {
	set, err := h.IpsetList(name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return nil, fmt.Errorf("%w: ipset: %w", apply.ErrNoBackend, err)
	case err != nil:
		return nil, fmt.Errorf("list ipset %s: %w", name, err)
	}
	return set, nil
}

func entriesOf(set *netlink.IPSetResult, into Entries) {
	for _, e := range set.Entries {
		if a, ok := netip.AddrFromSlice(e.IP); ok {
			into[a.Unmap()] = types.UID(e.Comment)
		}
	}
}

func (x *xtables) there(context.Context) (there bool, err error) {
	err = x.sets(func(h *netlink.Handle) error {
		for _, f := range ruleset.Families {
			set, err := listSet(h, ipset(f))
			if err != nil {
				return err
			}
			there = there || set != nil
		}
		return nil
	})
	return there, err
}

// state reads the families' sets, and says of which there is none.
func (x *xtables) state(h *netlink.Handle) (have Entries, missing []ruleset.Family, err error) {
	have = Entries{}
	for _, f := range x.families {
		set, err := listSet(h, ipset(f))
		switch {
		case err != nil:
			return nil, nil, err
		case set == nil:
			missing = append(missing, f)
		case set.TypeName != "hash:ip" || set.Family != ipFamily[f] || set.CadtFlags&nl.IPSET_FLAG_WITH_COMMENT == 0:
			return nil, nil, fmt.Errorf("ipset %s is there and not ours: a %s without the family or the comments that we need", ipset(f), set.TypeName)
		default:
			entriesOf(set, have)
		}
	}
	return have, missing, nil
}

func (x *xtables) read(context.Context) (have Entries, err error) {
	err = x.sets(func(h *netlink.Handle) (err error) {
		have, _, err = x.state(h)
		return err
	})
	return have, err
}

func (x *xtables) intact(ctx context.Context) (bool, error) {
	var missing []ruleset.Family
	err := x.sets(func(h *netlink.Handle) (err error) {
		_, missing, err = x.state(h)
		return err
	})
	if err != nil || len(missing) > 0 {
		return false, err
	}
	if err := x.find(ctx); err != nil {
		return false, err
	}
	for _, f := range x.families {
		if flaws, err := x.damage(ctx, f); err != nil || len(flaws) > 0 {
			return false, err
		}
	}
	return true, nil
}

func (x *xtables) update(ctx context.Context, change func(Entries) Entries, rules bool) (result Result, err error) {
	if err := x.find(ctx); err != nil {
		return Result{}, err
	}
	err = x.sets(func(h *netlink.Handle) error {
		have, missing, err := x.state(h)
		if err != nil {
			return err
		}
		for _, f := range missing {
			// Replace: another of us may have made it meanwhile, of the same kind.
			err := h.IpsetCreate(ipset(f), "hash:ip", netlink.IpsetCreateOptions{Family: ipFamily[f], Comments: true, Replace: true})
			if err != nil {
				return fmt.Errorf("create ipset %s: %w", ipset(f), err)
			}
		}
		want := change(maps.Clone(have))
		put, gone := difference(have, want)
		result = Result{entries: want, Entries: len(want), Added: len(put), Removed: len(gone), Repaired: len(missing) > 0}
		for a, uid := range put {
			entry := netlink.IPSetEntry{IP: net.IP(a.AsSlice()), Comment: string(uid), Replace: true}
			if err := h.IpsetAdd(ipset(ruleset.FamilyOf(a)), &entry); err != nil {
				return fmt.Errorf("add %s to ipset %s: %w", a, ipset(ruleset.FamilyOf(a)), err)
			}
		}
		for a := range gone {
			err := h.IpsetDel(ipset(ruleset.FamilyOf(a)), &netlink.IPSetEntry{IP: net.IP(a.AsSlice())})
			if err != nil && !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_EXIST)) {
				return fmt.Errorf("delete %s from ipset %s: %w", a, ipset(ruleset.FamilyOf(a)), err)
			}
		}
		return nil
	})
	if err != nil || !rules && !result.Repaired {
		return result, err
	}
	repaired, err := x.repair(ctx)
	result.Repaired = result.Repaired || repaired
	return result, err
}

func (x *xtables) remove(ctx context.Context) error {
	if err := x.dropRules(ctx, chainName, x.allJumps()); err != nil {
		return err
	}
	return x.destroy(ctx, ipset(ruleset.IPv4), ipset(ruleset.IPv6))
}

// destroy removes sets that no rule uses any more. The kernel frees those that iptables-nft deleted a moment later, and
// says until then that a set is busy.
func (s *Set) destroy(ctx context.Context, names ...string) error {
	return s.sets(func(h *netlink.Handle) error {
		for _, name := range names {
			for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
				err := h.IpsetDestroy(name)
				if err == nil || errors.Is(err, unix.ENOENT) {
					break
				}
				if !errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) && !errors.Is(err, unix.EBUSY) {
					return fmt.Errorf("destroy ipset %s: %w", name, err)
				}
				select {
				case <-ctx.Done():
					return fmt.Errorf("destroy ipset %s, which a rule still uses: %w", name, context.Cause(ctx))
				case <-time.After(wait):
				}
			}
		}
		return nil
	})
}
