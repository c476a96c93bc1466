package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/kernel/bypass"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// check compares the live rules with what ADD recorded. It uses neither the API server nor today's configuration. A runtime
// recreates a pod whose CHECK fails, so check fails only if redirection is no longer in force, or packets do not come to it in a pod that may
// not be one of a sandboxed runtime, and passes if it cannot tell.
func (r *run) check(ctx context.Context) (e Event, failure *types.Error) {
	defer r.rescue(&failure)
	e.Decision.Reason = status.CodeNoRecord
	store := r.Attachments(r.config)
	record, unread := store.Read(r.attachment)
	if unread == nil {
		e.Decision = selection.Decision{Selected: record.Selected, Reason: record.Reason}
		if record.Selected {
			e.Dialect = record.Dialect
		}
	}
	ns, err := r.OpenNetNS(r.netns)
	if err == nil {
		defer func() { _ = ns.Close() }()
	}
	switch {
	case errors.Is(err, netnsexec.ErrHost):
		return e, codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	case unread == nil && !record.Selected:
		return e.ends(Passed, "the pod was passed over at %s", at(record)), nil
	case errors.Is(err, netnsexec.ErrNotNetNS), errors.Is(err, netnsexec.ErrGone):
		return e, codeOf(err, types.ErrInvalidNetNS, "CNI_NETNS")
	case err != nil:
		return e.ends(Unknown, "the network namespace cannot be opened: %v", err), nil
	case errors.Is(unread, fs.ErrNotExist):
		return e.ends(Unknown, "there is no record of what ADD did"), nil
	case unread != nil:
		return e.ends(Unknown, "%v", unread), nil
	case !record.NetNS.Is(ns.ID()):
		e.Decision, e.Dialect = selection.Decision{Reason: status.CodeNoRecord}, ""
		return e.ends(Unknown, "the record is of another network namespace, %s", record.NetNS.Path), nil
	}

	found, err := r.compare(ctx, ns, record)
	e.Families, e.Backend, e.Warnings = found.families, found.backend, found.warnings
	if err != nil {
		return e.ends(Unknown, "%v", err), nil
	}
	for _, b := range found.open {
		e.Bypasses = append(e.Bypasses, b.Code)
		e.Warnings = append(e.Warnings, warning.Warning{Code: warningBypass, Text: b.String()})
	}
	if len(found.open) > 0 {
		past := fmt.Sprintf("packets do not come to what was set up at %s", at(record))
		if r.config.AllowSandboxed {
			return e.ends(Unknown, "%s, as allow_sandboxed permits", past), nil
		}
		return e.ends(Failed, "%s", past), hint(fail(codeDiffers, "pod %s: %s", r.pod, found.open[0]), "allow_sandboxed is not true in the network configuration")
	}
	if len(found.lost) == 0 && found.unsure > 0 {
		return e.ends(Unknown, "whether packets come to what was set up at %s cannot be told: %s", at(record), found.warnings[0].Text), nil
	}
	if len(found.lost) > 0 {
		other, is := r.superseded(ctx, ns, store)
		if !is {
			return e.ends(Failed, "not all that was set up at %s is in force", at(record)), r.differs(found.lost)
		}
		e.Families, e.Backend = other.families, other.backend
	}
	return e.ends(Checked, "what was set up at %s is in force", at(record)), nil
}

// ends returns the event of a CHECK that came to the outcome.
func (e Event) ends(o Outcome, format string, args ...any) Event {
	e.Outcome, e.Decision.Detail = o, fmt.Sprintf(format, args...)
	return e
}

// at names the time and the writer of a record.
func at(record attachment.Record) string {
	return record.Time.UTC().Format("2006-01-02T15:04:05Z") + " by " + record.By
}

func (r *run) differs(lost []ruleset.Difference) *types.Error {
	lines := make([]string, len(lost))
	for i, d := range lost {
		lines[i] = d.String()
	}
	return hint(fail(codeDiffers, "rules of pod %s differ: %s", r.pod, strings.Join(lines, "; ")),
		"delete the pod to have it set up anew")
}

// comparison is the difference of the live rules from a record.
type comparison struct {
	families []ruleset.Family // that have rules in the record
	backend  ruleset.Backend
	lost     []ruleset.Difference // by which redirection is no longer in force
	warnings warning.List         // the other differences, those first that are none for sure
	unsure   int                  // as many of them
	open     []dialect.Bypass     // by which packets do not come to the rules
}

// compare asks the backend that set the rules up. A panic is an error here: a record that was damaged in a way nobody
// thought of must not take pods away.
func (r *run) compare(ctx context.Context, ns NetNS, record attachment.Record) (c comparison, err error) {
	defer func() {
		if v := recover(); v != nil {
			p := asPanic(v)
			r.logger().Error("CHECK panicked", "error", fmt.Sprint(p.Value), "stack", string(p.Stack))
			c.lost, err = nil, fmt.Errorf("internal error: %v", p.Value)
		}
	}()
	rules := record.InForce()
	if rules.IPv4 == nil && rules.IPv6 == nil {
		return c, nil
	}
	for _, f := range ruleset.Families {
		if p := rules.Family(f); p != nil && len(p.Chains) > 0 {
			c.families = append(c.families, f)
		}
	}
	c.backend = record.Backend
	backend, err := ns.Backend(ctx, c.backend)
	if err != nil {
		return c, fmt.Errorf("choose the backend %s, which set the rules up: %w", c.backend, err)
	}
	diffs, err := backend.Check(ctx, rules)
	if err != nil {
		return c, fmt.Errorf("look at the live rules: %w", err)
	}
	var addrs []netip.Addr
	if r.prev != nil {
		addrs = r.prev.addrs
	}
	open, unknown := bypass.Told(ns.Bypasses(addrs))
	c.open = open
	lost, others := record.Lost(append(unknown, diffs...))
	c.lost = lost
	for _, d := range others {
		w := warning.Warning{Code: warningDiffers, Text: d.String()}
		if d.Kind == ruleset.KindUnknown {
			w.Code = warningCannotTell
			c.warnings, c.unsure = slices.Insert(c.warnings, c.unsure, w), c.unsure+1
			continue
		}
		c.warnings = append(c.warnings, w)
	}
	return c, nil
}

// superseded finds another record of the same namespace that is in force: a pod may have several attachments through this
// plugin, each of which sets the rules of the whole namespace, and the latest counts.
func (r *run) superseded(ctx context.Context, ns NetNS, store attachment.Store) (comparison, bool) {
	for other, err := range store.All() {
		if err != nil || other.ID == r.attachment || !other.Selected || !other.NetNS.Is(ns.ID()) {
			continue
		}
		if c, err := r.compare(ctx, ns, other); err == nil && len(c.lost) == 0 {
			return c, true
		}
	}
	return comparison{}, false
}
