package repair

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/meshcni/meshcni/internal/node/api"
)

// deny notes that the server has refused a request for lack of permission. The controller then does nothing until the
// permission is granted.
func (c *Controller) deny(err error) {
	c.mu.Lock()
	first := c.denied == nil
	if first {
		c.denied = err
	}
	c.mu.Unlock()
	if first {
		c.opts.Log.Error("repair is suspended", "error", err.Error())
	}
}

// suspended returns how long to wait while a permission is missing, or zero.
func (c *Controller) suspended() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.denied != nil {
		return askAgain
	}
	return 0
}

// refused reports whether an error of the kind Forbidden means that a permission is missing, rather than that an
// admission plugin objects, and suspends all actions if so.
func (c *Controller) refused(err error) bool {
	if c.permissions == nil {
		c.deny(err)
		return true
	}
	c.askPermissions(context.Background())
	return c.suspended() > 0
}

// askPermissions asks the server which permissions are missing. If nobody knows, it clears the last refusal, so that the
// next attempt tells.
func (c *Controller) askPermissions(ctx context.Context) {
	var now error
	if c.permissions != nil {
		ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		missing, err := c.permissions(ctx)
		if err != nil {
			c.opts.Log.Debug("cannot ask for missing permissions", "error", err.Error()) // whoever watches the pods says why
			return
		}
		var names []string
		for _, p := range missing {
			names = append(names, api.Text(p))
		}
		if len(names) > 0 {
			now = fmt.Errorf("missing permission: %s (see deploy/rbac)", strings.Join(names, ", "))
		}
	}
	c.mu.Lock()
	was := c.denied
	c.denied = now
	c.mu.Unlock()
	switch {
	case now != nil && (was == nil || was.Error() != now.Error()):
		c.opts.Log.Error("repair is suspended", "error", now.Error())
	case now == nil && was != nil && c.permissions != nil:
		c.opts.Log.Info("repair goes on: all permissions are there")
	}
}
