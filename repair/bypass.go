package repair

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/podid"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

// Bypasses is the plugin's report of a pod whose traffic can bypass the mesh. The plugin has no right to write events,
// so the controller does.
type Bypasses struct {
	// Namespace, Name and UID are the pod's, as the runtime names it. An empty UID is not known.
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

const (
	// maxReports bounds the reports that wait for their pods. A node has fewer pods.
	maxReports = 1024
	// maxWaits bounds the ticks for which a report waits for its pod to be seen.
	maxWaits = 6
)

// reports are those that wait for their pod.
type reports struct {
	mu    sync.Mutex
	byPod map[types.NamespacedName]report
}

type report struct {
	Bypasses

	waits int
}

// of reports whether the report is of the pod, or of one of its name of which the runtime gave no UID.
func (r report) of(pod *corev1.Pod) bool {
	return r.UID == "" || r.UID == string(pod.UID) || podid.Is(pod, r.Namespace, r.Name, r.UID)
}

// ReportBypasses sends an event for each bypass of a pod of this node, once for each of the pod's UIDs. It does not wait: it may be
// called before the pod is known here.
func (c *Controller) ReportBypasses(b Bypasses) {
	named := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	var codes []dialect.BypassCode
	for _, code := range dialect.BypassCodes {
		if slices.Contains(b.Codes, code) {
			codes = append(codes, code)
		}
	}
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	if c.reports.byPod == nil {
		c.reports.byPod = map[types.NamespacedName]report{}
	}
	if _, known := c.reports.byPod[named]; len(codes) == 0 || !known && len(c.reports.byPod) >= maxReports {
		return
	}
	b.Codes = codes
	c.reports.byPod[named] = report{Bypasses: b}
	if pod := c.named(named); pod != nil {
		c.enqueue(pod)
	}
}

// tellBypasses sends the events of a pod's report, if there is one.
func (c *Controller) tellBypasses(pod *corev1.Pod) {
	c.reports.mu.Lock()
	r, ok := c.reports.byPod[key(pod)]
	c.reports.mu.Unlock()
	if !ok || !r.of(pod) { // it is of a pod that has yet to be seen
		return
	}
	held := false
	told := c.track(pod).bypasses
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
	if held {
		return
	}
	c.reports.mu.Lock()
	delete(c.reports.byPod, key(pod))
	c.reports.mu.Unlock()
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

// retryReports has another look at the pods with reports, and drops those whose pods do not appear, or were replaced.
func (c *Controller) retryReports() {
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	for named, r := range c.reports.byPod {
		pod := c.named(named)
		if r.waits++; r.waits > maxWaits && (pod == nil || !r.of(pod)) {
			delete(c.reports.byPod, named)
			continue
		}
		c.reports.byPod[named] = r
		if pod != nil {
			c.enqueue(pod)
		}
	}
}
