package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/podid"
	"github.com/meshcni/meshcni/internal/visible"
	"github.com/meshcni/meshcni/plugin/attachment"
)

// several selects the pods of an explain of more than one.
type several struct {
	selector string
	all      bool // of a workload
}

func (m *several) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&m.selector, "selector", "l", "", "labels of pods, of each of which one line says how it is")
	cmd.Flags().BoolVar(&m.all, "all-pods", false, "with KIND/NAME: the same for all its pods")
}

// asked reports whether it is about several pods.
func (m *several) asked(cmd *cobra.Command) bool { return m.all || cmd.Flags().Changed("selector") }

// podLine is the line of one of several pods.
type podLine struct {
	Pod explain.PodName `json:"pod"`
	briefly
}

// explainMany says of each pod how it is.
func (c *cluster) explainMany(ctx context.Context, args []string, m several, from sources, output string) error {
	if err := c.open(); err != nil {
		return err
	}
	namespace, err := c.namespace()
	if err != nil {
		return err
	}
	if from.file != "" {
		return cli.Usagef("--filename: with --selector and --all-pods the pods are the cluster's")
	}
	if m.selector, err = c.selects(ctx, namespace, args, m); err != nil {
		return err
	}
	look, err := c.looker(ctx, namespace, from.config)
	if err != nil {
		return err
	}
	if look.namespaceErr != nil {
		visible.To(c.Stderr).Printf("warning: the pods' Namespace is not known: %v\n", look.namespaceErr)
	}
	lines, seen, worst, first := []podLine{}, 0, 0, ""
	var printing error
	out := visible.To(c.Stdout)
	err = list(ctx, c.client.CoreV1().Pods(namespace).List, metav1.ListOptions{LabelSelector: m.selector}, func(pod *corev1.Pod) {
		seen++
		now, v := look.at(ctx, pod)
		if now.exit != 0 && (worst == 0 || now.exit == ExitWrong) {
			worst = now.exit
		}
		if now.trouble() && first == "" {
			first = pod.Name
		}
		if output == "json" {
			lines = append(lines, podLine{explain.Name(pod), briefly{now, v}})
		} else if printing == nil {
			out.Printf("%s: %s\n", pod.Name, now.Sentence)
			printing = out.Err()
		}
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("list pods: %w", err)
	case seen == 0:
		return fmt.Errorf("no pod in namespace %s has the labels %s", namespace, m.selector)
	case output == "json":
		printing = printJSON(c.Stdout, lines)
	case first != "":
		out.Printf("next: kubectl meshcni explain -n %s %s says what to do\n", namespace, first)
		printing = out.Err()
	}
	if printing != nil || worst == 0 {
		return printing
	}
	return cli.Exit(worst)
}

// selects returns the labels of the pods that are meant.
func (c *cluster) selects(ctx context.Context, namespace string, args []string, m several) (string, error) {
	switch {
	case m.all && m.selector != "":
		return "", cli.Usagef("--selector, --all-pods: only one of them")
	case !m.all && len(args) > 0:
		return "", cli.Usagef("%s: with --selector the labels say which pods", args[0])
	case !m.all:
		return m.selector, nil
	}
	kind, name, err := split(args)
	if err != nil {
		return "", err
	}
	if kind == "pod" {
		return "", cli.Usagef("--all-pods: name a workload, such as deploy/NAME")
	}
	return c.selector(ctx, kind, namespace, name)
}

// looker looks at pods, and asks the agent of each node once.
type looker struct {
	c            *cluster
	namespace    *corev1.Namespace // nil: not known
	namespaceErr error
	// nodes have what is the same for all pods of a node.
	nodes  map[string]*subject
	config string // as typed
	text   []byte // of the file that was typed
}

// looker looks at pods of a namespace. The configuration is as typed.
func (c *cluster) looker(ctx context.Context, namespace, config string) (*looker, error) {
	l := &looker{c: c, nodes: map[string]*subject{}, config: config}
	if ns, err := c.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{}); err != nil {
		l.namespaceErr = err
	} else {
		l.namespace = ns
	}
	if config != "" && config != "none" {
		text, err := readFile(config)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		l.text = text
	}
	return l, nil
}

// troubled returns the pod with the most trouble, by what each node's agent says of all its pods and what the settings mean, and says
// how many others have some.
func (l *looker) troubled(ctx context.Context, pods []corev1.Pod) (worst *corev1.Pod, why string) {
	nodes := map[string]*subject{}
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for i := range pods {
		on := &subject{pod: &pods[i]}
		if nodes[on.pod.Spec.NodeName] == nil {
			nodes[on.pod.Spec.NodeName] = on
			asking.Go(func() error { on.ask(ctx, l.c); return nil })
		}
	}
	_ = asking.Wait() // none returns an error
	for name, on := range nodes {
		l.decide(on)
		l.nodes[name] = on
	}
	const wrong, unsure, well, ending = 0, 1, 2, 3
	ranks := map[string]int{}
	n := 0
	for i := range pods {
		pod := &pods[i]
		s := l.subject(ctx, pod)
		// That nobody has looked into it is no trouble.
		is := onNode{selected: s.explained.Verdict.State == explain.Captured, started: s.started(), Pod: agentapi.Pod{Records: []attachment.Record{{Selected: true}}, LiveError: "not looked at"}}
		for _, state := range s.node.Pods {
			if podid.Is(pod, state.Namespace, state.Name, state.UID) {
				is.State = &state
			}
		}
		switch now := s.present(is); {
		case now.exit == ExitWrong:
			ranks[pod.Name] = wrong
		case now.Code == nowEnding:
			ranks[pod.Name] = ending
		case now.trouble():
			ranks[pod.Name] = unsure
		default:
			ranks[pod.Name] = well
		}
		if ranks[pod.Name] < well {
			n++
		}
	}
	first := slices.MinFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(ranks[a.Name], ranks[b.Name]), cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Name, b.Name))
	})
	switch {
	case n == 1:
		why = ", which has trouble"
	case n > 1:
		why = ", which has trouble; " + many(n-1, "other has", "others have") + " too: kubectl meshcni explain --all-pods says how each is"
	}
	return &first, why
}

// subject is a pod with what its node's agent says of the node, and what the settings mean.
func (l *looker) subject(ctx context.Context, pod *corev1.Pod) *subject {
	s := &subject{pod: pod, selector: l.c.agentSelector, namespace: l.namespace}
	on, ok := l.nodes[pod.Spec.NodeName]
	if !ok {
		on = &subject{pod: pod}
		on.ask(ctx, l.c)
		l.decide(on)
		l.nodes[pod.Spec.NodeName] = on
	}
	s.agent, s.node, s.asking, s.deciding = on.agent, on.node, on.asking, on.deciding
	if d := s.deciding; d != nil {
		subject := dialect.Subject{Pod: pod, Namespace: l.namespace, Addrs: explain.Addrs(pod)}
		s.explained, _ = explain.Pod(d.meshes, explain.Input{Subject: subject, Options: d.options, Known: l.c.Dialects}) // without a decision it is empty
	}
	return s
}

func (l *looker) at(ctx context.Context, pod *corev1.Pod) (present, explain.Verdict) {
	s := l.subject(ctx, pod)
	now := s.present(l.c.onNode(ctx, s))
	return now, s.explained.Verdict
}

// decide reads the configuration that counts on a node. Without one nothing is explained.
func (l *looker) decide(on *subject) {
	text := on.node.Installed.Config
	switch {
	case l.config == "none":
		text = []byte("{}")
	case l.config != "":
		text = l.text
	case len(text) == 0:
		if on.asking == nil && on.node.Installed.File != "" {
			on.asking = fmt.Errorf("the plugin's entry cannot be read: %s", on.node.Installed.Error)
		}
		return
	}
	d := &deciding{text: text}
	if err := d.parse(l.c.Dialects); err != nil {
		on.asking = errors.Join(on.asking, fmt.Errorf("the plugin's entry cannot be read by this version of kubectl meshcni: %w", err))
		return
	}
	on.deciding = d
}
