package kubectlcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/plugin/attachment"
)

// older are pods of a node's mesh that started before only our plugin was left, by the rules that they have.
type older struct {
	both, theirs, unknown []string
}

// toRestart lists the pods of a switched node that have other rules than ours. It fails no switch.
func (x *crossing) toRestart(ctx context.Context, s phase) {
	o, err := x.older(ctx, s)
	if err != nil {
		x.say(s.name, "warning: which pods are to be restarted cannot be told: %v", err)
		return
	}
	tell := func(pods []string, text string) {
		if n := len(pods); n > 0 {
			slices.Sort(pods)
			more := ""
			if n > maxWhere {
				more = fmt.Sprintf(" and %d more", n-maxWhere)
			}
			x.say(s.name, "%s %s: %s%s", many(n, "pod", "pods"), text, strings.Join(pods[:min(n, maxWhere)], ", "), more)
		}
	}
	tell(o.both, "started with both plugins, and may have rules of both; restart soon")
	tell(o.theirs, "with the rules of "+x.from+", which stay in force; restart when it suits you")
	tell(o.unknown, "started before, with rules that cannot be told; restart")
}

// older finds the pods. Those of the mesh are known by the configuration of our plugin, and those that both plugins have been called
// for by its records.
func (x *crossing) older(ctx context.Context, s phase) (o older, err error) {
	d := deciding{text: s.config, node: s.name}
	if err := d.parse(x.Dialects); err != nil {
		return o, fmt.Errorf("read the plugin's entry: %w", err)
	}
	var pods []*corev1.Pod
	err = list(ctx, x.client.CoreV1().Pods("").List, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.name}, func(pod *corev1.Pod) {
		ended := pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		started := pod.Status.StartTime // nil: the kubelet has not begun with it, so it gets ours alone
		if pod.Spec.NodeName == s.name && !pod.Spec.HostNetwork && !ended && pod.Labels[trialLabel] == "" && started != nil && !started.After(s.since) {
			pods = append(pods, pod.DeepCopy())
		}
	})
	if err != nil {
		return o, fmt.Errorf("list the node's pods: %w", err)
	}
	namespaces := map[string]*corev1.Namespace{}
	for _, pod := range pods {
		if namespaces[pod.Namespace] == nil {
			if namespaces[pod.Namespace], err = x.client.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{}); err != nil {
				return o, err
			}
		}
		plan, err := d.meshes.Plan(dialect.Subject{Pod: pod, Namespace: namespaces[pod.Namespace]})
		if err == nil && !plan.Decision.Selected {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		switch is, err := x.tells(ctx, s.agent, pod); {
		case ctx.Err() != nil:
			return o, context.Cause(ctx)
		case err != nil || is.RecordsError != "" && len(is.Records) == 0:
			o.unknown = append(o.unknown, name)
		case slices.ContainsFunc(is.Records, func(r attachment.Record) bool { return r.Selected }):
			o.both = append(o.both, name)
		default:
			o.theirs = append(o.theirs, name)
		}
	}
	return o, nil
}
