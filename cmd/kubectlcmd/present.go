package kubectlcmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/truncate"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/status"
)

// present is the pod's current state, by everything that the cluster tells, and its root cause, if there is any trouble.
type present struct {
	Code     status.Code `json:"code"`
	Sentence string      `json:"sentence"`
	Because  []string    `json:"because,omitempty"`
	Do       []string    `json:"do"`
	exit     int
}

// err is the program's exit for scripts; nil: nothing is wrong.
func (p present) err() error {
	if p.exit == 0 {
		return nil
	}
	return cli.Exit(p.exit)
}

// trouble reports whether something is to be said before what should be.
func (p present) trouble() bool { return p.Code != status.CodeCaptured && p.Code != status.CodeOutside }

// print writes how the pod is, and what should be.
func (p present) print(w io.Writer, v explain.Verdict) error {
	if !p.trouble() {
		if p.Code == status.CodeCaptured {
			v.Sentence, v.Because = p.Sentence, p.Because
		}
		_, err := v.WriteTo(w)
		return err
	}
	_, err := explain.Verdict{Sentence: p.Sentence, Because: p.Because, Do: p.Do}.WriteTo(w)
	said := []status.Code{status.CodeRefused, status.CodeWouldRefuse, status.CodeExcludedInjected, status.CodeOtherDialect}
	if err != nil || v.Sentence == "" || slices.Contains(said, p.Code) || p.Sentence == v.Sentence {
		return err
	}
	out := visible.To(w)
	out.Printf("\nBy its settings: %s\n", v.Sentence) // the rest of the verdict is no matter while this is so
	if v.State == status.StateRefused {
		for _, because := range v.Because {
			out.Printf("  %s\n", because)
		}
	}
	return out.Err()
}

// now is the state of a code. An empty sentence is that of the code's row. Scripts are to act on a state that needs attention; of the
// others it is unknown whether something is wrong.
func (s *subject) now(code status.Code, sentence string, because []string, do ...string) *present {
	row, _ := status.Lookup(status.KindNow, code)
	p := &present{Code: code, Sentence: cmp.Or(sentence, "This pod"+strings.TrimPrefix(row.Sentence, "it")+"."), Because: because, Do: append([]string{}, do...)}
	switch {
	case slices.Contains([]status.Code{status.CodeCaptured, status.CodeOutside, status.CodeEnding, status.CodeNotRunning}, code): // a container is no matter of the mesh
	case row.Attention:
		p.exit = ExitWrong
	default:
		p.exit = ExitUnknown
	}
	return p
}

// online puts a remedy that is for who has files only into the words of who has a cluster.
func (s *subject) online() {
	for i, do := range s.explained.Verdict.Do {
		if do == explain.GiveNamespace(s.product) {
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
			return *p
		}
	}
	if s.explained.Verdict.State != status.StateCaptured {
		return *s.now(status.CodeOutside, s.explained.Verdict.Sentence, nil)
	}
	return s.captured(is)
}

func (s *subject) lifecycle(is onNode) *present {
	switch {
	case s.pod.DeletionTimestamp != nil:
		return s.now(status.CodeEnding, "", nil, "Nothing; ask about the pod that replaces it")
	case s.pod.Spec.NodeName != "":
		return nil
	}
	p := s.now(status.CodeUnscheduled, "", nil, "See what the scheduler says: "+s.kubectl("describe pod "+s.pod.Name))
	if e := is.last("FailedScheduling"); e != nil {
		p.Because = bounded([]string{e.Message})
		if strings.Contains(e.Message, s.product.Taint()) {
			p.Do = []string{s.product.Text("A node takes no pods until its agent is ready: kubectl meshcni status says why it is not")}
		}
	}
	return p
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
		return s.now(status.CodeWouldRefuse, "", v.Because, v.Do...)
	}
	return s.now(status.CodeRefused, v.Sentence, v.Because, v.Do...)
}

// unasked is about an agent that cannot tell anything, or has not put the plugin there.
func (s *subject) unasked(is onNode) *present {
	node, i := s.pod.Spec.NodeName, s.node.Installed
	switch {
	case errors.Is(s.asking, errNoAgents):
		return s.now(status.CodeNoAgent, s.product.WithDefaults().Name+" does not seem to be installed: no node of this cluster has its agent, so nothing makes sure that pods of a mesh are captured.", nil,
			"See whether it is: "+daemonSets(s.selector)+"; if a DaemonSet is listed, its nodeSelector or its tolerations keep its pods off the nodes",
			"If none is listed, install the chart as README.md says; if its pods have other labels, name them by --agent-selector",
			explain.Then(s.product.Text("Once kubectl meshcni status says that the node is ready,"), s.pod))
	case errors.Is(s.asking, errNoAgent):
		return s.now(status.CodeNoAgent, "Node "+node+", where this pod is, has no agent: new pods of the mesh are not captured there, or do not start.", nil,
			"See why the agents' DaemonSet has no pod there (its nodeSelector, its tolerations): "+daemonSets(s.selector),
			explain.Then("Once the agent is ready,", s.pod))
	case s.asking != nil:
		if is.told() { // a pod on the node has read what is there
			if p := s.redirection(is); p != nil {
				return p
			}
		}
		p := s.now(status.CodeAgentSilent, "The agent of node "+node+" does not answer, so it is not known how this pod is.", bounded([]error{s.asking}))
		if s.agent.Name != "" {
			p.Do = append(p.Do, fmt.Sprintf("See how the agent is: kubectl --namespace %s describe pod %s", s.agent.Namespace, s.agent.Name))
		}
		p.Do = append(p.Do, fmt.Sprintf("See that you may ask it: kubectl auth can-i create pods/portforward --namespace %s", cmp.Or(s.agent.Namespace, s.product.WithDefaults().Namespace)))
		return p
	case s.node.Node != "" && i.File == "" && !i.Unread:
		return s.now(status.CodeNotInstalled, "No network configuration of node "+node+" has the plugin's entry: no pod that starts there is captured.", s.notReady(),
			"See why the agent has not put it there: kubectl --namespace "+s.agent.Namespace+" logs "+s.agent.Name,
			explain.Then(s.product.Text("Once kubectl meshcni status says that the node is ready,"), s.pod))
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
		all = append(all, "the node's agent is not ready: "+truncate.Text(why, maxMessage))
	}
	return all
}

// mendFirst puts the node before what there is to do about the pod.
func (s *subject) mendFirst(do ...string) []string {
	if len(s.notReady()) == 0 {
		return do
	}
	return append([]string{s.product.Text("First make the node's agent ready: kubectl meshcni status, and docs/troubleshooting.md#the-node-is-not-ready")}, do...)
}

// unstarted is about a pod without a network.
func (s *subject) unstarted(is onNode) *present {
	if s.started() || s.pod.Spec.HostNetwork {
		return nil
	}
	e, st := is.last("FailedCreatePodSandBox"), is.State
	switch {
	case e == nil && st != nil && st.NeedsAttention(): // its event is over, and the agent knows why ADD failed
		why, do := s.about(*st)
		code := status.CodeNetworkFailed
		if st.Reason == status.CodePodRefused {
			code = status.CodeRefused
		}
		return s.now(code, "This pod does not start: "+why+".", append(bounded([]string{st.Detail}), s.notReady()...), s.mendFirst(do...)...)
	case e == nil:
		return s.now(status.CodeStarting, "", s.notReady(), s.mendFirst("Ask again in a few seconds")...)
	}
	_, message, ours := strings.Cut(e.Message, fmt.Sprintf("plugin type=%q failed (add): ", cmp.Or(s.node.Installed.Type(), s.product.WithDefaults().Plugin)))
	if !ours {
		return s.now(status.CodeNetworkFailed, "This pod does not start: its network cannot be set up, for a reason that is not this plugin's.", bounded([]string{e.Message}),
			"Mend what the message names: another CNI plugin, or the container runtime")
	}
	return s.now(status.CodeNetworkFailed, "This pod does not start: the plugin refuses to, since it could not capture it.", append(bounded([]string{message}), s.notReady()...),
		s.mendFirst("Mend what the message names; docs/troubleshooting.md#my-pod-does-not-start has each. The pod then starts by itself")...)
}

// about returns the meaning of what the agent says of the pod, and what to do.
func (s *subject) about(st status.Pod) (is string, do []string) {
	r := st.Row().For(s.product)
	if r.Code == "" {
		return "the agent says " + truncate.Text(string(st.Reason), maxMessage), []string{s.product.Text("kubectl meshcni check looks at the whole installation")}
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

// unwell are the states of a pod of which the agent says that something is wrong.
var unwell = map[status.State]struct {
	code     status.Code
	sentence string
}{
	status.StateFailed:  {status.CodeBypassing, "This pod bypasses the mesh: "},
	status.StateDrifted: {status.CodeRulesLost, "This pod is not captured as it should be: "},
	status.StateWaiting: {status.CodeWaiting, "This pod is not captured yet: "},
	status.StateUnknown: {status.CodeUnknown, "It is not known whether this pod is captured: "},
}

// redirection is about what the agent, the records and the live rules say of a pod that is to be captured.
func (s *subject) redirection(is onNode) *present {
	if !is.told() {
		return s.now(status.CodeUnknown, "It is not known how this pod is: the agent of its node has not told.", bounded([]string{is.Unknown}), s.product.Text("Nothing: the agent tries again by itself. If it stays so: kubectl meshcni check"))
	}
	if st := is.State; st != nil {
		if u, ok := unwell[st.State]; ok {
			why, do := s.about(*st)
			p := s.now(u.code, u.sentence+why+".", append(append([]string{}, bounded([]string{st.Detail})...), s.notReady()...), s.mendFirst(do...)...)
			if st.State == status.StateDrifted {
				p.Because = append(p.Because, bounded(is.Lost)...)
			}
			if st.NeedsAttention() {
				p.exit = ExitWrong
			}
			return p
		}
	}
	restart := explain.Restart(s.pod)
	if len(is.Lost) > 0 {
		do := s.mendFirst(restart, s.product.Text("If it happens again, find out who changes the rules: kubectl meshcni show ")+s.name()+" --enter")
		if is.LiveError == "" && is.ours() == 0 {
			return s.now(status.CodeBypassing, "This pod bypasses the mesh: it had rules, and none of them are there any more.", s.notReady(), do...)
		}
		return s.now(status.CodeRulesLost, "", bounded(is.Lost), do...)
	}
	switch text, exit := is.unwatched(); exit {
	case ExitUnknown:
		return s.now(status.CodeUnknown, "It is not known whether this pod is captured: "+text+".", s.notReady(), explain.Then("To be sure,", s.pod))
	case ExitWrong:
		return s.now(status.CodeBypassing, "This pod bypasses the mesh: none of its rules are there.", s.notReady(), s.mendFirst(restart)...)
	}
	return nil
}

// disagreement is about a pod that the injector has chosen and the plugin passes over.
func (s *subject) disagreement(onNode) *present {
	v := s.explained.Verdict
	switch {
	case s.undecided != nil && s.asking == nil:
		return s.now(status.CodeUnknown, "It is not known what is to become of this pod: what decides on it cannot be read.", bounded(visible.Lines(s.undecided)), s.product.Text("kubectl meshcni check says what is wrong with the installation"))
	case v.Code == status.CodeNamespaceUnknown:
		return s.now(status.CodeUnknown, v.Sentence, v.Because, v.Do...)
	case v.Code == status.CodeOtherDialect:
		return s.now(status.CodeOtherDialect, v.Sentence, v.Because, v.Do...)
	case s.deciding == nil || v.Code != status.CodeExcludedNamespace && v.Code != status.CodeNamespaceExcludedByLabel:
		return nil
	}
	if c, err := s.deciding.everywhere.Choose(s.pod, s.namespace); err != nil || !c.Decision.Selected {
		return nil
	}
	return s.now(status.CodeExcludedInjected, "This pod bypasses the mesh: it has been chosen for it, and the plugin leaves its namespace alone.", []string{v.Sentence},
		append(slices.Clone(v.Do), "Or keep the pod out of the mesh altogether, so that its proxy does not stand there unused")...)
}

// containers is about a pod that has its network, and does not run all the same.
func (s *subject) containers(onNode) *present {
	for _, c := range slices.Concat(s.pod.Status.InitContainerStatuses, s.pod.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || w.Reason == "" || w.Reason == "PodInitializing" || w.Reason == "ContainerCreating" {
			continue
		}
		describe := s.kubectl("describe pod " + s.pod.Name)
		logs := s.kubectl(fmt.Sprintf("logs %s --container %s", s.pod.Name, c.Name))
		sentence := fmt.Sprintf("Container %s of this pod does not run (%s).", c.Name, w.Reason)
		switch {
		case s.checks(c.Name):
			return s.now(status.CodeBypassing, fmt.Sprintf("The mesh's own check in this pod, container %s, fails (%s): most likely the pod's traffic is not redirected.", c.Name, w.Reason), s.notReady(),
				s.mendFirst("See what it has tried: "+logs, explain.Restart(s.pod))...)
		case strings.Contains(w.Reason, "Image"): // one that has never run has no log
			return s.now(status.CodeNotRunning, strings.TrimSuffix(sentence, ".")+": its image cannot be had. That has nothing to do with the mesh.", bounded([]string{w.Message}),
				"Correct the image in the pod's manifest, or see that the node may pull it: "+describe)
		case strings.HasPrefix(w.Reason, "CreateContainer"):
			return s.now(status.CodeNotRunning, sentence, bounded([]string{w.Message}), "See why: "+describe)
		}
		return s.now(status.CodeNotRunning, sentence, bounded([]string{w.Message}), "See why: "+logs+" --previous, and "+describe)
	}
	return nil
}

// checks reports whether a container is that with which the mesh checks redirection.
func (s *subject) checks(container string) bool {
	return s.deciding != nil && slices.ContainsFunc(slices.Collect(s.deciding.meshes.All()), func(d dialect.Dialect) bool { return d.Check.Container == container && container != "" })
}

// captured says that a pod is captured, and how much of that has been seen.
func (s *subject) captured(is onNode) present {
	by := status.Pod{State: status.StateCaptured, Reason: status.CodeRecorded}.Row().Sentence
	switch st := is.State; {
	case is.LiveError == "" && is.ours() > 0:
		by = "its rules are there"
	case st != nil:
		by = cmp.Or(st.Row().Sentence, "the agent of its node says so: "+string(st.Reason))
	}
	some, rest, cut := strings.Cut(strings.TrimSuffix(s.explained.Verdict.Sentence, "."), ": ")
	if !cut {
		rest = some
	}
	p := s.now(status.CodeCaptured, fmt.Sprintf("This pod is captured (%s): %s.", by, rest), nil)
	if is.LiveError != "" && (is.State == nil || is.State.State == status.StateCaptured && is.State.Reason != "verified") {
		p.Because = []string{"Whether its rules are still there was not looked at, since the agent may not enter pods"}
		if is.hint {
			p.Because[0] += "; " + enterHint
		}
	}
	return *p
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
			some = append(some, truncate.Text(text, maxMessage))
		}
	}
	if n := len(all) - maxSaid; n > 0 {
		some = append(some, fmt.Sprintf("and %d more", n))
	}
	return some
}
