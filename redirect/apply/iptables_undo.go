package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// undoTime bounds putting things back, which must go on when the context of
// the failed Apply has ended. A variable for tests.
var undoTime = 10 * time.Second

// undo puts back what was found, after a failure that may have changed rules:
// a pod with half of its rules is worse than one that does not start.
func (s *session) undo(ctx context.Context, changes []*change) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	err := each(changes, func(c *change) error {
		if !c.attempted {
			return nil
		}
		if err := s.putBack(ctx, c); err != nil {
			return fmt.Errorf("put back %s rules as they were: %w", c.family, err)
		}
		return nil
	})
	for _, f := range s.routed {
		if _, rerr := s.dropRoutingOf(f, s.routing(changes, f)); rerr != nil {
			err = errors.Join(err, fmt.Errorf("put back %s routing as it was: %w", f, rerr))
		}
	}
	return err
}

func (s *session) routing(changes []*change, f ruleset.Family) ruleset.Routing {
	for _, c := range changes {
		if c.family == f {
			return c.want.Owner.Routing
		}
	}
	return ruleset.Routing{}
}

// putBack restores the tables that were there from their saved text, whole and
// in one go for each; those that were not there are freed of what is ours.
func (s *session) putBack(ctx context.Context, c *change) error {
	text, err := s.run(ctx, "", c.tools.save[c.family])
	if err != nil {
		return err
	}
	now, err := ruleset.Parse(c.family, text)
	if err != nil {
		return err
	}
	if old := c.before; strings.Contains(old, "COMMIT") {
		// Without --noflush a table becomes what the text says, no more.
		if _, err := s.run(ctx, old, c.tools.restore[c.family]); err != nil {
			return err
		}
		for i, t := range now.Tables {
			if c.live.HasTable(t.Name) {
				now.Tables[i].Chains = nil // restored already
			}
		}
	}
	clean := c.want.Empty().Transition(now)
	if clean == "" {
		return nil
	}
	_, err = s.run(ctx, clean, c.tools.restore[c.family], "--noflush")
	return err
}

// addRouting adds the policy routing of all families that need it.
func (s *session) addRouting(changes []*change) (changed bool, err error) {
	for _, c := range changes {
		if c.want.Routing == nil {
			continue
		}
		if err := s.openRoutes(); err != nil {
			return changed, err
		}
		added, err := s.routes.add(c.family, *c.want.Routing)
		if err != nil {
			return changed, &FamilyError{Family: c.family, Op: "apply", Err: err}
		}
		if added {
			changed = true
			s.routed = append(s.routed, c.family)
		}
	}
	return changed, nil
}

// dropRouting removes routing that an earlier program of the owner needed and
// the new one does not. Where there were no rules there is none; the
// caller tells of rules of other backends.
func (s *session) dropRouting(changes []*change, others bool) (changed bool, err error) {
	for _, c := range changes {
		if c.want.Routing != nil || !others && !c.want.Owner.Present(c.live) {
			continue
		}
		dropped, err := s.dropRoutingOf(c.family, c.want.Owner.Routing)
		if err != nil {
			return changed, &FamilyError{Family: c.family, Op: "apply", Err: err}
		}
		changed = changed || dropped
	}
	return changed, nil
}

func (s *session) dropRoutingOf(f ruleset.Family, r ruleset.Routing) (bool, error) {
	if r == (ruleset.Routing{}) {
		return false, nil
	}
	if err := s.openRoutes(); err != nil {
		return false, err
	}
	return s.routes.remove(f, r)
}

func (s *session) diffRouting(c *change) ([]ruleset.Difference, error) {
	routing := c.want.Owner.Routing
	if routing == (ruleset.Routing{}) {
		return nil, nil
	}
	if err := s.openRoutes(); err != nil {
		return nil, err
	}
	return s.routes.diff(c.family, routing, c.want.Routing != nil)
}

func (s *session) openRoutes() (err error) {
	if s.routes == nil {
		s.routes, err = openRoutes(s.ns)
	}
	return err
}
