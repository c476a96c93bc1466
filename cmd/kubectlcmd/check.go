package kubectlcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/cmd/internal/agentapi"
	"github.com/meshcni/meshcni/cmd/internal/cli"
)

// findingCode is the kind of a finding, which never changes. [codes] has all.
type findingCode string

// The codes.
const (
	codeNoAgents         findingCode = "no-agents"           // no node has one
	codeNodeWithoutAgent findingCode = "node-without-agent"  // new pods of a node bypass the mesh
	codeAgentSilent      findingCode = "agent-silent"        // it does not answer, so nothing is known of its node
	codeAgentRights      findingCode = "agent-rights"        // its service account may not do what it has to
	codeNodeNotReady     findingCode = "node-not-ready"      // the agent says why
	codeNodeWarning      findingCode = "node-warning"        // the agent warns of something
	codeOtherMesh        findingCode = "other-mesh"          // another mesh's plugin is in the list beside ours
	codeNotInstalled     findingCode = "not-installed"       // no network configuration has the plugin's entry
	codeNotLoaded        findingCode = "not-loaded"          // the runtime loads another file than the one with the entry
	codeNotLast          findingCode = "not-last"            // plugins come after ours in the list
	codeCNIVersionOld    findingCode = "cni-version-old"     // the list's version has no CHECK
	codeUnknownKeys      findingCode = "unknown-keys"        // the entry has keys that mean nothing to the agent's version
	codeNoBackend        findingCode = "no-backend"          // the host has nothing that could write rules
	codeVersionsDiffer   findingCode = "versions-differ"     // between nodes
	codeSettingsDiffer   findingCode = "settings-differ"     // between nodes
	codePodBypasses      findingCode = "pod-bypasses"        // a pod of the mesh has no rules
	codePodDrifted       findingCode = "pod-drifted"         // a pod lacks some of its rules
	codePodWaiting       findingCode = "pod-waiting"         // a pod is not captured yet, or it cannot be told
	codeExcludedInjected findingCode = "excluded-injected"   // the injector put a proxy into a pod that the plugin leaves alone
	codeOwnInit          findingCode = "own-init"            // the injector lets an init container write the rules
	codeOtherDialect     findingCode = "other-dialect"       // a pod is of a mesh that its node's plugin does not know
	codePodRefused       findingCode = "pod-refused"         // a pod's settings are wrong, and it will not start again
	codePodsNotKnown     findingCode = "pods-not-known"      // what of the check takes pods was left out
	codeConfigurationOdd findingCode = "configuration-wrong" // the entry cannot be read
)

// codes are all codes, as the page has them.
var codes = []findingCode{
	codeNoAgents, codeNodeWithoutAgent, codeAgentSilent, codeAgentRights, codeNodeNotReady, codeNodeWarning, codeOtherMesh, codeNotInstalled, codeNotLoaded, codeNotLast, codeCNIVersionOld,
	codeUnknownKeys, codeNoBackend, codeVersionsDiffer, codeSettingsDiffer, codePodBypasses, codePodDrifted, codePodWaiting, codeExcludedInjected, codeOwnInit, codeOtherDialect, codePodRefused,
	codePodsNotKnown, codeConfigurationOdd,
}

// page has a section for each code.
const page = "https://github.com/meshcni/meshcni/blob/main/docs/check.md#"

// The levels of a finding.
const (
	levelError   = "error"   // pods bypass the mesh, or do not start
	levelWarning = "warning" // somebody should look at it
	levelUnknown = "unknown" // it could not be found out
)

// finding is something that check has found.
type finding struct {
	Code  findingCode `json:"code"`
	Level string      `json:"level"`
	// Where names the objects, such as node/a or pod/shop/cart, maxWhere at most; Count is how many there are.
	Where []string `json:"where,omitempty"`
	Count int      `json:"count"`
	Text  string   `json:"text"`
	Page  string   `json:"page"`
}

// maxWhere bounds the objects that a finding names.
const maxWhere = 10

// findings gathers what is found. The same text of several objects is one finding.
type findings struct {
	all   []*finding
	known map[[2]string]*finding
}

func (f *findings) add(code findingCode, level, where, text string) {
	key := [2]string{string(code), text}
	x := f.known[key]
	if x == nil {
		x = &finding{Code: code, Level: level, Text: text, Page: page + string(code)}
		f.known[key] = x
		f.all = append(f.all, x)
	}
	x.Count++
	if where != "" && len(x.Where) < maxWhere {
		x.Where = append(x.Where, where)
	}
}

// report is what check prints as JSON.
type report struct {
	Findings []*finding `json:"findings"`
	// Nodes and Pods are how many were looked at.
	Nodes int `json:"nodes"`
	Pods  int `json:"pods"`
}

func (r report) exit() error {
	levels := map[string]bool{}
	for _, f := range r.Findings {
		levels[f.Level] = true
	}
	switch {
	case levels[levelError]:
		return cli.Exit(ExitWrong)
	case levels[levelUnknown]:
		return cli.Exit(ExitUnknown)
	}
	return nil
}

func (c *cluster) checkCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "check", Short: "look at the whole installation, and say what is wrong with it",
		Long: "Each finding has a code, with a section on docs/check.md. Exits 1 if there is an\nerror, 3 if something could not be found out; warnings alone are no reason.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.open(); err != nil {
				return err
			}
			r, err := c.check(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				err = printJSON(c.Stdout, r)
			} else {
				err = r.print(c.Stdout)
			}
			return cmp.Or(err, r.exit())
		},
	}
	cmd.Flags().VarP(cli.Choice(&output, "text", "json"), "output", "o", "text or json")
	return cmd
}

func (c *cluster) progress(format string, args ...any) {
	fmt.Fprintf(c.Stderr, "checking "+format+"\n", args...)
}

func (c *cluster) check(ctx context.Context) (report, error) {
	f := &findings{known: map[[2]string]*finding{}}
	s := newSettings(c.Dialects)
	c.progress("the nodes")
	var r report
	var account string
	without := 0
	err := c.eachNode(ctx, func(node string, n agentapi.Node, err error) {
		if r.Nodes++; r.Nodes%100 == 0 {
			c.progress("the nodes: %d have been asked", r.Nodes)
		}
		where := "node/" + node
		switch {
		case errors.Is(err, errNoAgent):
			without++
			f.add(codeNodeWithoutAgent, levelError, where, "has no agent: new pods of the mesh bypass it there, or do not start")
		case err != nil:
			f.add(codeAgentSilent, levelUnknown, where, err.Error())
		default:
			f.node(where, n)
			s.add(f, node, n)
		}
	})
	if err != nil {
		return r, err
	}
	switch {
	case r.Nodes == 0:
		f.add(codeNoAgents, levelUnknown, "", "there is no node")
	case without == r.Nodes:
		f.all, f.known = nil, map[[2]string]*finding{}
		f.add(codeNoAgents, levelError, "", "no node has an agent: the chart is not installed, or its pods have other labels than "+c.agentSelector)
	}
	s.compare(f)
	if err := c.listAgents(ctx, "", func(pod *corev1.Pod) {
		account = "system:serviceaccount:" + pod.Namespace + ":" + cmp.Or(pod.Spec.ServiceAccountName, "default")
	}); err != nil {
		return r, err
	}
	if account != "" {
		c.progress("the agents' rights")
		c.rights(ctx, f, account)
	}
	c.progress("the pods")
	r.Pods = c.pods(ctx, f, s)
	// The levels' words are in the order of their weight.
	slices.SortStableFunc(f.all, func(a, b *finding) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(slices.Index(codes, a.Code), slices.Index(codes, b.Code)), cmp.Compare(a.Text, b.Text))
	})
	r.Findings = append([]*finding{}, f.all...)
	for _, x := range r.Findings {
		slices.Sort(x.Where)
	}
	return r, ctx.Err()
}

// node adds what the agent of a node says.
func (f *findings) node(where string, n agentapi.Node) {
	for _, why := range n.NotReady {
		f.add(codeNodeNotReady, levelError, where, why)
	}
	for _, text := range n.Warnings {
		switch kind, rest, _ := strings.Cut(text, ": "); kind {
		case "uncaptured", "drifted", "cannot-tell": // the pods are findings of their own
		case string(codeOtherMesh):
			f.add(codeOtherMesh, levelWarning, where, rest)
		default:
			f.add(codeNodeWarning, levelWarning, where, text)
		}
	}
	f.installed(where, n.Installed)
	if n.BackendError != "" {
		f.add(codeNoBackend, levelError, where, n.BackendError)
	}
	for _, p := range n.Pods {
		pod := "pod/" + p.Namespace + "/" + p.Name
		text := p.Reason
		if p.Detail != "" {
			text += ": " + p.Detail
		}
		switch {
		case !p.Wrong:
		case p.State == agentapi.Failed:
			f.add(codePodBypasses, levelError, pod, text)
		case p.State == agentapi.Drifted:
			f.add(codePodDrifted, levelError, pod, text)
		default:
			f.add(codePodWaiting, levelWarning, pod, text)
		}
	}
}

// installed adds what is odd about the plugin's entry.
func (f *findings) installed(where string, i agentapi.Installed) {
	switch {
	case i.File == "" && i.Unread:
		f.add(codeConfigurationOdd, levelUnknown, where, i.Error)
		return
	case i.File == "":
		f.add(codeNotInstalled, levelError, where, cmp.Or(i.Error, "no network configuration has the plugin's entry"))
		return
	case i.Error != "":
		f.add(codeConfigurationOdd, levelError, where, i.Error)
	}
	if i.Loaded != "" {
		f.add(codeNotLoaded, levelWarning, where, fmt.Sprintf("the runtime loads %s, and the entry is in %s; that is meant only for Multus and with --cni-conf-name", i.Loaded, i.File))
	}
	if len(i.Unknown) > 0 {
		f.add(codeUnknownKeys, levelWarning, where, "keys that mean nothing to this version: "+strings.Join(i.Unknown, ", "))
	}
	if at := slices.Index(i.Plugins, i.Type()); at >= 0 && at < len(i.Plugins)-1 {
		f.add(codeNotLast, levelWarning, where, fmt.Sprintf("after %s come %s: what they change is not seen by it", i.Type(), strings.Join(i.Plugins[at+1:], ", ")))
	}
	if strings.HasPrefix(i.CNIVersion, "0.3.") || i.CNIVersion == "" {
		f.add(codeCNIVersionOld, levelWarning, where, fmt.Sprintf("the list's cniVersion is %q: CHECK came with 0.4.0", i.CNIVersion))
	}
}

// rights asks whether the agents may do what all of them have to.
func (c *cluster) rights(ctx context.Context, f *findings, account string) {
	for _, verb := range []string{"list", "watch"} {
		review, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: account, Groups: []string{"system:serviceaccounts", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "pods"},
			},
		}, metav1.CreateOptions{})
		switch {
		case err != nil:
			f.add(codeAgentRights, levelUnknown, "", "whether the agents' account has its rights cannot be asked: "+err.Error())
			return
		case !review.Status.Allowed:
			f.add(codeAgentRights, levelError, account, "may not "+verb+" pods")
		}
	}
}

func (r report) print(w io.Writer) error {
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s: %s: %s\n", f.Level, f.Code, f.Text)
		if len(f.Where) > 0 {
			more := ""
			if n := f.Count - len(f.Where); n > 0 {
				more = fmt.Sprintf(" and %d more", n)
			}
			fmt.Fprintf(w, "  %s%s\n", strings.Join(f.Where, ", "), more)
		}
		fmt.Fprintf(w, "  %s\n", f.Page)
	}
	_, err := fmt.Fprintf(w, "%s and %s were looked at: %s\n", many(r.Nodes, "node", "nodes"), many(r.Pods, "pod", "pods"), many(len(r.Findings), "finding", "findings"))
	return err
}
