package kubectlcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/meshcni/meshcni/cmd/internal/peerentry"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
)

const (
	// switchedFrom is a node's label: the name of the plugin whose agent is kept off the node.
	switchedFrom = "meshcni.io/switched-from"
	// switchedAt is a node's annotation: since when only our plugin is called.
	switchedAt = "meshcni.io/switched-at"
	// beforeSwitch is an annotation of the other's DaemonSet: what switch has changed in it, as it was.
	beforeSwitch = "meshcni.io/before-switch"
)

// --- The other's DaemonSet -----------------------------------------------------------------------------------------------

// before holds the fields of a DaemonSet that switch changes.
type before struct {
	Affinity       *corev1.Affinity               `json:"affinity,omitempty"`
	UpdateStrategy appsv1.DaemonSetUpdateStrategy `json:"updateStrategy"`
}

// keepsOff reports whether a DaemonSet has no pod on a node that is switched from the plugin.
func keepsOff(ds *appsv1.DaemonSet, plugin string) bool {
	terms := required(ds.Spec.Template.Spec.Affinity)
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		return !matchesNone(t) && !slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == switchedFrom && (r.Operator == corev1.NodeSelectorOpDoesNotExist || r.Operator == corev1.NodeSelectorOpNotIn && slices.Contains(r.Values, plugin))
		})
	})
}

// matchesNone reports whether a term is empty: no node satisfies it.
func matchesNone(t corev1.NodeSelectorTerm) bool {
	return len(t.MatchExpressions) == 0 && len(t.MatchFields) == 0
}

// required are the terms, of which a node has to satisfy one.
func required(a *corev1.Affinity) []corev1.NodeSelectorTerm {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// keepOff makes a DaemonSet have no pod on switched nodes. Its pods elsewhere stay as they are: they would take their entry out and
// put it in again when they are replaced, so they are not.
func keepOff(ds *appsv1.DaemonSet, plugin string) error {
	text, err := json.Marshal(before{ds.Spec.Template.Spec.Affinity, ds.Spec.UpdateStrategy})
	if err != nil {
		return err
	}
	if ds.Annotations[beforeSwitch] == "" { // else somebody has undone a part of it
		metav1.SetMetaDataAnnotation(&ds.ObjectMeta, beforeSwitch, string(text))
	}
	ds.Spec.Template.Spec.Affinity = away(ds.Spec.Template.Spec.Affinity, plugin)
	ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	return nil
}

// away adds to an affinity that the node is not switched.
func away(a *corev1.Affinity, plugin string) *corev1.Affinity {
	a = a.DeepCopy()
	if a == nil {
		a = &corev1.Affinity{}
	}
	if a.NodeAffinity == nil {
		a.NodeAffinity = &corev1.NodeAffinity{}
	}
	not := corev1.NodeSelectorRequirement{Key: switchedFrom, Operator: corev1.NodeSelectorOpNotIn, Values: []string{plugin}}
	selector := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if selector == nil || len(selector.NodeSelectorTerms) == 0 {
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{not}}},
		}
		return a
	}
	for i := range selector.NodeSelectorTerms {
		if t := &selector.NodeSelectorTerms[i]; !matchesNone(*t) { // else nodes would satisfy it
			t.MatchExpressions = append(t.MatchExpressions, not)
		}
	}
	return a
}

// letBack undoes keepOff. If somebody has changed the affinity since, only what keepOff added is taken out.
func letBack(ds *appsv1.DaemonSet, plugin string) error {
	text := ds.Annotations[beforeSwitch]
	if text == "" {
		return nil // it was not switch that keeps it off
	}
	var was before
	if err := json.Unmarshal([]byte(text), &was); err != nil {
		return fmt.Errorf("read its annotation %s: %w", beforeSwitch, err)
	}
	now := ds.Spec.Template.Spec.Affinity
	if reflect.DeepEqual(now, away(was.Affinity, plugin)) {
		ds.Spec.Template.Spec.Affinity = was.Affinity
	} else {
		withoutUs(now)
	}
	if ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		ds.Spec.UpdateStrategy = was.UpdateStrategy
	}
	delete(ds.Annotations, beforeSwitch)
	return nil
}

// withoutUs takes what keepOff adds out of an affinity. A term of nothing else goes as well: without it, no node would satisfy it.
func withoutUs(a *corev1.Affinity) {
	var rest []corev1.NodeSelectorTerm
	for _, t := range required(a) {
		others := slices.DeleteFunc(slices.Clone(t.MatchExpressions), func(r corev1.NodeSelectorRequirement) bool { return r.Key == switchedFrom })
		emptied := len(others) < len(t.MatchExpressions) && len(others) == 0 && len(t.MatchFields) == 0
		if t.MatchExpressions = others; !emptied {
			rest = append(rest, t)
		}
	}
	switch {
	case len(rest) > 0:
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = rest
	case len(required(a)) > 0:
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
	}
}

// changeDaemonSet changes the other's DaemonSet as it is now.
func (x *crossing) changeDaemonSet(ctx context.Context, change func(*appsv1.DaemonSet, string) error) error {
	sets := x.client.AppsV1().DaemonSets(x.ds.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := sets.Get(ctx, x.ds.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := change(now, x.from); err != nil {
			return err
		}
		if now, err = sets.Update(ctx, now, metav1.UpdateOptions{}); err == nil {
			x.ds = now
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("change DaemonSet %s/%s: %w", x.ds.Namespace, x.ds.Name, err)
	}
	return nil
}

// theirs are the pods of the other's DaemonSet on a node.
func (x *crossing) theirs(ctx context.Context, node string) (pods []corev1.Pod, err error) {
	if x.ds == nil {
		return nil, nil
	}
	pods, err = x.podsOf(ctx, x.ds, node)
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", x.from, err)
	}
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	}), nil
}

// --- The node ------------------------------------------------------------------------------------------------------------

// mark changes a node's label and annotation; nil removes one.
func (x *crossing) mark(ctx context.Context, node string, label, annotation any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{switchedFrom: label}, "annotations": map[string]any{switchedAt: annotation}}})
	if err != nil {
		return err
	}
	ctx, stop := written(ctx)
	defer stop()
	if _, err := x.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", node, err)
	}
	return nil
}

// switchedNodes are those whose operator has given the word to leave a plugin.
func (c *cluster) switchedNodes(ctx context.Context, plugin string) (names []string, err error) {
	err = list(ctx, c.client.CoreV1().Nodes().List, metav1.ListOptions{LabelSelector: switchedFrom + "=" + plugin}, func(n *corev1.Node) { names = append(names, n.Name) })
	if err != nil {
		return nil, fmt.Errorf("list the switched nodes: %w", err)
	}
	return names, nil
}

// places are the host's directories of network configurations and of plugins.
type places struct {
	conf string
	bin  []string
}

// The directories without an agent that says otherwise.
const defaultConfDir = "/etc/cni/net.d"

// placesOf are those that the node's agent has. A nil agent has none.
func (x *crossing) placesOf(said *agentapi.Node, agent *corev1.PodSpec) places {
	p := places{defaultConfDir, []string{netconf.DefaultCNIBinDir}}
	if said != nil {
		if c, _, err := netconf.Parse(said.Installed.Config); err == nil && c.Kubernetes.CNIBinDir != "" {
			p.bin = []string{c.Kubernetes.CNIBinDir}
		}
		if dir := path.Dir(said.Installed.File); agent != nil && path.IsAbs(dir) {
			p.conf = onHost(agent, dir)
		}
	}
	if x.o.confDir != "" {
		p.conf = x.o.confDir
	}
	if len(x.o.binDirs) > 0 {
		p.bin = x.o.binDirs
	}
	return p
}

// onHost is the host's path of a directory of an agent. Of one that is not the host's it is a guess, by its name.
func onHost(agent *corev1.PodSpec, dir string) string {
	if host, _ := behind(mountsOf(agent, agentContainer(agent)), path.Clean(dir)); host != "" {
		return host
	}
	if rest, ok := strings.CutPrefix(dir, hostPrefix+"/"); ok {
		return "/" + rest
	}
	return dir
}

// hostPrefix is the place of the host's directories in our pods: programs know by it that links lead elsewhere there.
const hostPrefix = "/host"

// entry runs a command on the other's entry on a node: show, take or restore.
func (x *crossing) entry(ctx context.Context, node string, p places, dry bool, do string) (s peerentry.State, err error) {
	conf := hostPrefix + p.conf
	e := errand{
		Node: node, Image: x.o.image, What: map[string]string{"show": "to look at its network configuration", "take": "to take " + x.from + "'s entry out", "restore": "to put " + x.from + "'s entry back"}[do],
		Args:   []string{"peer-entry", do, "--type=" + x.from, "--cni-conf-dir=" + conf},
		Mounts: []hostDir{{Path: p.conf, At: conf, Writable: do != "show" && !dry}},
	}
	if dry {
		e.What = "to see what would change"
		e.Args = append(e.Args, "--dry-run")
	}
	for _, dir := range p.bin {
		e.Args = append(e.Args, "--cni-bin-dir="+hostPrefix+dir)
		e.Mounts = append(e.Mounts, hostDir{Path: dir, At: hostPrefix + dir})
	}
	out, err := x.run(ctx, e)
	if err != nil && len(out) == 0 {
		return s, err
	}
	if bad := json.Unmarshal(out, &s); bad != nil {
		return s, errors.Join(err, fmt.Errorf("read what was said of node %s: %w", node, bad))
	}
	if e.Mounts[0].Writable { // it is done: a pod that stays is no reason to undo it
		rest, left := parted(err)
		x.left = errors.Join(x.left, left)
		return s, rest
	}
	return s, err
}

// writers are the node's pods that may write its network configuration, ours apart.
func (x *crossing) writers(ctx context.Context, node string, p places) (names []string, err error) {
	set, err := x.daemonSet(ctx)
	if err != nil {
		return nil, err
	}
	o := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
	err = list(ctx, x.client.CoreV1().Pods("").List, o, func(pod *corev1.Pod) {
		// A pod of another namespace may have any labels.
		ours := set != nil && pod.Namespace == set.Namespace && (metav1.IsControlledBy(pod, set) || pod.Labels[errandLabel] != "")
		writes := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.HostPath != nil && (p.conf == path.Clean(v.HostPath.Path) || strings.HasPrefix(p.conf, strings.TrimSuffix(path.Clean(v.HostPath.Path), "/")+"/"))
		})
		if pod.Spec.NodeName == node && writes && !ours && len(names) < maxWhere {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	})
	slices.Sort(names)
	return names, err
}
