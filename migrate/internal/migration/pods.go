package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
	"github.com/meshcni/meshcni/warning"
)

// Verdict is the effect of a move on a pod's traffic.
type Verdict string

// The verdicts, in the order of the report.
const (
	// Refused: the pod would not start.
	Refused Verdict = "refused"
	// Double: two programs have written its rules, so neither's count alone.
	Double Verdict = "double"
	// Differs: some of its traffic would go otherwise.
	Differs Verdict = "differs"
	// Unknown: it cannot be told.
	Unknown Verdict = "unknown"
	// Same: all of it goes as it does.
	Same Verdict = "same"
	// Moved: it has our rules already.
	Moved Verdict = "moved"
)

var verdicts = []Verdict{Refused, Double, Differs, Unknown, Same, Moved}

// Evidence is the ground of a verdict.
type Evidence string

// The kinds of evidence.
const (
	// Live are the rules in the pod's network namespace.
	Live Evidence = "live"
	// Model are the rules that the other plugin's settings make, by this program's model of it.
	Model Evidence = "model"
	// None: the rules were not needed.
	None Evidence = "none"
)

// Group is pods that have a verdict for one cause.
type Group struct {
	Verdict  Verdict  `json:"verdict"`
	Evidence Evidence `json:"evidence"`
	Cause    string   `json:"cause"`
	Count    int      `json:"count"`
	// Pods are NAMESPACE/NAME, maxNamed at most.
	Pods []string `json:"pods"`
	// Example are differences of the first of them: theirs, then ours.
	Example []string `json:"example,omitempty"`
}

// Bounds of what a report holds of many pods.
const (
	maxNamed   = 20
	maxExample = 5
	maxKinds   = 4   // of differences in a cause
	maxGroups  = 200 // the rest are one
	// maxRules bounds the rules that are compared: the packets that they tell apart are a product of what they name. The largest
	// program of the meshes' defaults has 60.
	maxRules = 400
	maxMemo  = 1000
)

// Observed holds the rules that a pod has now.
type Observed struct {
	// Moved: our plugin has captured it.
	Moved bool
	// Double names two programs that have both written its rules; empty: one, or none.
	Double string
	// DoubleRule is a rule of the second, if one tells.
	DoubleRule string
	// Live are all of them if LiveError is empty.
	Live      ruleset.Live
	LiveError string
	// Init are the rules that an init container of the pod writes by its arguments; nil: not known, and InitError says why.
	Init      *redirect.Redirect
	InitError string
}

// Judge decides about pods, one after the other.
type Judge struct {
	Plan   Plan
	Meshes dialect.Set
	Facts  mesh.List

	groups []*Group
	known  map[[3]string]*Group
	memo   map[string]Group
	// Outside are pods that are in no mesh, by the settings.
	Outside int
}

// Explain says what becomes of the pod as the injector would make it with a plugin. The error means that this cannot be told.
func (j *Judge) Explain(pod *corev1.Pod, namespace *corev1.Namespace) (explain.Explanation, error) {
	pod = j.withPlugin(pod)
	return explain.Pod(j.Meshes, explain.Input{Subject: dialect.Subject{Pod: pod, Namespace: namespace, Addrs: explain.Addrs(pod)}, Facts: j.Facts})
}

// WithoutInit returns the pod without the init containers by which the meshes write rules: the pod itself if it has none.
func WithoutInit(pod *corev1.Pod, meshes dialect.Set) *corev1.Pod {
	if _, c := Init(pod, meshes); c == nil {
		return pod
	}
	without := *pod
	without.Spec.InitContainers = nil
	for i := range pod.Spec.InitContainers {
		if !writes(&pod.Spec.InitContainers[i], meshes) {
			without.Spec.InitContainers = append(without.Spec.InitContainers, pod.Spec.InitContainers[i])
		}
	}
	return &without
}

func writes(c *corev1.Container, meshes dialect.Set) bool {
	return slices.ContainsFunc(slices.Collect(meshes.All()), func(d dialect.Dialect) bool { return d.Policy.SetsRules(c) })
}

// withPlugin returns the pod as the mesh's injector makes it for a plugin: without the init container, and where the injector gives its
// configuration in annotations then, with these.
func (j *Judge) withPlugin(pod *corev1.Pod) *corev1.Pod {
	without := WithoutInit(pod, j.Meshes)
	d, c := Init(pod, j.Meshes)
	if c == nil {
		return pod
	}
	init := j.Facts.Of(d.Name, d).Init
	if init == nil || !init.ForPlugin {
		return without
	}
	all, _ := init.Annotations(mesh.InitContainer{Pod: pod, Container: c, Addrs: explain.Addrs(pod)}) // what is known of them
	if len(all) == 0 {
		return without
	}
	maps.Copy(all, without.Annotations)
	as := *without
	as.Annotations = all
	return &as
}

// Written returns the rules that the init container of a pod writes, by a mesh's facts; ours are what its plugin of ours makes of the pod.
func (j *Judge) Written(d *dialect.Dialect, pod *corev1.Pod, c *corev1.Container, ours redirect.Redirect) (redirect.Redirect, error) {
	init := j.Facts.Of(d.Name, d).Init
	if init == nil {
		return redirect.Redirect{}, fmt.Errorf("the init containers of %s are not known", d.Name)
	}
	return init.Read(d, mesh.InitContainer{Pod: pod, Container: c, Addrs: explain.Addrs(pod), Ours: ours})
}

// Init returns the container by which a pod writes its rules itself, and its mesh; nil if it has none.
func Init(pod *corev1.Pod, meshes dialect.Set) (*dialect.Dialect, *corev1.Container) {
	for i := range pod.Spec.InitContainers {
		for d := range meshes.All() {
			if c := &pod.Spec.InitContainers[i]; d.Policy.SetsRules(c) {
				return &d, c
			}
		}
	}
	return nil, nil
}

// Add judges a pod of the mesh by what [Judge.Explain] says of it.
func (j *Judge) Add(ctx context.Context, x explain.Explanation, o Observed) {
	var g Group
	switch {
	case errors.Is(x.Err(), redirect.ErrNamespaceUnknown):
		g = unknown(None, "the pod's namespace decides too, and is not known")
	case x.Err() != nil:
		g = Group{Verdict: Refused, Evidence: None, Cause: strings.Join(x.Refused, "; ")}
	case o.Double != "":
		g = Group{Verdict: Double, Evidence: Live, Cause: o.Double +
			". Which of them takes a connection depends on their order. Restart the pod when only one of the plugins is left: that one writes all its rules"}
		if o.DoubleRule != "" {
			g.Example = []string{o.DoubleRule}
		}
	case o.Moved:
		g = Group{Verdict: Moved, Evidence: None, Cause: "our plugin has written its rules"}
	case o.LiveError == "" && len(o.Live) == 0:
		g = Group{Verdict: Differs, Evidence: Live, Cause: "it has no rules, so it bypasses the mesh; ours would capture it"}
	case o.LiveError == "":
		g = j.compareLive(ctx, x, o)
	default:
		g = j.compareModel(ctx, x, o)
	}
	if text := x.BeforeProxy(); text != "" && (g.Verdict == Differs || g.Verdict == Same) && j.Plan.From == InitContainers {
		// Where an init container writes the rules, those before it have the network.
		if g.Verdict == Same {
			g.Verdict, g.Cause = Differs, ""
		}
		row, _ := status.Lookup(status.KindWarning, status.Code(warning.BeforeProxy))
		g.Cause = strings.TrimPrefix(g.Cause+"; "+text+". "+row.Remedy(), "; ")
	}
	j.add(g, x.Pod.Namespace+"/"+x.Pod.Name)
}

func (j *Judge) add(g Group, pod string) {
	key := [3]string{string(g.Verdict), string(g.Evidence), g.Cause}
	if j.known == nil {
		j.known = map[[3]string]*Group{}
	}
	x := j.known[key]
	if x == nil && len(j.groups) >= maxGroups {
		g.Cause, g.Example = "for other causes", nil
		key[2] = g.Cause
		x = j.known[key]
	}
	if x == nil {
		x = &g
		j.known[key], j.groups = x, append(j.groups, x)
	}
	if x.Count++; len(x.Pods) < maxNamed {
		x.Pods = append(x.Pods, pod)
	}
}

// Groups returns what was found, the worst first.
func (j *Judge) Groups() []*Group {
	slices.SortStableFunc(j.groups, func(a, b *Group) int {
		return cmp.Or(
			cmp.Compare(slices.Index(verdicts, a.Verdict), slices.Index(verdicts, b.Verdict)),
			cmp.Compare(b.Count, a.Count), cmp.Compare(a.Cause, b.Cause))
	})
	for _, g := range j.groups {
		slices.Sort(g.Pods)
	}
	return append([]*Group{}, j.groups...)
}

func unknown(e Evidence, format string, args ...any) Group {
	return Group{Verdict: Unknown, Evidence: e, Cause: fmt.Sprintf(format, args...)}
}

// count counts rules as iptables would have them, with 15 ports in each: a rule of nftables may have any number.
func count(rs ruleset.Ruleset) (n int) {
	for _, f := range ruleset.Families {
		p := rs.Family(f)
		if p == nil {
			continue
		}
		for _, c := range p.Chains {
			for i := range c.Rules {
				n += 1 + (len(c.Rules[i].SrcPorts.Ranges)+len(c.Rules[i].DstPorts.Ranges))/16
			}
		}
	}
	return n
}

func (j *Judge) compareLive(ctx context.Context, x explain.Explanation, o Observed) Group {
	theirs, err := o.Live.Ruleset(x.Plan.Ruleset)
	// One rule with a set may be many.
	if n := max(len(o.Live), count(x.Plan.Ruleset), count(theirs)); n > maxRules {
		return unknown(Live, "it has %d rules, and no more than %d are compared", n, maxRules)
	}
	text := theirs.String()
	if err != nil {
		text = err.Error()
	}
	return j.once(x, text, func() Group {
		c, err := x.CompareLive(ctx, o.Live)
		if err != nil {
			return unknown(Live, "its rules cannot be compared: %v", err)
		}
		return j.group(x, Live, c)
	})
}

// compareModel goes by the settings: the meshes' own plugins read the same annotations, so what is left are settings of the
// other plugin that ours does not have, and what an init container was told.
func (j *Judge) compareModel(ctx context.Context, x explain.Explanation, o Observed) Group {
	var theirs redirect.Redirect
	switch {
	case o.Init != nil:
		theirs = *o.Init
	case o.InitError != "":
		return unknown(Model, "%s; %s", o.InitError, o.LiveError)
	case j.Plan.unmodelled() != "":
		return unknown(Model, "what %s does to rules is not known; %s", j.Plan.unmodelled(), o.LiveError)
	default:
		theirs = x.Plan.Redirect.Clone()
		for _, c := range j.Plan.changed {
			_, onPod := x.Subject.Pod.Annotations[c.Annotation]
			onNamespace := false
			if namespace := x.Subject.Namespace; namespace != nil {
				_, onNamespace = namespace.Annotations[c.Annotation]
			}
			if c.Annotation != "" && (onPod || onNamespace) {
				continue
			}
			if err := c.Change(&theirs); err != nil {
				return unknown(Model, "what %s does to rules is not known: %v; %s", c.Key, err, o.LiveError)
			}
		}
	}
	rules, err := theirs.Ruleset()
	if err != nil {
		return unknown(Model, "the rules of the other cannot be made: %v", err)
	}
	if n := max(count(rules), count(x.Plan.Ruleset)); n > maxRules {
		return unknown(Model, "it has %d rules, and no more than %d are compared", n, maxRules)
	}
	text := explain.RulesText(rules)
	if text == explain.RulesText(x.Plan.Ruleset) {
		return Group{Verdict: Same, Evidence: Model, Cause: "the settings make the same rules; those of the running pods were not read: " + o.LiveError}
	}
	return j.once(x, "model\n"+text, func() Group {
		c, err := x.Compare(ctx, rules)
		if err != nil {
			return unknown(Model, "its rules cannot be compared: %v", err)
		}
		return j.group(x, Model, c)
	})
}

// unmodelled is the key of a setting that may change the rules in a way that is not known; empty: there is none.
func (p Plan) unmodelled() string {
	for _, s := range p.Unknown {
		return s.Key
	}
	for _, n := range p.Undone {
		if n.Rules && !slices.ContainsFunc(p.changed, func(c change) bool { return c.Key == n.Key }) {
			return n.Key
		}
	}
	return ""
}

// once compares the same rules once. The pods' addresses are in no rule; how many there are of each family counts.
func (j *Judge) once(x explain.Explanation, theirs string, work func() Group) Group {
	families := ""
	for _, a := range x.Subject.Addrs {
		families += ruleset.FamilyOf(a).String() + " "
	}
	key := families + "\x00" + theirs + "\x00" + explain.RulesText(x.Plan.Ruleset)
	if g, ok := j.memo[key]; ok {
		return g
	}
	g := work()
	if j.memo == nil || len(j.memo) >= maxMemo {
		j.memo = map[string]Group{}
	}
	j.memo[key] = g
	return g
}
