//go:build linux

package apply

import (
	"context"
	"errors"
	"fmt"
	"time"
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

// putBack makes the owner's rules those that were found. What was read is not
// given back as text: a pod may have written it.
func (s *session) putBack(ctx context.Context, c *change) error {
	now, err := s.saved(ctx, c)
	if err != nil {
		return err
	}
	text, lost := c.want.Owner.Back(c.live, now)
	if text != "" {
		if _, err := s.run(ctx, text, c.tools.restore[c.family], "--noflush"); err != nil {
			return err
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("%d rules of others in chains of the mesh are lost, the first: %.200q", len(lost), lost[0])
	}
	return nil
}
