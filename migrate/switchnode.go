package migrate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/internal/diagnosis/kubectl"
	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/migrate/internal/migration"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// switchedAt, after the product's prefix, is a node's annotation: since when only our plugin is called.
const switchedAt = "switched-at"

// changeDaemonSet changes the other's DaemonSet as it is now.
func (x *switcher) changeDaemonSet(ctx context.Context, change func(meshcni.Identity, *appsv1.DaemonSet, string) error) error {
	sets := x.Client.AppsV1().DaemonSets(x.ds.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := sets.Get(ctx, x.ds.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := change(x.Identity, now, x.from); err != nil {
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
func (x *switcher) theirs(ctx context.Context, node string) (pods []corev1.Pod, err error) {
	if x.ds == nil {
		return nil, nil
	}
	pods, err = x.Pods(ctx, x.ds, node)
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", x.from, err)
	}
	return slices.DeleteFunc(pods, func(pod corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	}), nil
}

// mark changes a node's label and annotation; nil removes one.
func (x *switcher) mark(ctx context.Context, node string, label, annotation any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{x.Identity.Key(migration.SwitchedFrom): label}, "annotations": map[string]any{x.Identity.Key(switchedAt): annotation}}})
	if err != nil {
		return err
	}
	ctx, stop := x.Uninterrupted(ctx)
	defer stop()
	if _, err := x.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", node, err)
	}
	return nil
}

// switchedNodes are those whose operator has given the word to leave a plugin.
func (c *cluster) switchedNodes(ctx context.Context, plugin string) (names []string, err error) {
	err = apilist.Each(ctx, c.Client.CoreV1().Nodes().List, metav1.ListOptions{LabelSelector: c.Identity.Key(migration.SwitchedFrom) + "=" + plugin}, func(n *corev1.Node) { names = append(names, n.Name) })
	if err != nil {
		return nil, fmt.Errorf("list the switched nodes: %w", err)
	}
	return names, nil
}

// cniDirs are the host's directories of network configurations and of plugins.
type cniDirs struct {
	conf string
	bin  []string
}

// The directories without an agent that says otherwise.
const defaultConfDir = "/etc/cni/net.d"

// cniDirsOf are those that the node's agent has. A nil agent has none.
func (x *switcher) cniDirsOf(said *agentapi.Node, agent *corev1.PodSpec) cniDirs {
	p := cniDirs{defaultConfDir, []string{netconf.DefaultCNIBinDir}}
	if said != nil {
		if c, _, err := netconf.Parse(said.Installed.Config, x.Identity); err == nil && c.Kubernetes.CNIBinDir != "" {
			p.bin = []string{c.Kubernetes.CNIBinDir}
		}
		if dir := path.Dir(said.Installed.File); agent != nil && path.IsAbs(dir) {
			p.conf = x.HostDir(agent, dir)
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

// hostPrefix is the place of the host's directories in our pods: programs know by it that links lead elsewhere there.
const hostPrefix = "/host"

// peerEntry is what the agent's program says of the other's entry on a node.
type peerEntry struct {
	// File is the name of the list that the runtime loads. Chained: the other's entry is in it.
	File    string `json:"file"`
	Chained bool   `json:"chained"`
	// Kept was taken out and not put back; nil: nothing was. KeptError is the reason that it cannot be read.
	Kept      *struct{} `json:"kept"`
	KeptError string    `json:"kept_error"`
	// Changed: the command has changed the list, or would. Diff is the change.
	Changed bool   `json:"changed"`
	Diff    string `json:"diff"`
}

// entry runs a command on the other's entry on a node: show, take or restore.
func (x *switcher) entry(ctx context.Context, node string, p cniDirs, dry bool, do string) (s peerEntry, err error) {
	conf := hostPrefix + p.conf
	j := kubectl.Job{
		Node: node, Image: x.o.image, What: map[string]string{"show": "to look at its network configuration", "take": "to take " + x.from + "'s entry out", "restore": "to put " + x.from + "'s entry back"}[do],
		Args:   []string{"peer-entry", do, "--type=" + x.from, "--cni-conf-dir=" + conf},
		Mounts: []kubectl.HostDir{{Path: p.conf, At: conf, Writable: do != "show" && !dry}},
	}
	if dry {
		j.What = "to see what would change"
		j.Args = append(j.Args, "--dry-run")
	}
	for _, dir := range p.bin {
		j.Args = append(j.Args, "--cni-bin-dir="+hostPrefix+dir)
		j.Mounts = append(j.Mounts, kubectl.HostDir{Path: dir, At: hostPrefix + dir})
	}
	out, err := x.Job(ctx, j)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("read what was said of node %s: %w", node, err)
	}
	return s, nil
}

// writers are the node's pods that may write its network configuration, ours apart.
func (x *switcher) writers(ctx context.Context, node string, p cniDirs) (names []string, err error) {
	sets, err := x.DaemonSets(ctx)
	if err != nil {
		return nil, err
	}
	o := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}
	err = apilist.Each(ctx, x.Client.CoreV1().Pods("").List, o, func(pod *corev1.Pod) {
		// A pod of another namespace may have any labels.
		ours := slices.ContainsFunc(sets, func(set *appsv1.DaemonSet) bool {
			return pod.Namespace == set.Namespace && (metav1.IsControlledBy(pod, set) || pod.Labels[x.Identity.Key(kubectl.JobLabel)] != "")
		})
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

// toRestart lists the pods of a switched node that have other rules than ours: those that started before only our plugin was left. Our
// records tell which of them both plugins have been called for. It fails no switch.
func (x *switcher) toRestart(ctx context.Context, s phase) {
	const both, unknown = "started with both plugins, and may have rules of both; restart soon", "started before, with rules that cannot be told; restart"
	theirs := "with the rules of " + x.from + ", which stay in force; restart when it suits you"
	pods, err := x.older(ctx, s)
	names := map[string][]string{}
	for _, pod := range pods {
		text := theirs
		switch is, err := x.Pod(ctx, s.agent, pod); {
		case err != nil || is.RecordsError != "" && len(is.Records) == 0:
			text = unknown
		case slices.ContainsFunc(is.Records, func(r attachment.Record) bool { return r.Selected }):
			text = both
		}
		names[text] = append(names[text], pod.Namespace+"/"+pod.Name)
	}
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		x.say(s.name, "warning: which pods are to be restarted cannot be told: %v", err)
		return
	}
	for _, text := range []string{both, theirs, unknown} {
		if all := names[text]; len(all) > 0 {
			slices.Sort(all)
			x.say(s.name, "%s %s: %s", kubectl.Many(len(all), "pod", "pods"), text, kubectl.AndMore(all[:min(len(all), maxWhere)], len(all)))
		}
	}
}

// older are the pods of the mesh, by the configuration of our plugin, that started before only that was left.
func (x *switcher) older(ctx context.Context, s phase) (pods []*corev1.Pod, err error) {
	meshes, err := x.Configured(s.config, s.name)
	if err != nil {
		return nil, fmt.Errorf("read the plugin's entry: %w", err)
	}
	namespaces, err := x.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	err = apilist.Each(ctx, x.Client.CoreV1().Pods("").List, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.name}, func(pod *corev1.Pod) {
		started := pod.Status.StartTime // nil: the kubelet has not begun with it, so it gets ours alone
		if pod.Spec.NodeName != s.name || !kubectl.HasNetwork(pod) || pod.Labels[x.Identity.Key(kubectl.TestLabel)] != "" || started == nil || started.After(s.since) {
			return
		}
		if plan, err := meshes.Plan(dialect.Subject{Pod: pod, Namespace: namespaces[pod.Namespace]}); err != nil || plan.Decision.Selected {
			pods = append(pods, pod.DeepCopy())
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the node's pods: %w", err)
	}
	return pods, nil
}
