package kubectlcmd

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/status"
)

// settings decide on pods, by node. Nodes with the same configuration share it.
type settings struct {
	known    []dialect.Dialect
	distinct []*deciding
	of       map[string]*deciding // by the node's name
	versions map[string]string    // a node of each version
}

// deciding is one configuration.
type deciding struct {
	text []byte
	node string // the first that has it
	from explain.Configuration
	// meshes decide as the plugin does, and everywhere without its excluded namespaces.
	meshes, everywhere dialect.Set
}

// has reports whether the plugin is configured for a mesh.
func (d *deciding) has(mesh string) bool { return d.meshes.Lookup(mesh) != nil }

// sidecars are the meshes with proxies in their pods that a plugin is configured for.
func (s *settings) sidecars() (names []string) {
	for _, d := range s.distinct {
		for mesh := range d.meshes.All() {
			if mesh.NodeProxy == nil && !slices.Contains(names, mesh.Name) {
				names = append(names, mesh.Name)
			}
		}
	}
	return names
}

func newSettings(known []dialect.Dialect) *settings {
	return &settings{known: known, of: map[string]*deciding{}, versions: map[string]string{}}
}

func (s *settings) add(f *findings, node string, n agentapi.Node) {
	if _, ok := s.versions[n.Version]; !ok {
		s.versions[n.Version] = node
	}
	if len(n.Installed.Config) == 0 {
		return
	}
	for _, d := range s.distinct {
		if bytes.Equal(d.text, n.Installed.Config) {
			s.of[node] = d
			return
		}
	}
	d := &deciding{text: n.Installed.Config, node: node}
	if err := d.parse(f.product, s.known); err != nil {
		f.add(codeConfigurationOdd, levelUnknown, "node/"+node, "the plugin's entry cannot be read by this version of "+f.product.Kubectl+": "+err.Error())
		return
	}
	s.distinct, s.of[node] = append(s.distinct, d), d
}

func (d *deciding) parse(product meshcni.Identity, known []dialect.Dialect) error {
	c, _, err := netconf.Parse(d.text, product)
	if err != nil {
		return err
	}
	return d.configure(known, c)
}

func (d *deciding) configure(known []dialect.Dialect, c netconf.Config) (err error) {
	d.meshes, err = dialect.Configure(known, c)
	d.everywhere = d.meshes.Everywhere()
	return err
}

// compare adds in what the nodes differ.
func (s *settings) compare(f *findings) {
	if len(s.versions) > 1 {
		var all []string
		for _, version := range slices.Sorted(maps.Keys(s.versions)) {
			all = append(all, fmt.Sprintf("%s (node %s)", version, s.versions[version]))
		}
		f.add(codeVersionsDiffer, levelWarning, "", "the agents are of different versions: "+strings.Join(all, ", ")+"; an upgrade is under way, or has stuck")
	}
	var all []string
	for _, d := range s.distinct {
		all = append(all, "node "+d.node)
	}
	if slices.Sort(all); len(all) > 1 {
		f.add(codeSettingsDiffer, levelWarning, "", "the plugin's configuration is not the same everywhere: compare "+strings.Join(all[:min(len(all), maxWhere)], ", "))
	}
}

// judged is a pod, with what decides on it and what is decided.
type judged struct {
	pod       *corev1.Pod
	namespace *corev1.Namespace // nil: not known
	d         *deciding
	plan      dialect.Plan
	err       error
}

// decide makes the plan, unless the namespace is not known.
func (j *judged) decide() error {
	if j.namespace != nil {
		j.plan, j.err = j.d.meshes.Plan(dialect.Subject{Pod: j.pod, Namespace: j.namespace})
	}
	return j.err
}

// pods looks whether injector and plugin agree on who is in the mesh. It keeps a few pages of pods at a time, and returns how many
// it has looked at.
func (c *cluster) pods(ctx context.Context, f *findings, s *settings, webhooks injectors) (n int) {
	if len(s.of) == 0 {
		return 0
	}
	namespaces, err := c.namespaces(ctx)
	if err != nil {
		f.add(codePodsNotKnown, levelUnknown, "", err.Error())
		return 0
	}
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		f.excluded(namespaces[name], s, webhooks)
	}
	selected := map[string]int{}
	var some []*judged
	judge := func() {
		each(runtime.GOMAXPROCS(0), some, func(_ int, j *judged) error { return j.decide() }) // most of what check computes
		for _, j := range some {
			f.pod(ctx, j)
			if j.plan.Decision.Selected {
				selected[j.plan.Dialect]++
			} else if j.namespace != nil {
				f.missed(j.pod, j.namespace, j.d, webhooks)
			}
		}
		some = some[:0]
	}
	err = apilist.Each(ctx, c.client.CoreV1().Pods("").List, metav1.ListOptions{}, func(pod *corev1.Pod) {
		d := s.of[pod.Spec.NodeName]
		if d == nil || !kubectl.HasNetwork(pod) {
			return
		}
		if n++; n%10000 == 0 {
			c.progress("the pods: %d have been looked at", n)
		}
		if some = append(some, &judged{pod: pod, namespace: namespaces[pod.Namespace], d: d}); len(some) == apilist.PageSize {
			judge()
		}
	})
	judge()
	if err != nil {
		f.add(codePodsNotKnown, levelUnknown, "", "list pods: "+err.Error())
		return n
	}
	f.without(c.Facts, s, webhooks, selected)
	return n
}

// namespaces are all, with what decides on pods.
func (c *cluster) namespaces(ctx context.Context) (map[string]*corev1.Namespace, error) {
	all := map[string]*corev1.Namespace{}
	err := apilist.Each(ctx, c.client.CoreV1().Namespaces().List, metav1.ListOptions{}, func(ns *corev1.Namespace) {
		ns.ManagedFields = nil
		all[ns.Name] = ns
	})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	return all, nil
}

func (f *findings) pod(ctx context.Context, j *judged) {
	pod, namespace, d := j.pod, j.namespace, j.d
	where := "pod/" + pod.Namespace + "/" + pod.Name
	if namespace == nil {
		f.add(codePodsNotKnown, levelUnknown, where, "its namespace is newer than the list of namespaces")
		return
	}
	switch reason := j.plan.Decision.Reason; {
	case ctx.Err() != nil:
	case j.err != nil && j.plan.Decision.Selected:
		f.add(codePodRefused, levelError, where, strings.ReplaceAll(j.err.Error(), "\n", "; "))
	case j.plan.Decision.Selected:
	case reason == status.CodeInitContainer:
		f.add(codeOwnInit, levelWarning, where, "an init container of the mesh writes the rules itself: the injector is not told that there is a CNI plugin")
	case reason == status.CodeExcludedNamespace || reason == status.CodeNamespaceExcludedByLabel:
		if other, err := d.everywhere.Choose(pod, namespace); err == nil && other.Decision.Selected {
			f.add(codeExcludedInjected, levelError, where, "has a proxy, and the plugin leaves its namespace alone: its traffic bypasses the mesh")
		}
	default:
		for mesh := range d.everywhere.Others().All() {
			if other := mesh.Decide(pod, namespace); other.Selected && !other.Undecided {
				f.add(codeOtherDialect, levelError, where, "is of the mesh "+mesh.Name+", which the plugin of its node is not configured for: its traffic bypasses the mesh")
			}
		}
	}
}
