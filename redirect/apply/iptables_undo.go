//go:build linux

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
	return errors.Join(err, s.plumbing.undo())
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
