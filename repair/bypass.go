package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// Bypasses is the plugin's report of a pod whose traffic can bypass the mesh. The plugin has no right to write events,
// so the controller does.
type Bypasses struct {
	// Namespace, Name and UID are the pod's, as the runtime names it. Without a UID nothing is told.
	Namespace, Name, UID string
	// Codes are the ways past the mesh. Others than [dialect.BypassCodes] are ignored.
	Codes []dialect.BypassCode
	// AddressFamilies are those of the pod's addresses, which its status may not have yet. Empty: not known.
	AddressFamilies []ruleset.Family
}

// anyFamily is the kernel of a pod whose plugin reported a bypass by a family: it has it.
var anyFamily = redirect.Kernel{IPv4: redirect.PresenceUsable, IPv6: redirect.PresenceUsable}

// bypassed are the families that pass by the mesh, by the bypasses that say so.
var bypassed = map[dialect.BypassCode]ruleset.Family{dialect.BypassIPv4: ruleset.IPv4, dialect.BypassIPv6: ruleset.IPv6}

// reportWaits bounds the time for which a report waits for its pod to be seen.
const reportWaits = time.Minute

func (b Bypasses) pod() status.ID { return status.ID{Namespace: b.Namespace, Name: b.Name, UID: b.UID} }

// ReportBypasses sends an event for each bypass of a pod of this node, once for each of the pod's UIDs. It does not wait: it may be
// called a minute before the pod is known here.
func (c *Controller) ReportBypasses(b Bypasses) {
	b.Codes = slices.DeleteFunc(slices.Clone(b.Codes), func(code dialect.BypassCode) bool { return !slices.Contains(dialect.BypassCodes, code) })
	if len(b.Codes) == 0 || b.UID == "" {
		return
	}
	uid := types.UID(b.UID)
	if pod := c.source.Known(b.pod()); pod != nil {
		uid = c.source.RuntimeUID(pod)
	}
	c.tracks.Change(uid, func(t *track) { t.report, t.reported = b, time.Now() })
	c.queue.Add(uid)
}

// tellBypasses sends the events of a pod's report, if there is one.
func (c *Controller) tellBypasses(pod *corev1.Pod) {
	t := c.track(pod)
	r, told, held := t.report, t.bypasses, false
	if len(r.Codes) == 0 {
		return
	}
	plan, _ := c.plan(pod, anyFamily) // with an error, what is known of it
	for _, code := range r.Codes {
		if slices.Contains(told, code) {
			continue
		}
		kind, detail := c.bypassWords(r.AddressFamilies, plan, code)
		if _, family := bypassed[code]; family && kind == corev1.EventTypeNormal {
			if !c.familyTold(detail) {
				c.event(pod, kind, eventBypass, detail+"; so do the node's other pods of which nothing is said")
			}
		} else if c.mayTellBypass() {
			c.event(pod, kind, eventBypass, detail)
		} else {
			held = true // the next tick goes on
			continue
		}
		told = append(slices.Clone(told), code)
		c.note(pod, func(t *track) { t.bypasses = told })
	}
	if !held {
		c.note(pod, func(t *track) { t.report = Bypasses{} })
	}
}

// familyTold reports whether it has been said of a pod of the node that it has a family's link-local address alone, for this cause. Nearly
// every pod has one.
func (c *Controller) familyTold(cause string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.families[cause]
	c.families[cause] = true
	return told
}

// bypassWords returns an event's kind and message. It is no warning that a pod's settings leave out one direction, or that an init container
// that they let pass needs it, nor that a pod without address of a family has the link-local
// one that each interface gives itself: nearly every pod of a cluster without IPv6 does.
func (c *Controller) bypassWords(addressed []ruleset.Family, plan dialect.Plan, code dialect.BypassCode) (kind, detail string) {
	kind = corev1.EventTypeWarning
	var words []string
	for _, b := range plan.Bypasses {
		if b.Code == code {
			words = append(words, b.String())
		}
	}
	if len(words) == 0 {
		words = []string{fmt.Sprintf("the plugin reported a way past the mesh (%s); %s explain says more", code, c.opts.Identity.Program("redirect"))}
	}
	if state, _ := plan.State(); state != status.StateFailed && (code == dialect.BypassInbound || code == dialect.BypassOutbound) || code == dialect.BypassInitID {
		kind = corev1.EventTypeNormal
	}
	family, ok := bypassed[code]
	if ok && len(addressed) > 0 && !slices.Contains(addressed, family) {
		kind = corev1.EventTypeNormal
	}
	return kind, string(code) + ": " + strings.Join(words, "; ")
}

// retryReports has another look at the pods with reports.
func (c *Controller) retryReports() {
	for uid, t := range c.tracks.All() {
		if len(t.report.Codes) > 0 && c.source.Known(t.report.pod()) != nil {
			c.queue.Add(uid)
		}
	}
}
