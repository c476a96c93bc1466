package live

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/diagnosis/agents"
	"github.com/meshcni/meshcni/internal/node/news"
	"github.com/meshcni/meshcni/internal/program/remedy"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

func (p Pod) lifecycle() *Now {
	switch {
	case p.Pod.DeletionTimestamp != nil:
		return now(statuscode.Ending, "", nil, "Nothing; ask about the pod that replaces it")
	case p.Pod.Spec.NodeName != "":
		return nil
	}
	n := now(statuscode.Unscheduled, "", nil, "See what the scheduler says: "+p.kubectl("describe pod "+p.Pod.Name))
	if e := p.OnNode.last("FailedScheduling"); e != nil {
		n.Because = bounded([]string{e.Message})
		if strings.Contains(e.Message, p.Identity.Taint()) {
			n.Do = []string{p.Identity.Text("A node takes no pods until its agent is ready: kubectl meshcni status says why it is not")}
		}
	}
	return n
}

// refusedNow reports whether the pod's settings are refused, by what decides now.
func (p Pod) refusedNow() bool {
	v := p.Explained.Verdict
	return v.State == status.StateRefused && v.Code != status.CodeNamespaceUnknown
}

// refused is about settings with which the pod does not start.
func (p Pod) refused() *Now {
	v := p.Explained.Verdict
	switch {
	case !p.refusedNow():
		return nil
	case p.started():
		return now(statuscode.WouldRefuse, "", v.Because, v.Do...)
	}
	return now(status.CodeRefused, v.Sentence, v.Because, v.Do...)
}

// unasked is about an agent that cannot tell anything, or has not put the plugin there.
func (p Pod) unasked() *Now {
	node, i := p.Pod.Spec.NodeName, p.Node.Installed
	switch {
	case errors.Is(p.Asking, agents.ErrNoAgents):
		return now(statuscode.NoAgent, p.Identity.WithDefaults().Name+" does not seem to be installed: no node of this cluster has its agent, so nothing makes sure that pods of a mesh are captured.", nil,
			"See whether it is: "+daemonSets(p.AgentLabels)+"; if a DaemonSet is listed, its nodeSelector or its tolerations keep its pods off the nodes",
			"If none is listed, install the chart as README.md says; if its pods have other labels, name them by --agent-selector",
			remedy.Then(p.Identity.Text("Once kubectl meshcni status says that the node is ready,"), p.Pod))
	case errors.Is(p.Asking, agents.ErrNoAgent):
		return now(statuscode.NoAgent, "Node "+node+", where this pod is, has no agent: new pods of the mesh are not captured there, or do not start.", nil,
			"See why the agents' DaemonSet has no pod there (its nodeSelector, its tolerations): "+daemonSets(p.AgentLabels),
			remedy.Then("Once the agent is ready,", p.Pod))
	case p.Asking != nil:
		if p.OnNode.told() && p.started() { // a pod on the node has read what is there
			if n := p.redirection(); n != nil {
				return n
			}
		}
		n := now(statuscode.AgentSilent, "The agent of node "+node+" does not answer, so it is not known how this pod is.", bounded([]error{p.Asking}))
		if p.Agent.Name != "" {
			n.Do = append(n.Do, fmt.Sprintf("See how the agent is: kubectl --namespace %s describe pod %s", p.Agent.Namespace, p.Agent.Name))
		}
		n.Do = append(n.Do, fmt.Sprintf("See that you may ask it: kubectl auth can-i create pods/portforward --namespace %s", cmp.Or(p.Agent.Namespace, p.Identity.WithDefaults().Namespace)))
		return n
	case p.Node.Node != "" && i.File == "" && !i.Unread && !i.Alone:
		return now(statuscode.NotInstalled, "No network configuration of node "+node+" has the plugin's entry: no pod that starts there is captured.", p.notReady(),
			"See why the agent has not put it there: kubectl --namespace "+p.Agent.Namespace+" logs "+p.Agent.Name,
			remedy.Then(p.Identity.Text("Once kubectl meshcni status says that the node is ready,"), p.Pod))
	}
	return nil
}

// daemonSets finds the agents' DaemonSet.
func daemonSets(selector string) string {
	return "kubectl get daemonset --all-namespaces --selector " + selector
}

// notReady are the reasons why the node's agent is not ready.
func (p Pod) notReady() []string {
	var all []string
	if p.Node.Ready {
		return nil
	}
	for _, why := range news.Reasons(p.Node.News) {
		all = append(all, "the node's agent is not ready: "+truncate.Text(why, maxMessage))
	}
	return all
}

// mendFirst puts the node before what there is to do about the pod.
func (p Pod) mendFirst(do ...string) []string {
	if len(p.notReady()) == 0 {
		return do
	}
	return append([]string{p.Identity.Text("First make the node's agent ready: kubectl meshcni status, and docs/troubleshooting.md#the-node-is-not-ready")}, do...)
}

// unstarted is about a pod without a network.
func (p Pod) unstarted() *Now {
	if p.started() || p.Pod.Spec.HostNetwork {
		return nil
	}
	e, st := p.OnNode.last("FailedCreatePodSandBox"), p.OnNode.State
	switch {
	case e == nil && st != nil && st.NeedsAttention(): // its event is over, and the agent knows why ADD failed
		why, do := p.about(*st)
		code := statuscode.NetworkFailed
		if st.Reason == status.CodePodRefused {
			code = status.CodeRefused
		}
		return now(code, "This pod does not start: "+why+".", append(bounded([]string{st.Detail}), p.notReady()...), p.mendFirst(do...)...)
	case e == nil:
		return p.silent()
	}
	_, message, ours := strings.Cut(e.Message, fmt.Sprintf("plugin type=%q failed (add): ", cmp.Or(p.Node.Installed.Type(), p.Identity.WithDefaults().Plugin)))
	if !ours {
		return now(statuscode.NetworkFailed, "This pod does not start: the container runtime cannot make its sandbox, for a reason that is not said to be this plugin's.", bounded([]string{e.Message}),
			"Mend what the message names: another CNI plugin, or the container runtime")
	}
	return now(statuscode.NetworkFailed, "This pod does not start: the plugin refuses to, since it could not capture it.", append(bounded([]string{message}), p.notReady()...),
		p.mendFirst("Mend what the message names; docs/troubleshooting.md#my-pod-does-not-start has each. The pod then starts by itself")...)
}

// silent is about a pod without a network of which no event says that its sandbox fails.
func (p Pod) silent() *Now {
	because, do := p.notReady(), p.mendFirst()
	describe := p.kubectl("describe pod " + p.Pod.Name)
	for _, e := range slices.Backward(p.OnNode.Events) {
		if e.Type == corev1.EventTypeWarning && e.Reason != "FailedScheduling" && !strings.HasPrefix(e.Reason, "Mesh") {
			said := bounded([]string{e.Reason + ": " + e.Message})
			return now(statuscode.Starting, "This pod has no network yet, and an event says that something fails.", append(said, because...), append(do, "Mend what the message names, if it goes on: "+describe)...)
		}
	}
	if err := p.OnNode.EventsError; err != "" {
		return now(statuscode.Starting, "This pod has no network yet. It is not known whether its sandbox fails: its events cannot be read.", append(bounded([]string{err}), because...),
			append(do, "See that you may list them: kubectl auth can-i list events --namespace "+p.Pod.Namespace, "See what its containers wait for: "+describe)...)
	}
	return now(statuscode.Starting, "", because, append(do, "Ask again in a few seconds; if it stays so: "+describe)...)
}

// sandboxFails returns the runtime's words on a pod whose sandbox fails, whoever else is at fault.
func (p Pod) sandboxFails() []string {
	e := p.OnNode.last("FailedCreatePodSandBox")
	if e == nil || p.started() {
		return nil
	}
	return bounded([]string{"the container runtime says: " + e.Message})
}

// about returns the meaning of what the agent says of the pod, and what to do.
func (p Pod) about(st status.Pod) (is string, do []string) {
	r := st.Row().For(p.Identity)
	if r.Code == "" {
		return "the agent says " + truncate.Text(string(st.Reason), maxMessage), []string{p.Identity.Text("kubectl meshcni check looks at the whole installation")}
	}
	for _, line := range r.Do {
		switch line {
		case status.Restart:
			line = status.Remedy(remedy.Restart(p.Pod))
		case status.BeSure:
			line = status.Remedy(remedy.Then("To be sure,", p.Pod))
		}
		do = append(do, string(line))
	}
	return r.Sentence, do
}

// unwell are the states of a pod of which the agent says that something is wrong.
var unwell = map[status.State]struct {
	code     status.Code
	sentence string
}{
	status.StateFailed:  {statuscode.Bypassing, "This pod bypasses the mesh: "},
	status.StateDrifted: {statuscode.RulesLost, "This pod is not captured as it should be: "},
	status.StateWaiting: {statuscode.Waiting, "This pod is not captured yet: "},
	status.StateUnknown: {statuscode.Unknown, "It is not known whether this pod is captured: "},
}

// redirection is about what the agent, the records and the live rules say of a pod that is to be captured.
func (p Pod) redirection() *Now {
	if !p.OnNode.told() {
		return now(statuscode.Unknown, "It is not known how this pod is: the agent of its node has not told.", bounded([]string{p.OnNode.Unknown}), p.Identity.Text("Nothing: the agent tries again by itself. If it stays so: kubectl meshcni check"))
	}
	if st := p.OnNode.State; st != nil {
		if u, ok := unwell[st.State]; ok {
			why, do := p.about(*st)
			n := now(u.code, u.sentence+why+".", append(append([]string{}, bounded([]string{st.Detail})...), p.notReady()...), p.mendFirst(do...)...)
			if st.State == status.StateDrifted {
				n.Because = append(n.Because, bounded(p.OnNode.Lost)...)
			}
			if st.NeedsAttention() {
				n.Health = Wrong
			}
			return n
		}
	}
	if n := p.handedOn(); n != nil {
		return n
	}
	restart := remedy.Restart(p.Pod)
	if len(p.OnNode.Lost) > 0 {
		do := p.mendFirst(restart, p.Identity.Text("If it happens again, find out who changes the rules: kubectl meshcni show ")+p.name()+" --enter")
		if p.OnNode.LiveError == "" && p.OnNode.ours() == 0 {
			return now(statuscode.Bypassing, "This pod bypasses the mesh: it had rules, and none of them are there any more.", p.notReady(), do...)
		}
		if !slices.ContainsFunc(p.OnNode.Lost, func(d ruleset.Difference) bool { return d.Kind != ruleset.KindFate }) {
			return now(statuscode.RulesLost, "This pod is not captured as it should be: its rules are there, and somebody else's keep its packets from them.", bounded(p.OnNode.Lost),
				p.mendFirst("Remove the rule that is named, or put it after those of the mesh", restart)...)
		}
		return now(statuscode.RulesLost, "", bounded(p.OnNode.Lost), do...)
	}
	var unknown []ruleset.Difference
	for _, d := range p.OnNode.Differences {
		if d.Kind == ruleset.KindUnknown {
			unknown = append(unknown, d)
		}
	}
	if len(unknown) > 0 {
		return now(statuscode.Unknown, "It is not known whether this pod is captured: its rules are there, and somebody else's rule is before them, which may keep its packets from them.", bounded(unknown),
			"Remove the rule that is named, or put it after those of the mesh", restart)
	}
	switch text, health := p.unwatched(); health {
	case Unsure:
		return now(statuscode.Unknown, "It is not known whether this pod is captured: "+text+".", p.notReady(), remedy.Then("To be sure,", p.Pod))
	case Wrong:
		return now(statuscode.Bypassing, "This pod bypasses the mesh: none of its rules are there.", p.notReady(), p.mendFirst(restart)...)
	}
	return nil
}

// handedOn is about a pod of the mesh whose packets are taken before its rules see them, or may be.
func (p Pod) handedOn() *Now {
	all := slices.Clone(p.OnNode.Bypasses)
	unsure := slices.DeleteFunc(slices.Clone(all), func(b dialect.Bypass) bool { return !b.Unsure })
	row, _ := status.Lookup(status.KindBypass, status.Code(dialect.BypassSandboxed))
	switch {
	case !p.selected():
	case len(all) > len(unsure):
		return now(statuscode.Bypassing, "This pod bypasses the mesh: its packets do not meet its rules.", bounded(all), row.Remedy())
	case len(unsure) > 0:
		return now(statuscode.Unknown, "It is not known whether this pod is captured: whether its packets meet its rules cannot be told.", bounded(all), "Find out what that is: it may take the pod's packets past the mesh")
	case p.OnNode.BypassError != "":
		return now(statuscode.Unknown, "It is not known whether this pod is captured: whether its packets meet its rules cannot be told.", bounded([]string{p.OnNode.BypassError}), "Ask again; if it stays so, see what the pod has made of its interfaces")
	}
	return nil
}

// disagreement is about a pod that the injector has chosen and the plugin passes over.
func (p Pod) disagreement() *Now {
	v := p.Explained.Verdict
	switch {
	case p.Undecided != nil && p.Asking == nil:
		return now(statuscode.Unknown, "It is not known what is to become of this pod: what decides on it cannot be read.", bounded(visible.Lines(p.Undecided)), p.Identity.Text("kubectl meshcni check says what is wrong with the installation"))
	case v.Code == status.CodeNamespaceUnknown:
		return now(statuscode.Unknown, v.Sentence, v.Because, v.Do...)
	case v.Code == statuscode.OtherDialect:
		return now(statuscode.OtherDialect, v.Sentence, v.Because, v.Do...)
	case v.Code != status.CodeExcludedNamespace && v.Code != status.CodeNamespaceExcludedByLabel:
		return nil
	}
	if c, err := p.Meshes.Everywhere().Choose(p.Pod, p.Namespace); err != nil || !c.Decision.Selected {
		return nil
	}
	return now(statuscode.ExcludedInjected, "This pod bypasses the mesh: it has been chosen for it, and the plugin leaves its namespace alone.", []string{v.Sentence},
		append(slices.Clone(v.Do), "Or keep the pod out of the mesh altogether, so that its proxy does not stand there unused")...)
}

// containers is about a pod that has its network, and does not run all the same.
func (p Pod) containers() *Now {
	for _, c := range slices.Concat(p.Pod.Status.InitContainerStatuses, p.Pod.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || w.Reason == "" || w.Reason == "PodInitializing" || w.Reason == "ContainerCreating" {
			continue
		}
		describe := p.kubectl("describe pod " + p.Pod.Name)
		logs := p.kubectl(fmt.Sprintf("logs %s --container %s", p.Pod.Name, c.Name))
		sentence := fmt.Sprintf("Container %s of this pod does not run (%s).", c.Name, w.Reason)
		switch {
		case p.checks(c.Name):
			return now(statuscode.Bypassing, fmt.Sprintf("The mesh's own check in this pod, container %s, fails (%s): most likely the pod's traffic is not redirected.", c.Name, w.Reason), p.notReady(),
				p.mendFirst("See what it has tried: "+logs, remedy.Restart(p.Pod))...)
		case strings.Contains(w.Reason, "Image"): // one that has never run has no log
			return now(statuscode.NotRunning, strings.TrimSuffix(sentence, ".")+": its image cannot be had. That has nothing to do with the mesh.", bounded([]string{w.Message}),
				"Correct the image in the pod's manifest, or see that the node may pull it: "+describe)
		case strings.HasPrefix(w.Reason, "CreateContainer"):
			return now(statuscode.NotRunning, sentence, bounded([]string{w.Message}), "See why: "+describe)
		}
		return now(statuscode.NotRunning, sentence, bounded([]string{w.Message}), "See why: "+logs+" --previous, and "+describe)
	}
	return nil
}

// checks reports whether a container is that with which the mesh checks redirection.
func (p Pod) checks(container string) bool {
	return slices.ContainsFunc(slices.Collect(p.Meshes.All()), func(d dialect.Dialect) bool { return d.Check.Container == container && container != "" })
}

// captured says that a pod is captured, and how much of that has been seen.
func (p Pod) captured() Now {
	by := status.Pod{State: status.StateCaptured, Reason: statuscode.Recorded}.Row().Sentence
	switch st := p.OnNode.State; {
	case p.OnNode.LiveError == "" && p.OnNode.ours() > 0:
		by = "its rules are there"
	case st != nil:
		by = cmp.Or(st.Row().Sentence, "the agent of its node says so: "+string(st.Reason))
	}
	some, rest, cut := strings.Cut(strings.TrimSuffix(p.Explained.Verdict.Sentence, "."), ": ")
	if !cut {
		rest = some
	}
	n := now(statuscode.Captured, fmt.Sprintf("This pod is captured (%s): %s.", by, rest), nil)
	if p.OnNode.LiveError != "" && (p.OnNode.State == nil || p.OnNode.State.State == status.StateCaptured && p.OnNode.State.Reason != "verified") {
		n.Because = []string{"Whether its rules are still there was not looked at, since the agent may not enter pods"}
		if p.OnNode.Hint != "" {
			n.Because[0] += "; " + p.OnNode.Hint
		}
	}
	return *n
}

// unwatched reports a pod of the mesh that the agent does not count among those. That ADD has redirected it is enough where nobody can
// look, as it is for the agent.
func (p Pod) unwatched() (text string, health Health) {
	is := p.OnNode
	redirected := len(is.Records) > 0 && is.Records[len(is.Records)-1].Selected
	switch {
	case !p.selected() || is.State != nil:
	case is.LiveError == "" && is.ours() == 0:
		return "none of the mesh's rules are there: the pod bypasses the mesh", Wrong
	case is.LiveError != "" && !redirected:
		return "nothing says whether the pod has its rules", Unsure
	}
	return "", Well
}

// told reports whether the agent, or a pod on the node, has told what is there: both list the records, if only none.
func (is OnNode) told() bool { return is.Unknown == "" || is.Records != nil }

// ours counts the live rules that are the mesh's.
func (is OnNode) ours() (n int) {
	for _, r := range is.Live {
		if r.Ours {
			n++
		}
	}
	return n
}

// selected reports whether the pod is in the mesh.
func (p Pod) selected() bool {
	v := p.Explained.Verdict
	return v.State == status.StateCaptured || v.Code == status.CodeNothingCaptured
}

// started reports whether the pod has a network, so that the plugin has been called or passed by.
func (p Pod) started() bool {
	return len(p.Pod.Status.PodIPs) > 0 || p.Pod.Status.PodIP != "" || p.Pod.Status.Phase != corev1.PodPending && p.Pod.Status.Phase != ""
}

func (p Pod) name() string { return "--namespace " + p.Pod.Namespace + " " + p.Pod.Name }

func (p Pod) kubectl(command string) string {
	return "kubectl --namespace " + p.Pod.Namespace + " " + command
}

// last is the newest of the pod's events with the reason; nil: none has it.
func (is OnNode) last(reason string) *Event {
	for i := len(is.Events) - 1; i >= 0; i-- {
		if is.Events[i].Reason == reason {
			return &is.Events[i]
		}
	}
	return nil
}

// maxMessage bounds what others say, in bytes, and maxSaid how many lines of it are shown.
const (
	maxMessage = 600
	maxSaid    = 5
)

func bounded[T any](all []T) (some []string) {
	for _, v := range all[:min(len(all), maxSaid)] {
		if text := fmt.Sprint(v); text != "" {
			some = append(some, truncate.Text(text, maxMessage))
		}
	}
	if n := len(all) - maxSaid; n > 0 {
		some = append(some, fmt.Sprintf("and %d more", n))
	}
	return some
}
