package apply

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// routes changes policy routing in one namespace.
type routes struct{ handle *netlink.Handle }

// openRoutes opens a socket in the namespace; it is used from outside it.
func openRoutes(ns Namespace) (*routes, error) {
	var r routes
	err := ns.Do(func() (err error) {
		r.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open route socket: %w", err)
	}
	return &r, nil
}

func (r *routes) close() { r.handle.Close() }

func netlinkFamily(f ruleset.Family) int {
	if f == ruleset.IPv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (r *routes) rule(f ruleset.Family, want ruleset.Routing) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family = netlinkFamily(f)
	rule.Mark = want.Mark
	rule.Table = int(want.Table)
	if want.Mask != 0 {
		rule.Mask = &want.Mask
	}
	if want.Priority != 0 {
		rule.Priority = int(want.Priority)
	}
	return rule
}

func (r *routes) route(f ruleset.Family, want ruleset.Routing) (*netlink.Route, error) {
	lo, err := r.handle.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find lo: %w", err)
	}
	any := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if f == ruleset.IPv6 {
		any = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: any, Table: int(want.Table),
		Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Family: netlinkFamily(f),
	}, nil
}

// has reports which halves of the routing are there, and how often the rule is.
func (r *routes) has(f ruleset.Family, want ruleset.Routing) (rules int, route bool, err error) {
	list, err := r.handle.RuleListFiltered(netlinkFamily(f), r.rule(f, want), netlink.RT_FILTER_MARK|netlink.RT_FILTER_TABLE)
	if err != nil {
		return 0, false, fmt.Errorf("list routing rules: %w", err)
	}
	found, err := r.handle.RouteListFiltered(netlinkFamily(f), &netlink.Route{Table: int(want.Table), Type: unix.RTN_LOCAL},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	if err != nil {
		return 0, false, fmt.Errorf("list routes of table %d: %w", want.Table, err)
	}
	return len(list), len(found) > 0, nil
}

// add makes the routing be there once. The route comes before the rule that
// leads to it.
func (r *routes) add(f ruleset.Family, want ruleset.Routing) (changed bool, err error) {
	rules, route, err := r.has(f, want)
	if err != nil {
		return false, err
	}
	if !route {
		rt, err := r.route(f, want)
		if err != nil {
			return false, err
		}
		if err := r.handle.RouteReplace(rt); err != nil {
			return false, fmt.Errorf("add local route in table %d: %w", want.Table, err)
		}
	}
	if rules == 0 {
		if err := r.handle.RuleAdd(r.rule(f, want)); err != nil && !errors.Is(err, unix.EEXIST) {
			return false, fmt.Errorf("add rule for mark %#x: %w", want.Mark, err)
		}
	}
	return !route || rules == 0, nil
}

// remove takes the routing away, however often its rule is there.
func (r *routes) remove(f ruleset.Family, old ruleset.Routing) (changed bool, err error) {
	rules, route, err := r.has(f, old)
	if err != nil {
		return false, err
	}
	for range rules {
		if err := r.handle.RuleDel(r.rule(f, old)); err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("delete rule for mark %#x: %w", old.Mark, err)
		}
	}
	if route {
		rt, err := r.route(f, old)
		if err != nil {
			return false, err
		}
		if err := r.handle.RouteDel(rt); err != nil && !errors.Is(err, unix.ESRCH) {
			return false, fmt.Errorf("delete local route in table %d: %w", old.Table, err)
		}
	}
	return rules > 0 || route, nil
}

// diff says what of the routing is missing (want true) or should not be there.
func (r *routes) diff(f ruleset.Family, routing ruleset.Routing, want bool) ([]ruleset.Difference, error) {
	rules, route, err := r.has(f, routing)
	if err != nil {
		return nil, err
	}
	var diffs []ruleset.Difference
	for i, there := range []bool{rules > 0, route} {
		if there == want {
			continue
		}
		kind := ruleset.Missing
		if there {
			kind = ruleset.Unexpected
		}
		diffs = append(diffs, ruleset.Difference{
			Kind: kind, Family: f, Table: "routing", Chain: []string{"rule", "route"}[i], Position: 1, Rule: routing.Lines(f)[i],
		})
	}
	return diffs, nil
}
