package repair

import (
	"context"
	"strings"
	"time"
)

// PermissionError says which permissions are missing. Check with
// var p *repair.PermissionError; errors.As(err, &p).
type PermissionError struct {
	Missing []Permission
}

// Error names them all, and where they are granted.
func (e *PermissionError) Error() string {
	names := make([]string, len(e.Missing))
	for i, p := range e.Missing {
		names[i] = p.String()
	}
	return "missing permission: " + strings.Join(names, ", ") + " (see deploy/rbac)"
}

// deny notes that the server has refused something. Nothing is done until it is
// granted; it is said once.
func (c *Controller) deny(err error) {
	c.mu.Lock()
	first := c.denied == nil
	if first {
		c.denied = err
	}
	c.mu.Unlock()
	if first {
		c.Log.Error("repair is suspended", "error", err.Error())
	}
	c.metrics.setReady(err)
}

// suspended returns how long to wait while a permission is missing.
func (c *Controller) suspended() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.denied != nil {
		return askAgain
	}
	return 0
}

// refused reports whether an error of the kind Forbidden is for want of a
// permission, and suspends all actions then.
func (c *Controller) refused(err error) bool {
	if c.Permissions == nil {
		c.deny(err)
		return true
	}
	c.askPermissions(context.Background())
	return c.suspended() > 0
}

// unreachable notes why the server does not answer. Until the pods are there that
// is the reason for not being ready. client-go tries on; one line in a while is
// enough for the log.
func (c *Controller) unreachable(err error) {
	c.mu.Lock()
	quiet := time.Since(c.watchSaid) > sayAgain
	c.watchErr = err
	if quiet {
		c.watchSaid = time.Now()
	}
	c.mu.Unlock()
	if quiet {
		c.Log.Warn("the API server does not answer; the node's pods may have changed meanwhile", "error", err.Error())
	}
}

// askPermissions asks for what is missing and remembers the answer. Where nobody
// can be asked, the refusals themselves tell: after each pause there is another try.
func (c *Controller) askPermissions(ctx context.Context) {
	if c.Permissions == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.denied = nil
		return
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	missing, err := c.Permissions(ctx)
	if err != nil {
		c.unreachable(err) // no answer, no news
		return
	}
	var now error
	if len(missing) > 0 {
		now = &PermissionError{missing}
	}
	c.mu.Lock()
	was := c.denied
	c.denied = now
	c.mu.Unlock()
	switch {
	case now != nil && (was == nil || was.Error() != now.Error()):
		c.Log.Error("repair is suspended", "error", now.Error())
	case now == nil && was != nil:
		c.Log.Info("repair goes on: all permissions are there")
	}
	c.metrics.setReady(c.Ready())
}
