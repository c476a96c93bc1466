package apply

import (
	"errors"
	"fmt"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// hasFamily reports whether the namespace has the family.
func (s *nftSession) hasFamily(f ruleset.Family) bool { return f == ruleset.IPv4 || s.ipv6 }

// addRouting adds what the programs need. undo takes back what was added, and
// is never nil.
func (s *nftSession) addRouting(rs ruleset.Ruleset) (undo func() error, changed bool, err error) {
	var added []ruleset.Family
	undo = func() error {
		if len(added) == 0 {
			return nil
		}
		return s.withRoutes(func(r *routes) error {
			var errs []error
			for _, f := range added {
				_, err := r.remove(f, *rs.Program(f).Routing)
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
	}
	needed := false
	for _, f := range ruleset.Families {
		p := rs.Program(f)
		needed = needed || p != nil && p.Routing != nil
	}
	if !needed {
		return undo, false, nil
	}
	err = s.withRoutes(func(r *routes) error {
		for _, f := range ruleset.Families {
			p := rs.Program(f)
			if p == nil || p.Routing == nil {
				continue
			}
			changed, err := r.add(f, *p.Routing)
			if changed {
				added = append(added, f)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
		}
		return nil
	})
	return undo, len(added) > 0, err
}

// dropRouting removes the owner's routing in families that do not need it.
func (s *nftSession) dropRouting(rs ruleset.Ruleset, old ruleset.Routing) (changed bool, err error) {
	err = s.eachUnrouted(rs, old, func(r *routes, f ruleset.Family) error {
		dropped, err := r.remove(f, old)
		changed = changed || dropped
		return err
	})
	return changed, err
}

// diffRouting compares the live routing of the owner with what is needed.
func (s *nftSession) diffRouting(rs ruleset.Ruleset) (diffs []ruleset.Difference, err error) {
	routing := rs.Owner().Routing
	add := func(r *routes, f ruleset.Family, want bool) error {
		d, err := r.diff(f, routing, want)
		diffs = append(diffs, d...)
		return err
	}
	if routing == (ruleset.Routing{}) {
		return nil, nil
	}
	err = s.withRoutes(func(r *routes) error {
		for _, f := range ruleset.Families {
			if !s.hasFamily(f) {
				continue
			}
			p := rs.Program(f)
			if err := add(r, f, p != nil && p.Routing != nil); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
		}
		return nil
	})
	return diffs, err
}

// eachUnrouted calls fn for the families that are there and need no routing.
func (s *nftSession) eachUnrouted(rs ruleset.Ruleset, old ruleset.Routing, fn func(*routes, ruleset.Family) error) error {
	var families []ruleset.Family
	for _, f := range ruleset.Families {
		if p := rs.Program(f); s.hasFamily(f) && (p == nil || p.Routing == nil) {
			families = append(families, f)
		}
	}
	if old == (ruleset.Routing{}) || len(families) == 0 {
		return nil
	}
	return s.withRoutes(func(r *routes) error {
		for _, f := range families {
			if err := fn(r, f); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
		}
		return nil
	})
}

func (s *nftSession) withRoutes(fn func(*routes) error) error {
	r, err := openRoutes(s.ns)
	if err != nil {
		return err
	}
	defer r.close()
	return fn(r)
}
