//go:build linux

package probes

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// look finds out which families are served. A family that is only switched off is: its rules do no harm, and are there
// when it is switched on.
func (s *Set) look() error {
	kernel, err := apply.Kernel(s.o.NetNS)
	if err != nil {
		return err
	}
	s.families, s.reasons = nil, map[ruleset.Family]string{}
	for _, f := range ruleset.Families {
		switch {
		case !s.o.source(f).IsValid():
			s.reasons[f] = "no source address is configured"
		case f == ruleset.IPv6 && kernel.IPv6 == redirect.PresenceAbsent:
			s.reasons[f] = "the host has no IPv6"
		default:
			s.families = append(s.families, f)
		}
	}
	if len(s.families) == 0 {
		return errors.New("the host has no family that has a source address")
	}
	return nil
}

func (s *Set) backends() []backend { return []backend{&native{s}, &xtables{Set: s}} }

// choice is a backend to use, and the other, of which nothing is to stay.
type choice struct {
	use, other backend
	stale      bool // whether there is anything of the other's
}

// pick finds out what to use, and changes nothing.
func (s *Set) pick(ctx context.Context) (choice, error) {
	if s.reasons == nil {
		if err := s.look(); err != nil {
			return choice{}, err
		}
	}
	all := s.backends()
	var there [2]bool
	var unusable [2]error
	for i, b := range all {
		var err error
		if there[i], err = b.there(ctx); errors.Is(err, apply.ErrNoBackend) {
			unusable[i] = err
		} else if err != nil {
			return choice{}, err
		}
	}
	chosen := 0
	switch s.o.Backend {
	case ruleset.BackendNftables:
	case ruleset.BackendAuto, "":
		if unusable[0] != nil || there[1] && !there[0] {
			chosen = 1
		}
	default:
		chosen = 1
	}
	return choice{use: all[chosen], other: all[1-chosen], stale: there[1-chosen]}, unusable[chosen]
}

// settle settles on a backend, once, and says whether it had to make anything.
func (s *Set) settle(ctx context.Context) (made bool, err error) {
	if s.now != nil {
		return false, nil
	}
	c, err := s.pick(ctx)
	if err != nil {
		return false, err
	}
	made, err = s.move(ctx, c)
	auto := s.o.Backend == "" || s.o.Backend == ruleset.BackendAuto
	if _, isNative := c.use.(*native); !auto || !isNative || !errors.Is(err, apply.ErrNoBackend) {
		return made, err
	}
	// The kernel has nftables, but not all that it takes.
	made, other := s.move(ctx, choice{use: c.other, other: c.use})
	if other != nil {
		return made, errors.Join(err, other)
	}
	return made, nil
}

// alone sees to it that the other backend has nothing of ours, as an agent of another configuration may have left behind
// that ended after this one started.
func (s *Set) alone(ctx context.Context) (moved bool, err error) {
	stale, err := s.other.there(ctx)
	if errors.Is(err, apply.ErrNoBackend) || err == nil && !stale {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return s.move(ctx, choice{use: s.now, other: s.other, stale: true})
}

// move puts the entries of the other backend into the one to use, and then removes the other.
func (s *Set) move(ctx context.Context, c choice) (made bool, err error) {
	moved := Entries{}
	if c.stale {
		if moved, err = c.other.read(ctx); err != nil {
			return false, fmt.Errorf("read what %s has: %w", c.other.name(), err)
		}
	}
	result, err := c.use.update(ctx, func(have Entries) Entries {
		all := maps.Clone(moved)
		maps.Copy(all, have)
		return all
	}, true)
	if err != nil {
		return result.Repaired, err
	}
	if c.stale {
		if err := c.other.remove(ctx); err != nil {
			return true, fmt.Errorf("remove what %s had: %w", c.other.name(), err)
		}
	}
	s.now, s.other = c.use, c.other
	return result.Repaired, nil
}

// difference lists the changes that lead from one state to the other. put has also what changes its pod.
func difference(have, want Entries) (put, gone Entries) {
	put, gone = Entries{}, Entries{}
	for a, uid := range want {
		if have[a] != uid {
			put[a] = uid
		}
	}
	for a, uid := range have {
		if _, stays := want[a]; !stays {
			gone[a] = uid
		}
	}
	return put, gone
}
