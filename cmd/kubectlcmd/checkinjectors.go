package kubectlcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshcni/meshcni/internal/api/apilist"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/status"
)

// injector is a webhook by which a mesh puts its proxies into pods.
type injector struct {
	mesh  string
	facts mesh.Injection
	// name is the configuration's, and the webhook's in it.
	name                string
	namespaces, objects labels.Selector
	// conditional: expressions of the webhook decide too, and are not evaluated here.
	conditional bool
	ignored     bool // failurePolicy Ignore
	// service answers, as namespace and name. Zero: the webhook has a URL.
	service [2]string
}

// injectors are the webhooks of a cluster. Known is false if they could not be listed.
type injectors struct {
	all   []injector
	known bool
}

// takes reports that the injector would put a proxy into a pod that is made now.
func (i injector) takes(pod *corev1.Pod, namespace *corev1.Namespace) mesh.Answer {
	if !i.namespaces.Matches(labels.Set(namespace.Labels)) || !i.objects.Matches(labels.Set(pod.Labels)) {
		return mesh.No
	}
	answer := i.facts.Injects(pod, namespace)
	if answer == mesh.Yes && i.conditional {
		return mesh.Unknown
	}
	return answer
}

// injectors looks at the webhooks of the meshes that the plugin is configured for, and adds those that do not work.
func (c *cluster) injectors(ctx context.Context, f *findings, s *settings) (found injectors) {
	meshes := s.sidecars()
	if len(meshes) == 0 {
		return found
	}
	found.known = true
	down := map[[2]string]bool{}
	err := apilist.Each(ctx, c.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List, metav1.ListOptions{}, func(configuration *admissionv1.MutatingWebhookConfiguration) {
		for _, w := range configuration.Webhooks {
			i, ok := injectorOf(c.Facts, configuration.Name, w)
			if !ok || !slices.Contains(meshes, i.mesh) {
				continue
			}
			found.all = append(found.all, i)
			if _, looked := down[i.service]; !looked && i.service[1] != "" {
				down[i.service] = c.unserved(ctx, f, i.service)
			}
			if down[i.service] {
				f.add(codeInjectorDown, levelError, "webhook/"+i.name, i.downText())
			}
		}
	})
	if err != nil {
		found.known = false
		f.add(codeInjectorUnknown, levelUnknown, "", "list the injectors' webhooks: "+err.Error())
	}
	return found
}

// injectorOf reads a webhook, if it is a mesh's injector.
func injectorOf(meshes mesh.List, configuration string, w admissionv1.MutatingWebhook) (i injector, ok bool) {
	takesPods := slices.ContainsFunc(w.Rules, func(r admissionv1.RuleWithOperations) bool {
		return (slices.Contains(r.Operations, admissionv1.Create) || slices.Contains(r.Operations, admissionv1.OperationAll)) &&
			(slices.Contains(r.Resources, "pods") || slices.Contains(r.Resources, "*") || slices.Contains(r.Resources, "*/*"))
	})
	for _, m := range meshes {
		if suffix := m.Injection.Webhook; takesPods && suffix != "" && strings.HasSuffix(w.Name, suffix) {
			i.mesh, i.facts = m.Name, m.Injection
		}
	}
	if i.mesh == "" {
		return i, false
	}
	i.name, i.conditional = configuration+"/"+w.Name, len(w.MatchConditions) > 0
	i.ignored = w.FailurePolicy != nil && *w.FailurePolicy == admissionv1.Ignore
	if s := w.ClientConfig.Service; s != nil {
		i.service = [2]string{s.Namespace, s.Name}
	}
	var errs [2]error // the API server takes none that is wrong
	i.namespaces, errs[0] = selectorOf(w.NamespaceSelector)
	i.objects, errs[1] = selectorOf(w.ObjectSelector)
	return i, errors.Join(errs[:]...) == nil
}

// selectorOf returns a webhook's selector, of which none selects everything.
func selectorOf(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

// unserved reports whether no pod is ready behind a service. That it cannot be told is a finding.
func (c *cluster) unserved(ctx context.Context, f *findings, service [2]string) bool {
	ready := false
	o := metav1.ListOptions{LabelSelector: labels.Set{discoveryv1.LabelServiceName: service[1]}.String()}
	err := apilist.Each(ctx, c.client.DiscoveryV1().EndpointSlices(service[0]).List, o, func(s *discoveryv1.EndpointSlice) {
		for _, e := range s.Endpoints {
			ready = ready || e.Conditions.Ready == nil || *e.Conditions.Ready
		}
	})
	if err != nil {
		f.add(codeInjectorUnknown, levelUnknown, "service/"+service[0]+"/"+service[1], "whether a pod is ready behind the injector's service is not known: "+err.Error())
		return false
	}
	return !ready
}

func (i injector) downText() string {
	text := fmt.Sprintf("no pod is ready behind the service %s/%s of the injector of %s", i.service[0], i.service[1], i.mesh)
	if i.ignored {
		return text + ", and its failurePolicy is Ignore: new pods start without a proxy, outside of the mesh"
	}
	return text + ", and its failurePolicy is Fail: pods that it selects are not made"
}

// excluded adds the namespaces that an injector takes and the plugin leaves alone.
func (f *findings) excluded(namespace *corev1.Namespace, s *settings, webhooks injectors) {
	where := "namespace/" + namespace.Name
	ordinary := &corev1.Pod{}
	for _, d := range s.distinct {
		if !d.meshes.Excludes(namespace) {
			continue
		}
		for _, i := range webhooks.all {
			if !d.has(i.mesh) {
				continue
			}
			switch i.takes(ordinary, namespace) {
			case mesh.Yes:
				f.add(codeInjectorExcluded, levelError, where, fmt.Sprintf("the injector of %s (%s) takes the pods of this namespace, and the plugin leaves them alone: new pods there bypass the mesh", i.mesh, i.name))
				return // once for a namespace
			case mesh.Unknown:
				if i.conditional {
					f.add(codeInjectorUnknown, levelUnknown, where, fmt.Sprintf("the plugin leaves the pods of this namespace alone, and whether the injector of %s (%s) takes them cannot be told: its matchConditions are not evaluated", i.mesh, i.name))
				}
			case mesh.No:
			}
		}
	}
}

// missed adds a pod that an injector would take now, and that has no proxy.
func (f *findings) missed(pod *corev1.Pod, namespace *corev1.Namespace, d *deciding, webhooks injectors) {
	if d.meshes.Excludes(namespace) {
		return
	}
	for _, i := range webhooks.all {
		found := d.meshes.Lookup(i.mesh)
		if found != nil && found.Decide(pod, namespace).Reason == status.CodeNoProxy && i.takes(pod, namespace) == mesh.Yes {
			f.add(codeInjectorMissed, levelWarning, "pod/"+pod.Namespace+"/"+pod.Name,
				fmt.Sprintf("has no proxy, and the injector of %s would give it one today: the pod started before the injection was switched on, or while nothing answered for the injector", i.mesh))
			return
		}
	}
}

// without adds the meshes that have neither an injector nor pods.
func (f *findings) without(meshes mesh.List, s *settings, webhooks injectors, selected map[string]int) {
	if !webhooks.known {
		return
	}
	for _, name := range s.sidecars() {
		has := slices.ContainsFunc(webhooks.all, func(i injector) bool { return i.mesh == name })
		if meshes.Of(name, nil).Injection.Webhook != "" && !has && selected[name] == 0 {
			f.add(codeNoInjector, levelWarning, "", "the plugin is configured for "+name+", and the cluster has neither its injector nor a pod with its proxy")
		}
	}
}
