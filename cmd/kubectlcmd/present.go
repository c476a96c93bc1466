package kubectlcmd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/status"
)

// online puts a remedy that is for who has files only into the words of who has a cluster.
func (s *subject) online() {
	for i, do := range s.explained.Verdict.Do {
		if do == explain.GiveNamespace {
			s.explained.Verdict.Do[i] = "See that the pod's namespace is there, and that you may read it: kubectl get namespace " + s.pod.Namespace
		}
	}
}

// present finds out how the pod is.
func (s *subject) present(is onNode) present {
	s.online()
	for _, look := range []func(*subject, onNode) *present{
		(*subject).lifecycle, (*subject).refused, (*subject).unasked, (*subject).unstarted, (*subject).redirection, (*subject).disagreement, (*subject).containers,
	} {
		if p := look(s, is); p != nil {
			p.Do = append([]string{}, p.Do...)
			return *p
		}
	}
	if s.explained.Verdict.State != status.StateCaptured {
		return present{Code: status.CodeOutside, Sentence: s.explained.Verdict.Sentence, Do: []string{}}
	}
	return s.captured(is)
}

func (s *subject) lifecycle(is onNode) *present {
	switch {
	case s.pod.DeletionTimestamp != nil:
		return &present{Code: status.CodeEnding, Sentence: "This pod is being deleted.", Do: []string{"Nothing; ask about the pod that replaces it"}}
	case s.pod.Spec.NodeName == "":
		p := &present{Code: status.CodeUnscheduled, Sentence: "This pod is on no node yet, so nothing has been decided about it.", exit: ExitUnknown, Do: []string{
			"See what the scheduler says: " + s.kubectl("describe pod "+s.pod.Name),
		}}
		if e := is.last("FailedScheduling"); e != nil {
			p.Because = []string{brief.Text(e.Message, maxMessage)}
			if strings.Contains(e.Message, "meshcni.io/agent-not-ready") {
				p.Do = []string{"A node takes no pods until its agent is ready: kubectl meshcni status says why it is not"}
			}
		}
		return p
	}
	return nil
}

// refusedNow reports whether the pod's settings are refused, by what decides now.
func (s *subject) refusedNow() bool {
	v := s.explained.Verdict
	return v.State == status.StateRefused && v.Code != status.CodeNamespaceUnknown
}

// refused is about settings with which the pod does not start.
func (s *subject) refused(onNode) *present {
	v := s.explained.Verdict
	switch {
	case !s.refusedNow():
		return nil
	case s.started():
		return &present{Code: status.CodeWouldRefuse, Sentence: "This pod runs, but it would not start again: its settings are refused now.", Because: v.Because, Do: v.Do, exit: ExitWrong}
	}
	return &present{Code: status.CodeRefused, Sentence: v.Sentence, Because: v.Because, Do: v.Do, exit: ExitWrong}
}

// unasked is about an agent that cannot tell anything, or has not put the plugin there.
func (s *subject) unasked(is onNode) *present {
	node := s.pod.Spec.NodeName
	i := s.node.Installed
	switch {
	case errors.Is(s.asking, errNoAgents):
		return &present{Code: status.CodeNoAgent, Sentence: "meshcni does not seem to be installed: no node of this cluster has its agent, so nothing makes sure that pods of a mesh are captured.", exit: ExitWrong, Do: []string{
			"See whether it is: " + daemonSets(s.selector) + "; if a DaemonSet is listed, its nodeSelector or its tolerations keep its pods off the nodes",
			"If none is listed, install the chart as README.md says; if its pods have other labels, name them by --agent-selector",
			explain.Then("Once kubectl meshcni status says that the node is ready,", s.pod),
		}}
	case errors.Is(s.asking, errNoAgent):
		return &present{Code: status.CodeNoAgent, Sentence: "Node " + node + ", where this pod is, has no agent: new pods of the mesh are not captured there, or do not start.", exit: ExitWrong, Do: []string{
			"See why the agents' DaemonSet has no pod there (its nodeSelector, its tolerations): " + daemonSets(s.selector),
			explain.Then("Once the agent is ready,", s.pod),
		}}
	case s.asking != nil:
		if is.told() { // a pod on the node has read what is there
			if p := s.redirection(is); p != nil {
				return p
			}
		}
		p := &present{Code: status.CodeAgentSilent, Sentence: "The agent of node " + node + " does not answer, so it is not known how this pod is.", Because: []string{brief.Text(s.asking.Error(), maxMessage)}, exit: ExitUnknown}
		if s.agent.Name != "" {
			p.Do = append(p.Do, fmt.Sprintf("See how the agent is: kubectl --namespace %s describe pod %s", s.agent.Namespace, s.agent.Name))
		}
		p.Do = append(p.Do, fmt.Sprintf("See that you may ask it: kubectl auth can-i create pods/portforward --namespace %s", cmp.Or(s.agent.Namespace, "meshcni-system")))
		return p
	case s.node.Node != "" && i.File == "" && !i.Unread:
		return &present{Code: status.CodeNotInstalled, Sentence: "No network configuration of node " + node + " has the plugin's entry: no pod that starts there is captured.", Because: s.notReady(), exit: ExitWrong, Do: []string{
			"See why the agent has not put it there: kubectl --namespace " + s.agent.Namespace + " logs " + s.agent.Name,
			explain.Then("Once kubectl meshcni status says that the node is ready,", s.pod),
		}}
	}
	return nil
}

// daemonSets finds the agents' DaemonSet.
func daemonSets(selector string) string {
	return "kubectl get daemonset --all-namespaces --selector " + selector
}

// notReady are the reasons why the node's agent is not ready.
func (s *subject) notReady() []string {
	var all []string
	if s.node.Ready {
		return nil
	}
	for _, why := range s.node.NotReady {
		all = append(all, "the node's agent is not ready: "+brief.Text(why, maxMessage))
	}
	return all
}

// mendFirst puts the node before what there is to do about the pod.
func (s *subject) mendFirst(do ...string) []string {
	if len(s.notReady()) == 0 {
		return do
	}
	return append([]string{"First make the node's agent ready: kubectl meshcni status, and docs/troubleshooting.md#the-node-is-not-ready"}, do...)
}

// unstarted is about a pod without a network.
func (s *subject) unstarted(is onNode) *present {
	if s.started() || s.pod.Spec.HostNetwork {
		return nil
	}
	e := is.last("FailedCreatePodSandBox")
	if st := is.State; e == nil && st != nil && st.NeedsAttention() { // its event is over, and the agent knows why ADD failed
		is, do := s.about(*st)
		p := &present{Code: status.CodeNetworkFailed, Sentence: "This pod does not start: " + is + ".", Because: append([]string{brief.Text(st.Detail, maxMessage)}, s.notReady()...), exit: ExitWrong, Do: s.mendFirst(do...)}
		if st.Reason == status.CodePodRefused {
			p.Code = status.CodeRefused
		}
		return p
	}
	if e == nil {
		return &present{Code: status.CodeStarting, Sentence: "This pod has no network yet: it is starting.", Because: s.notReady(), exit: ExitUnknown, Do: s.mendFirst("Ask again in a few seconds")}
	}
	_, message, ours := strings.Cut(e.Message, fmt.Sprintf("plugin type=%q failed (add): ", cmp.Or(s.node.Installed.Type(), "meshcni")))
	if !ours {
		return &present{Code: status.CodeNetworkFailed, Sentence: "This pod does not start: its network cannot be set up, for a reason that is not this plugin's.", Because: []string{brief.Text(e.Message, maxMessage)}, exit: ExitWrong, Do: []string{
			"Mend what the message names: another CNI plugin, or the container runtime",
		}}
	}
	return &present{Code: status.CodeNetworkFailed, Sentence: "This pod does not start: the plugin refuses to, since it could not capture it.", Because: append([]string{brief.Text(message, maxMessage)}, s.notReady()...), exit: ExitWrong,
		Do: s.mendFirst("Mend what the message names; docs/troubleshooting.md#my-pod-does-not-start has each. The pod then starts by itself")}
}

// about returns the meaning of what the agent says of the pod, and what to do.
func (s *subject) about(st status.Pod) (is string, do []string) {
	r := st.Row()
	if r.Code == "" {
		return "the agent says " + brief.Text(string(st.Reason), maxMessage), []string{"kubectl meshcni check looks at the whole installation"}
	}
	for _, line := range r.Do {
		switch line {
		case status.Restart:
			line = status.Remedy(explain.Restart(s.pod))
		case status.BeSure:
			line = status.Remedy(explain.Then("To be sure,", s.pod))
		}
		do = append(do, string(line))
	}
	return r.Sentence, do
}

// redirection is about what the agent, the records and the live rules say of a pod that is to be captured.
func (s *subject) redirection(is onNode) *present {
	if !is.told() {
		return &present{Code: status.CodeUnknown, Sentence: "It is not known how this pod is: the agent of its node has not told.", Because: []string{brief.Text(is.Unknown, maxMessage)}, exit: ExitUnknown, Do: []string{"Nothing: the agent tries again by itself. If it stays so: kubectl meshcni check"}}
	}
	restart := explain.Restart(s.pod)
	lost := &present{Code: status.CodeRulesLost, Sentence: "This pod has lost rules, so some of its traffic bypasses the mesh.", Because: bounded(is.Lost), exit: ExitWrong, Do: s.mendFirst(restart,
		"If it happens again, find out who changes the rules: kubectl meshcni show "+s.name()+" --enter")}
	if st := is.State; st != nil {
		said := []string{}
		if st.Detail != "" {
			said = append(said, brief.Text(st.Detail, maxMessage))
		}
		why, do := s.about(*st)
		p := &present{Because: append(said, s.notReady()...), Do: s.mendFirst(do...), exit: ExitWrong}
		switch st.State {
		case status.StateFailed:
			p.Code, p.Sentence = status.CodeBypassing, "This pod bypasses the mesh: "+why+"."
			return p
		case status.StateDrifted:
			p.Code, p.Sentence = status.CodeRulesLost, "This pod is not captured as it should be: "+why+"."
			p.Because = append(p.Because, bounded(is.Lost)...)
			return p
		case status.StateWaiting:
			p.Code, p.Sentence = status.CodeWaiting, "This pod is not captured yet: "+why+"."
			return p
		case status.StateUnknown:
			p.Code, p.Sentence = status.CodeUnknown, "It is not known whether this pod is captured: "+why+"."
			if !st.NeedsAttention() {
				p.exit = ExitUnknown
			}
			return p
		case status.StateCaptured, status.StateOutside:
		}
	}
	if len(is.Lost) > 0 {
		if is.LiveError == "" && is.ours() == 0 {
			lost.Code, lost.Sentence, lost.Because = status.CodeBypassing, "This pod bypasses the mesh: it had rules, and none of them are there any more.", s.notReady()
		}
		return lost
	}
	switch text, exit := is.unwatched(); {
	case text == "":
	case errors.Is(exit, cli.Exit(ExitUnknown)):
		return &present{Code: status.CodeUnknown, Sentence: "It is not known whether this pod is captured: " + text + ".", Because: s.notReady(), exit: ExitUnknown, Do: []string{
			explain.Then("To be sure,", s.pod),
		}}
	default:
		return &present{Code: status.CodeBypassing, Sentence: "This pod bypasses the mesh: none of its rules are there.", Because: s.notReady(), exit: ExitWrong, Do: s.mendFirst(restart)}
	}
	return nil
}

// disagreement is about a pod that the injector has chosen and the plugin passes over.
func (s *subject) disagreement(onNode) *present {
	v := s.explained.Verdict
	switch {
	case s.undecided != nil && s.asking == nil:
		return &present{Code: status.CodeUnknown, Sentence: "It is not known what is to become of this pod: what decides on it cannot be read.", Because: bounded(visible.Lines(s.undecided)), exit: ExitUnknown, Do: []string{"kubectl meshcni check says what is wrong with the installation"}}
	case v.Code == status.CodeNamespaceUnknown:
		return &present{Code: status.CodeUnknown, Sentence: v.Sentence, Because: v.Because, Do: v.Do, exit: ExitUnknown}
	case v.Code == status.CodeOtherDialect:
		return &present{Code: status.CodeOtherDialect, Sentence: v.Sentence, Because: v.Because, Do: v.Do, exit: ExitWrong}
	case s.deciding == nil || v.Code != status.CodeExcludedNamespace && v.Code != status.CodeNamespaceExcludedByLabel:
		return nil
	}
	if c, err := s.deciding.everywhere.Choose(s.pod, s.namespace); err != nil || !c.Decision.Selected {
		return nil
	}
	return &present{Code: status.CodeExcludedInjected, Sentence: "This pod bypasses the mesh: it has been chosen for it, and the plugin leaves its namespace alone.", Because: []string{v.Sentence}, exit: ExitWrong,
		Do: append(slices.Clone(v.Do), "Or keep the pod out of the mesh altogether, so that its proxy does not stand there unused")}
}

// started reports whether the pod has a network, so that the plugin has been called or passed by.
func (s *subject) started() bool {
	return len(s.pod.Status.PodIPs) > 0 || s.pod.Status.PodIP != "" || s.pod.Status.Phase != corev1.PodPending && s.pod.Status.Phase != ""
}

func (s *subject) name() string { return "--namespace " + s.pod.Namespace + " " + s.pod.Name }

func (s *subject) kubectl(command string) string {
	return "kubectl --namespace " + s.pod.Namespace + " " + command
}

// last is the newest of the pod's events with the reason; nil: none has it.
func (is onNode) last(reason string) *event {
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
			some = append(some, brief.Text(text, maxMessage))
		}
	}
	if n := len(all) - maxSaid; n > 0 {
		some = append(some, fmt.Sprintf("and %d more", n))
	}
	return some
}
