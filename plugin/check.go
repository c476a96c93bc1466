package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/plugin/attachment"
	"github.com/meshcni/meshcni/redirect/apply"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
)

// NoRecord is the reason in the record of a CHECK that has nothing to go by: what ADD did to the attachment is not known.
const NoRecord selection.Reason = "no-record"

// check compares what is in force with what was set up, by the node's own record: neither the API server nor what today's
// pod, configuration or plugin would make of it is asked. A runtime that is told of a difference makes the pod anew, so only
// redirection that is no longer in force is one; what cannot be told passes.
func (c *call) check(ctx context.Context) *types.Error {
	defer c.record(ctx)
	id, failure := parseArgs(c.env.args)
	if failure != nil {
		return failure
	}
	c.id = id
	c.event.decision, c.event.decided = selection.Decision{Reason: NoRecord}, true
	store := c.Attachments(c.config)
	record, readErr := store.Read(c.attachment())
	if readErr == nil {
		c.event.decision = selection.Decision{Selected: record.Selected, Reason: selection.Reason(record.Reason)}
	}
	ns, err := c.OpenNetNS(c.env.netns)
	switch {
	case errors.Is(err, netnsexec.ErrHost):
		return codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	case readErr == nil && !record.Selected:
		if err == nil {
			_ = ns.Close()
		}
		c.event.outcome = "passed"
		c.event.decision.Detail = "the pod was passed over at " + at(record)
		return nil
	case errors.Is(err, netnsexec.ErrNotNetNS), errors.Is(err, netnsexec.ErrGone):
		return codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	case err != nil:
		return c.unknown("the network namespace cannot be opened: %v", err)
	}
	defer func() { _ = ns.Close() }()
	switch {
	case errors.Is(readErr, fs.ErrNotExist):
		return c.unknown("there is no record of what ADD did")
	case readErr != nil:
		return c.unknown("%v", readErr)
	case !record.NetNS.Is(ns.ID()):
		c.event.decision = selection.Decision{Reason: NoRecord}
		return c.unknown("the record is of another network namespace, %s", record.NetNS.Path)
	}
	return c.compare(ctx, ns, store, record)
}

// compare asks the backend that set the rules up.
func (c *call) compare(ctx context.Context, ns NetNS, store attachment.Store, record attachment.Record) *types.Error {
	diffs, err := c.differences(ctx, ns, record)
	if err != nil {
		return c.unknown("%v", err)
	}
	if len(diffs) > 0 && !c.superseded(ctx, ns, store) {
		lines := make([]string, len(diffs))
		for i, d := range diffs {
			lines[i] = d.String()
		}
		c.event.decision.Detail = "not all that was set up at " + at(record) + " is in force"
		return hint(fail(CodeDiffers, "rules of pod %s differ: %s", c.id, strings.Join(lines, "; ")),
			"delete the pod to have it set up anew")
	}
	c.event.outcome = "checked"
	c.event.decision.Detail = "what was set up at " + at(record) + " is in force"
	return nil
}

// differences returns how what is live differs from what was set up. A panic is an error here: a record that has come to
// harm in a way nobody thought of must not take pods away.
func (c *call) differences(ctx context.Context, ns NetNS, record attachment.Record) (diffs []ruleset.Difference, err error) {
	defer func() {
		if r := recover(); r != nil {
			f := asFault(r)
			c.logger().Error("CHECK panicked", "error", fmt.Sprint(f.value), "stack", string(f.stack))
			diffs, err = nil, fmt.Errorf("internal error: %v", f.value)
		}
	}()
	rules := record.InForce()
	for _, f := range ruleset.Families {
		if p := rules.Program(f); p != nil && len(p.Chains) > 0 {
			c.event.families = append(c.event.families, f.String())
		}
	}
	if rules.IPv4 == nil && rules.IPv6 == nil {
		return nil, nil
	}
	name := apply.Name(record.Backend)
	c.event.backend = name
	backend, err := ns.Backend(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("choose the backend %s, which set the rules up: %w", name, err)
	}
	if diffs, err = backend.Check(ctx, rules); err != nil {
		return nil, fmt.Errorf("look at the live rules: %w", err)
	}
	diffs, others := record.Lost(diffs)
	for _, d := range others {
		c.event.warnings = append(c.event.warnings, d.String())
	}
	return diffs, nil
}

// superseded reports whether what another record of the same namespace says is in force: a pod may have several
// attachments through this plugin, each of which sets the rules of the whole namespace, and the latest counts.
func (c *call) superseded(ctx context.Context, ns NetNS, store attachment.Store) bool {
	own := c.attachment()
	families, backend := c.event.families, c.event.backend
	for other, err := range store.All() {
		if err != nil || other.ID == own || !other.Selected || !other.NetNS.Is(ns.ID()) {
			continue
		}
		c.event.families = nil
		if diffs, err := c.differences(ctx, ns, other); err == nil && len(diffs) == 0 {
			return true
		}
	}
	c.event.families, c.event.backend = families, backend
	return false
}

// at says when and by whom a record was written.
func at(r attachment.Record) string {
	return r.Time.UTC().Format("2006-01-02T15:04:05Z") + " by " + r.By
}

// unknown lets a pod pass of which nothing can be said.
func (c *call) unknown(format string, args ...any) *types.Error {
	c.event.outcome = "unknown"
	c.event.decision.Detail = fmt.Sprintf(format, args...)
	return nil
}
