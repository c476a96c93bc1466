package repair

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory"
	"github.com/meshcni/meshcni/internal/node/judge"
	"github.com/meshcni/meshcni/internal/node/podkeep"
	"github.com/meshcni/meshcni/internal/node/podrules"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// Detection names the places where a [Controller] looks for pods in the mesh that started without the plugin: beside the API server's
// pods, in libcni's cache and in the plugin's records (Options.Records). It takes no privilege but to read these.
type Detection struct {
	// CacheDir is libcni's cache, as this process sees it. Required. While it cannot be read, the records alone tell.
	CacheDir string
	// Types are the plugin's names in the network's configuration. Empty means the identity's Plugin.
	Types []string
	// AgentNamespace has the node agent's own pods, which the plugin lets through: those whose names begin with the identity's
	// AgentPrefix. Empty: there are none.
	AgentNamespace string
	// Act makes Options.Action concern the pods that are found, also those that have no check of their own.
	Act bool
	// Lost narrows Act to pods that lost the plugin. nil: it concerns all that are not captured.
	Lost *Lost
}

// Lost says which of the pods that are not captured had reason to rely on the plugin: those whose network was set up without it although
// it had been installed on the node, by no plugin of another mesh. Pods that ran before it was installed are not among them.
type Lost struct {
	// Since returns when the plugin was first in place on the node. Zero: not known, and then no pod has lost it. Required.
	Since func() time.Time
	// Neighbours are the types of other meshes' plugins.
	Neighbours []string
}

// has reports whether a pod has lost the plugin.
func (l *Lost) has(pod *corev1.Pod, now status.Pod, found inventory.Reading) bool {
	if l == nil || now.State != status.StateFailed || now.Reason != status.CodeNotCalled {
		return false
	}
	since := l.Since()
	return !since.IsZero() && now.Since.After(since) && !slices.ContainsFunc(found.Sandbox(pod), func(n inventory.Row) bool {
		return slices.ContainsFunc(n.Types, func(typ string) bool { return slices.Contains(l.Neighbours, typ) })
	})
}

// eventBypass is the reason of the event about a pod that leaves ways past the mesh open.
const eventBypass = "MeshBypass"

// detect finds out whether a pod is captured, and reports it if that is news. It is called for each change of a pod, and
// for all pods now and then.
func (c *Controller) detect(pod *corev1.Pod, found inventory.Reading) {
	c.detecting.Lock()
	defer c.detecting.Unlock()
	was := c.track(pod)
	t := was
	seen, mesh := c.look(pod, found)
	t.seenIn = seen
	now := c.captured(pod, t)
	t.lost = c.opts.Detect.Lost.has(pod, now, found)
	if mesh != nil {
		t.dialect = mesh.Name
	}
	if j := c.judged(pod); now.State == status.StateCaptured && j != t.extentOf {
		t.extent, t.extentOf = c.extent(pod), j
	}
	if now.State != status.StateFailed {
		t.capture = now
	}
	if now.State == status.StateCaptured {
		t.told = "" // should it start anew without the plugin, that is news
	}
	c.note(pod, func(is *track) {
		is.seenIn, is.lost, is.dialect, is.extent, is.extentOf, is.capture, is.told = t.seenIn, t.lost, t.dialect, t.extent, t.extentOf, t.capture, t.told
	})
	log := c.log(pod)
	switch {
	case mesh == nil || now.State == was.capture.State && now.Reason == was.capture.Reason && (now.State != status.StateFailed || was.told == now.Reason):
	case now.State == status.StateFailed:
		c.foundUncaptured(pod, now)
	case now.State == status.StateUnknown:
		log.Info("cannot tell whether a pod is captured", "reason", string(now.Reason), "detail", words(fmt.Errorf("%s", now.Detail)))
	case was.capture.State == status.StateFailed:
		log.Info("a pod is captured now", "reason", string(now.Reason), "detail", now.Detail)
	}
}

// extent has the part that the pod's own rules leave out, all connections, or those of a direction, else no state; and the ways past the
// mesh that it surely has.
func (c *Controller) extent(pod *corev1.Pod) (s status.Pod) {
	plan, err := c.plan(pod, redirect.Kernel{})
	if err != nil {
		return s
	}
	if s = podrules.Extent(plan); s.Reason != status.CodeNothingCaptured && s.Reason != status.CodePartly {
		return status.Pod{Bypasses: s.Bypasses}
	}
	return s
}

// foundUncaptured counts and logs a pod, and sends its event, once for each code. An event that the limit holds back is sent by
// a later call.
func (c *Controller) foundUncaptured(pod *corev1.Pod, now status.Pod) {
	was := c.track(pod)
	detail := "this pod is in the mesh and its traffic bypasses it: " + now.Detail + "; " + c.remedy(pod)
	if was.capture.State != status.StateFailed || was.capture.Reason != now.Reason {
		c.metrics.uncaptured.WithLabelValues(string(now.Reason)).Inc()
		c.log(pod).Warn("a pod in the mesh is not captured", "reason", string(now.Reason), "detail", truncate.Text(detail, maxNote))
	}
	told := was.told == now.Reason
	if !told && c.mayTell() {
		c.tell(pod, status.KindVerification, statuscode.Uncaptured, detail)
		told = true
	}
	c.note(pod, func(t *track) {
		t.capture, t.uncaptured = now, now.Reason
		if told {
			t.told = now.Reason
		}
	})
}

// remedy returns the cure of a pod that is not captured.
func (c *Controller) remedy(pod *corev1.Pod) string {
	cure := "delete the pod: the one that replaces it is captured"
	_, static := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case static:
		cure = "it is a static pod: move its manifest away from the kubelet's directory and back"
	case metav1.GetControllerOfNoCopy(pod) == nil:
		cure = "delete the pod and create it again, since nothing replaces it"
	}
	if c.opts.Installed != nil && c.opts.Installed() != nil {
		cure = "once the node's agent is ready again, " + cure
	}
	if _, err := c.plan(pod, anyFamily); err != nil {
		cure = fmt.Sprintf("its settings would be refused (%s): correct these, then %s", truncate.Error(err, maxNote/2), cure)
	}
	return cure
}

// plan returns what the mesh means for a cached pod. It is empty while the namespace is needed and not known, and of a pod of the
// node's proxy.
func (c *Controller) plan(pod *corev1.Pod, kernel redirect.Kernel) (dialect.Plan, error) {
	j := c.judged(pod)
	if j.May(sidecars) == nil {
		return dialect.Plan{}, nil
	}
	p, err := j.Plan(judge.Addrs(pod), kernel)
	if errors.Is(err, redirect.ErrNamespaceUnknown) {
		return dialect.Plan{}, nil // it says nothing about the pod's settings
	}
	return p, err
}

// sight holds detection's last look at a pod.
type sight struct {
	in            bool       // a mesh has it, or may have it
	unsure, trace status.Pod // zero: there is nothing that is not sure, and nobody has looked for traces
}

// look sees what the node has of a pod, and which mesh has it, or may have it. The mesh is nil for a pod that has no network yet, or that
// none has.
func (c *Controller) look(pod *corev1.Pod, found inventory.Reading) (sight, *dialect.Dialect) {
	mesh, err := c.mine(pod)
	if mesh == nil {
		return sight{}, nil
	}
	seen := sight{in: true, trace: traced(found, pod, c.types())}
	if err != nil {
		seen.unsure = status.Pod{Reason: statuscode.Namespace, Detail: err.Error()}
		switch {
		case errors.Is(err, podkeep.ErrTooLarge):
			seen.unsure.Reason = statuscode.TooLarge
		case errors.As(err, new(*dialect.InvalidError)):
			seen.unsure.Reason = statuscode.Dialect
		}
	}
	return seen, mesh
}

// types are those under which the plugin is called.
func (c *Controller) types() []string {
	if c.opts.Detect == nil {
		return nil
	}
	return c.opts.Detect.Types
}

// evidence is all that there is of a pod.
func (c *Controller) evidence(pod *corev1.Pod, t track) evidence {
	e := evidence{
		in: t.seenIn.in, unsure: t.seenIn.unsure.Reason, other: t.other != "", trace: t.seenIn.trace.Reason, check: c.checked(pod).Reason,
		rules: t.verified, drifted: t.drifted, part: t.extent, past: len(t.past) > 0, handled: c.criteria(pod).handled(pod),
	}
	if e.past {
		e.part = podrules.Extent(dialect.Plan{Decision: selection.Decision{Selected: true}}, t.past...)
	}
	if d := c.opts.Detect; d != nil {
		e.acts, e.relied = d.Act && c.opts.Action != ActionNone, d.Lost == nil || t.lost
	}
	return e
}

// captured says whether a pod is captured, in words.
func (c *Controller) captured(pod *corev1.Pod, t track) status.Pod {
	state, reason := c.evidence(pod, t).captured()
	return c.said(pod, t, state, reason)
}

// said has the words of a state.
func (c *Controller) said(pod *corev1.Pod, t track, state status.State, reason status.Code) status.Pod {
	s := status.Pod{State: state, Reason: reason, Since: t.seenIn.trace.Since}
	switch reason {
	case t.seenIn.unsure.Reason:
		s.Detail, s.Since = t.seenIn.unsure.Detail, time.Time{}
	case t.seenIn.trace.Reason:
		s.Detail, s.Backend = t.seenIn.trace.Detail, t.seenIn.trace.Backend
	case statuscode.CheckPassed:
		s.Detail = c.checked(pod).Detail
	case statuscode.Verified:
		s.Detail = "its live rules are the wanted ones"
	case statuscode.NoRules:
		s.Detail = "none of its rules is there, and nothing says that it had any"
	case statuscode.Rules:
		s.Detail = "its live rules are not the wanted ones"
	case statuscode.CannotTell:
		s.Detail = "verification names the rule, in the log"
	}
	s.Detail = truncate.Finding(s.Detail)
	return s
}

// mine returns the mesh that has a pod with a network. nil: the plugin would not redirect it, or the agent of the node's proxy
// does. An error says that this cannot be told, of a pod that the mesh may have.
func (c *Controller) mine(pod *corev1.Pod) (*dialect.Dialect, error) {
	switch {
	case pod.DeletionTimestamp != nil, pod.Status.Phase != corev1.PodRunning && (pod.Status.Phase != corev1.PodPending || len(pod.Status.PodIPs) == 0):
		return nil, nil
	case c.opts.isAgent(pod):
		return nil, nil
	}
	j := c.judged(pod)
	mesh := j.May(sidecars)
	if mesh == nil {
		return nil, nil
	}
	return mesh, j.Err
}

// checked is [Diagnose] with what the meshes say of the pod.
func (c *Controller) checked(pod *corev1.Pod) Finding {
	return diagnose(pod, c.criteria(pod), func() selection.Decision { return decision(c.judged(pod)) })
}

// diagnose is [Diagnose], and besides finds the pods that are not captured, if an action is to concern them.
func (c *Controller) diagnose(pod *corev1.Pod) Finding {
	f, t := c.checked(pod), c.track(pod)
	v := c.evidence(pod, t).verdict()
	if v.finding != f.Reason {
		return Finding{Broken: v.broken, Candidate: v.candidate, Reason: v.finding, Detail: c.captured(pod, t).Detail}
	}
	f.Candidate = v.candidate
	return f
}

// network returns the attachment by which a pod got its present network.
func (c *Controller) network(pod *corev1.Pod) (id attachment.ID, netns string) {
	for _, r := range c.inventory.Look().Sandbox(pod) {
		if r.Source == inventory.Cache {
			return r.ID, r.NetNS.Path
		}
	}
	return id, ""
}

// observe tells what there is to tell of a pod that has changed.
func (c *Controller) observe(pod *corev1.Pod) {
	if c.opts.Detect != nil {
		mesh, _ := c.mine(pod)
		c.detect(pod, c.inventory.Recent(func(r inventory.Reading) bool {
			return mesh == nil || traced(r, pod, c.opts.Detect.Types).State == status.StateCaptured
		}))
	}
	c.tellBypasses(pod)
}

// sweep looks at all pods, and forgets what there was of those that are gone.
func (c *Controller) sweep() {
	if c.opts.Detect == nil || !c.source.Synced() {
		return
	}
	found := c.inventory.Recent(nil)
	c.sayUnreadable(found.Err())
	for _, pod := range c.pods() {
		was := c.track(pod)
		c.detect(pod, found)
		now := c.track(pod)
		if now.capture.State == status.StateFailed && (was.capture.State != status.StateFailed || now.lost && !was.lost) {
			c.enqueue(pod)
		}
	}
	c.findOthers()
}

// sayUnreadable logs once what cannot be read.
func (c *Controller) sayUnreadable(err error) {
	text := ""
	if err != nil {
		text = words(err)
	}
	c.mu.Lock()
	news := text != c.unreadable
	c.unreadable = text
	c.mu.Unlock()
	switch {
	case news && err != nil:
		c.opts.Log.Warn("what the node has of its pods' attachments cannot all be read, so pods without rules may not be found", "error", text)
	case news:
		c.opts.Log.Info("what the node has of its pods' attachments can be read")
	}
}

// The states of the metric meshcni_pods, which exclude each other.
const (
	countCaptured   = "captured"
	countUncaptured = "uncaptured" // [status.StateFailed]
	countCannotTell = "cannot-tell"
	countDrifted    = "drifted"
	countBroken     = "broken"
	countNothing    = string(status.CodeNothingCaptured)
	countOther      = string(statuscode.OtherDialect)
	countOutside    = "outside"
)

var podStates = []string{countCaptured, countUncaptured, countCannotTell, countDrifted, countBroken, countNothing, countOther, countOutside}

// stateOf returns the one state in which a pod counts.
func (c *Controller) stateOf(pod *corev1.Pod) string {
	return c.evidence(pod, c.track(pod)).verdict().counts
}

// Pods returns the node's pods with a network that are in the mesh, or in one of the meshes that the node is not configured for, by namespace and name. Without
// Options.Detect there are none.
func (c *Controller) Pods() (all []status.Pod) {
	for _, pod := range c.pods() {
		t := c.track(pod)
		e := c.evidence(pod, t)
		v := e.verdict()
		var s status.Pod
		switch {
		case e.in && v.state != "":
			s = c.said(pod, t, v.state, v.reason)
			s.Dialect = t.dialect
			part := v.reason == e.part.Reason && v.reason != ""
			if part {
				s.Detail = e.part.Detail
			}
			if part || s.State == status.StateCaptured {
				s.Bypasses = e.part.Bypasses
			}
		case t.other != "":
			s = c.ofOther(t.other)
		default:
			continue
		}
		s.ID = status.ID{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b status.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// withDefaults fills in zero values.
func (d Detection) withDefaults(id meshcni.Identity) *Detection {
	if len(d.Types) == 0 {
		d.Types = []string{id.Plugin}
	}
	return &d
}

// isAgent reports whether a pod is the node agent's own.
func (o Options) isAgent(pod *corev1.Pod) bool {
	return pod.Namespace == o.Detect.AgentNamespace && strings.HasPrefix(pod.Name, o.Identity.AgentPrefix())
}
