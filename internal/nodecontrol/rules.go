package nodecontrol

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// heldBack is the reason why rules are not written again now.
type heldBack struct {
	reason status.Code
	detail string
	wait   time.Duration
}

// Error implements error.
func (h *heldBack) Error() string { return h.detail }

// mayMend returns nil if the rules of a pod that had them may be written again now. That goes by the pods of its namespace alone: who
// changes the rules of their own pods keeps nobody else's from being mended.
func (c *Controller) mayMend(e *entry) error {
	if wait := c.keeper.Take(e.share.Namespace); wait > 0 {
		return &heldBack{statuscode.Budget, fmt.Sprintf("the namespace's budget allows the next in %s", wait.Round(100*time.Millisecond)), wait}
	}
	return nil
}

// write makes the live rules the wanted ones.
func (w *work) write(ctx context.Context) error {
	if w.e.captured {
		if err := w.c.mayMend(w.e); err != nil {
			return err
		}
	}
	w.e.ours = true // also on failure: what was there before was ours or nobody's
	w.c.drains(w.e, false)
	if !w.starting {
		defer w.keepOpen()()
	}
	result, err := w.backend.Apply(ctx, w.plan.Ruleset)
	if err == nil {
		err = result.Bypassed()
	}
	if err != nil {
		return err
	}
	w.result, w.e.unusable, w.e.backend = &result, result.Left(), string(result.Backend)
	_ = w.c.remember(w, func(r *attachment.Record) bool {
		return podrules.Note(r, w.mesh.Name, w.plan.Ruleset, result)
	})
	return nil
}

// forgetRecord makes the plugin's record say that the pod has no rules of ours, and why.
func (w *work) forgetRecord(why status.Code) error {
	return w.c.remember(w, func(r *attachment.Record) bool {
		if !r.Selected {
			return false
		}
		r.Applied("", ruleset.Ruleset{}, nil)
		r.Selected, r.Reason = false, why
		return true
	})
}

// remember changes the records of the pod's attachments in its present namespace; change reports whether it did. An error
// says that one could not be changed; it is logged too, since after rules are written they count, and not the record.
func (c *Controller) remember(w *work, change func(*attachment.Record) bool) error {
	_, unread, err := c.opts.Inventory.Change(string(w.e.uid), w.e.id(), "agent", change)
	if unread != nil { // CHECK passes a pod whose record cannot be read, so this stops nothing
		c.opts.Log.Warn("cannot read the plugin's records", "error", truncate.Finding(unread.Error()))
	}
	if err != nil {
		c.log(w.podOf()).Warn("cannot update the plugin's record of a pod", "error", truncate.Finding(err.Error()))
	}
	return err
}

// undo takes out what a failed Attach did.
func (w *work) undo(ctx context.Context, was before) (err error) {
	if w.result != nil && !was.captured {
		err = w.backend.Remove(ctx, w.mesh.Names.Owner())
	}
	if !was.captured {
		err = errors.Join(err, w.restoreSysctl(ctx))
	}
	if was.held != heldYes {
		if errRemove := w.c.opts.Proxy.Remove(ctx, w.e.uid); errRemove != nil {
			err = errors.Join(err, errRemove)
		} else {
			w.e.held, w.e.handed = heldNo, handed{}
		}
	}
	if was.exempt == nil && w.c.opts.Probes != nil {
		err = errors.Join(err, w.c.opts.Probes.Delete(w.e.uid))
	}
	if !was.noted && err == nil {
		w.e.ours = false
		err = errors.Join(w.c.opts.Namespaces.Forget(w.e.uid), w.c.setNS(w.e, nil))
	}
	return err
}
