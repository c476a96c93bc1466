package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// Outcome is the end of an ADD or CHECK.
type Outcome string

const (
	Passed     Outcome = "passed"     // the pod is outside the mesh, and nothing was done
	Redirected Outcome = "redirected" // ADD applied the rules
	Same       Outcome = "same"       // ADD found the rules in place
	Checked    Outcome = "checked"    // CHECK found the rules in place
	Unknown    Outcome = "unknown"    // CHECK could not tell, and let the pod be
	Failed     Outcome = "failed"     // the plugin returned an error, whether it had decided or not
)

// Outcomes lists all outcomes, for metrics that start at zero.
func Outcomes() []Outcome { return []Outcome{Passed, Redirected, Same, Checked, Unknown, Failed} }

// The codes of the warnings about a run, which join those about the pod's settings ([warning.Codes]). They are
// stable: never renamed, never reused.
const (
	// warningBypass: a way past the mesh is open; Event.Bypasses has its kind.
	warningBypass warning.Code = "bypass"
	// warningUnusable: the namespace does not accept an address or a route now; see [apply.Unusable].
	warningUnusable warning.Code = "unusable"
	// warningBeside: a pod of IPv6 alone has an IPv4 address that no plugin named, and its proxy may not listen there.
	warningBeside warning.Code = "ipv4-beside"
	// warningNotWritten: the record or the status annotation of a pod that is captured could not be written.
	warningNotWritten warning.Code = "not-written"
	// warningDiffers: CHECK found a difference that leaves redirection in force.
	warningDiffers warning.Code = "differs"
	// warningCannotTell: whether packets of the pod come to its rules cannot be told, for rules of others that are before them.
	warningCannotTell warning.Code = "cannot-tell"
)

// PodSource is the source of a pod.
type PodSource string

const (
	fromAgent PodSource = "agent" // the node's agent, by its socket
	fromAPI   PodSource = "api"   // Plugin.OpenPods, usually the API server
)

// Event is the account of one run of the plugin: the values of its log records.
type Event struct {
	Verb string // the CNI_COMMAND
	// Pod is the pod as the runtime names it; zero if it names none.
	Pod                status.ID
	ContainerID, NetNS string

	// Decision tells a redirected pod from others, with the cause. Its Reason is empty if the run did not get that far, as with DEL
	// or with an ADD that could not read the pod.
	Decision selection.Decision
	// Outcome is set by every ADD and CHECK, and empty with the other verbs.
	Outcome Outcome
	// Dialect is the name of the mesh that has the pod; empty: none, or the run did not get that far. After ADD, Answers are
	// what each of several meshes says of the pod, in order; nil: there is only one, or it was not asked.
	Dialect string
	Answers []dialect.Answer
	// Backend is the one that was used; empty: none.
	Backend ruleset.Backend
	// Families have capturing rules in the kernel. Addressed are those of the pod's addresses.
	Families, Addressed []ruleset.Family
	// Warnings include those of the decision. Their codes are redirect's and those of this package.
	Warnings warning.List
	// Bypasses are the ways past the mesh that the pod leaves open.
	Bypasses []dialect.BypassCode
	// DefaultBypasses are those of them that nobody asked for: what container runtimes grant to each container; see [dialect.Bypass.ByDefault].
	DefaultBypasses []dialect.BypassCode
	// APICalls counts the requests to the source of pods.
	APICalls int
	// PodSource is the source of the pod; empty: it was not read.
	PodSource PodSource

	// idle is how many of the warnings are about a family that the pod has no address of, and that does not work in its namespace.
	idle int

	Duration time.Duration
	// Err is the error on stdout; nil: the run succeeded.
	Err *types.Error
}

// FailReason is the code of why an ADD failed. It is empty unless the run is an ADD that failed.
func (e Event) FailReason() status.Code {
	switch {
	case e.Verb != "ADD" || e.Err == nil:
		return ""
	case e.Err.Code == types.ErrInvalidNetworkConfig && e.Decision.Selected:
		return status.CodePodRefused
	}
	return statuscode.AddFailed
}

// event returns what an ADD has to say.
func (c captured) event() Event {
	e := Event{
		Decision: c.decision, Outcome: c.outcome, Dialect: c.plan.Dialect, Answers: c.plan.Answers, Backend: c.backend, Addressed: c.plan.Addressed, Bypasses: c.plan.BypassCodes(),
		DefaultBypasses: defaultCodes(c.plan),
		APICalls:        c.answer.calls + c.patched, PodSource: c.answer.source,
		Warnings: slices.Concat(c.decision.Warnings, c.plan.Warnings),
	}
	for _, b := range c.plan.Bypasses {
		e.Warnings = append(e.Warnings, warning.Warning{Code: warningBypass, Text: b.String()})
		if b.Code == dialect.BypassIPv6 && !b.Addr.IsValid() && !b.Unsure { // as in nearly every pod of a cluster without IPv6; the agent says so once
			e.idle++
		}
	}
	e.Warnings = append(e.Warnings, c.warnings...)
	for _, w := range e.Warnings {
		if w.Code == warning.FamilyAbsent || w.Code == warningBeside { // every pod of such a cluster has it
			e.idle++
		}
	}
	for _, u := range c.result.Unusable {
		if there := c.kernel.Family(u.Family); there == redirect.PresenceOff && !slices.Contains(c.plan.Addressed, u.Family) {
			e.idle++
		}
		e.Warnings = append(e.Warnings, warning.Warning{Code: warningUnusable, Text: u.String()})
	}
	for _, u := range c.left {
		e.Warnings = append(e.Warnings, warning.Warning{Code: warningUnusable, Text: u})
	}
	applied := c.outcome == Redirected || c.outcome == Same
	for _, f := range c.plan.Captured {
		if applied && !slices.Contains(c.result.Skipped, f) {
			e.Families = append(e.Families, f)
		}
	}
	return e
}

// finish completes the event, logs it and hands it to the hook. It returns an error if logging panics.
func (r *run) finish(ctx context.Context, e Event, failure *types.Error) (unlogged *types.Error) {
	defer r.rescue(&unlogged)
	e.Verb, e.ContainerID, e.NetNS, e.Err = r.command, r.attachment.ContainerID, r.netns, failure
	e.Pod = status.ID{Namespace: r.pod.namespace, Name: r.pod.name, UID: r.pod.uid}
	e.Duration = time.Since(r.begin)
	if failure != nil && (r.command == "ADD" || r.command == "CHECK") {
		e.Outcome = Failed
	}
	ms := float64(e.Duration.Microseconds()) / 1000
	if d := e.Decision; d.Reason != "" {
		level := slog.LevelInfo
		if len(e.Warnings) > e.idle && e.Verb == "ADD" {
			level = slog.LevelWarn
		}
		attrs := []any{
			"reason", string(d.Reason), "selected", d.Selected, "detail", truncate.Text(d.Detail, maxMessage),
			"outcome", string(e.Outcome), "verb", e.Verb,
			"pod", e.Pod.Name, "namespace", e.Pod.Namespace, "uid", e.Pod.UID,
			"container_id", e.ContainerID, "netns", e.NetNS,
			"backend", string(e.Backend), "families", texts(e.Families),
			"address_families", texts(e.Addressed), "warnings", truncate.List(e.Warnings.Texts(), maxMessage),
			"bypasses", texts(e.Bypasses),
			"default_bypasses", texts(e.DefaultBypasses),
			"api_calls", e.APICalls, "pod_source", string(e.PodSource), "duration_ms", ms,
		}
		if len(e.Answers) > 0 {
			attrs = append(attrs, "dialect", e.Dialect, "answers", answers(e.Answers))
		}
		r.logger().Log(ctx, level, "decision", attrs...)
	}
	if failure != nil {
		attrs := []any{
			"verb", e.Verb, "reason", string(e.FailReason()), "code", failure.Code, "error", failure.Msg, "hint", failure.Details,
			"pod", e.Pod.Name, "namespace", e.Pod.Namespace, "uid", e.Pod.UID, "container_id", e.ContainerID,
			"netns", e.NetNS, "duration_ms", ms, "api_calls", e.APICalls,
		}
		if r.stack != nil {
			attrs = append(attrs, "stack", string(r.stack))
		}
		r.logger().ErrorContext(ctx, "failed", attrs...)
	}
	quietly(func() { r.OnEvent(ctx, e) })
	return nil
}

// answers names each mesh and the reason of its decision.
func answers(all []dialect.Answer) []string {
	said := make([]string, len(all))
	for i, a := range all {
		said[i] = a.Dialect + ": " + string(a.Reason)
	}
	return said
}

// texts is never nil, so that a log record has a list.
func texts[T any](list []T) []string {
	out := []string{}
	for _, s := range list {
		out = append(out, fmt.Sprint(s))
	}
	return out
}

// defaultCodes returns the codes of bypasses that are open only by what container runtimes grant to each container.
func defaultCodes(p dialect.Plan) []dialect.BypassCode {
	return slices.DeleteFunc(p.BypassCodes(), func(code dialect.BypassCode) bool {
		return slices.ContainsFunc(p.Bypasses, func(b dialect.Bypass) bool { return b.Code == code && !b.ByDefault() })
	})
}
