package explain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/program/remedy"
	"github.com/meshcni/meshcni/internal/program/statuscode"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// about is one mesh's answer about a pod.
type about struct {
	mesh.Facts
	name      string
	dialect   *dialect.Dialect // nil: not known
	pod       *corev1.Pod
	namespace *corev1.Namespace // nil: not known
	online    bool              // as in [Input]
	template  bool              // the pod is what a workload's template says, before any injector has seen it
	selection.Decision
	product meshcni.Identity
}

// giveNamespace is the remedy for a pod whose Namespace is not known.
func giveNamespace(product meshcni.Identity, pod *corev1.Pod, online bool) string {
	if online {
		return "See that the pod's namespace is there, and that you may read it: kubectl get namespace " + pod.Namespace
	}
	return "Give the namespace too (--namespace-file), or ask " + product.WithDefaults().Kubectl + " explain, which reads it from the cluster"
}

// inForce begins what is done once the agents go by the changed settings of the chart.
const inForce = "A minute later, once the agents have that,"

// nothing begins what there is to do if there is nothing to do.
const nothing = "Nothing"

// systems are namespaces of the cluster itself.
var systems = []string{"kube-system", "kube-public", "kube-node-lease"}

// explained is a reason in plain words.
type explained struct {
	// because completes "The pod is not captured, because …".
	because string
	do      []string
	// aside: others see to the pod's traffic, so it is only the plugin that leaves the pod alone.
	aside bool
}

// reasons has an entry for each reason of the selection.
var reasons = map[status.Code]func(about) explained{
	status.CodeExcludedNamespace:        about.excludedNamespace,
	status.CodeHostNetwork:              about.hostNetwork,
	status.CodeInitContainer:            about.initContainer,
	status.CodeProxyDisabled:            about.proxyDisabled,
	status.CodeNoProxy:                  about.noProxy,
	status.CodeProxyMissing:             about.noProxy,
	status.CodeProxyType:                about.proxyType,
	status.CodeInjectDisabled:           about.injectDisabled,
	status.CodeHasSidecar:               about.hasSidecar,
	status.CodeNotEnabled:               about.notEnabled,
	status.CodeNotInjected:              about.notInjected,
	status.CodeDryRun:                   about.byItsOwn,
	status.CodeInterceptionNone:         about.byItsOwn,
	status.CodeNamespaceExcludedByLabel: about.namespaceExcludedByLabel,
	statuscode.NodeProxyPod: func(a about) explained {
		return explained{because: "it is the mesh's own proxy on the node: " + a.Detail, do: []string{nothing + ", this is by design"}, aside: true}
	},
}

// explain gives a mesh's reason to leave the pod alone. Of a reason of a dialect's own only its detail is known.
func (a about) explain() explained {
	if advice, ok := a.Advice[a.Reason]; ok && advice.Because != "" {
		return a.advised(advice)
	}
	if say := reasons[a.Reason]; say != nil {
		return say(a)
	}
	return explained{because: a.Detail, do: []string{
		fmt.Sprintf("Ask whoever runs the mesh %s: the reason %s is its own", a.name, a.Reason),
	}}
}

// advised gives the mesh's own words.
func (a about) advised(advice mesh.Advice) explained {
	x := explained{because: fmt.Sprintf(advice.Because, a.Detail), aside: advice.Aside}
	if advice.Meant != "" {
		x.do = []string{nothing + ", if " + advice.Meant}
	}
	if _, ok := a.pod.Annotations[advice.Annotation]; ok {
		x.do = append(x.do, "Else: "+remedy.Set(a.pod, remedy.Annotations, advice.Annotation, nil))
		return x
	}
	return explained{x.because, append(x.do, strings.ReplaceAll(advice.Do, "NAMESPACE", remedy.Word(a.pod.Namespace)), remedy.Then("Then", a.pod)), x.aside}
}

// bySystem is the remedy for a pod of the cluster itself; nil if it is none.
func (a about) bySystem() []string {
	if slices.Contains(systems, a.pod.Namespace) {
		return []string{nothing + ", this is by design: pods of the cluster itself stay out of a mesh, so that they start when the mesh does not work"}
	}
	return nil
}

func (a about) excludedNamespace() explained {
	x := explained{because: fmt.Sprintf("the plugin's configuration excludes its namespace, %s", a.pod.Namespace), do: a.bySystem()}
	if x.do != nil {
		return x
	}
	left := "nothing"
	if a.dialect != nil {
		rest := slices.DeleteFunc(slices.Clone(a.dialect.Policy.ExcludedNamespaces), func(n string) bool { return n == a.pod.Namespace })
		if len(rest) > 0 {
			left = strings.Join(rest, ", ")
		}
	}
	x.do = []string{
		nothing + ", if that is meant: namespaces of a mesh's own control plane have to stay excluded",
		fmt.Sprintf("Else take %s out of exclude_namespaces (excludeNamespaces in the chart's values); %s remains there", a.pod.Namespace, left),
		remedy.Then(inForce, a.pod),
	}
	return x
}

func (a about) hostNetwork() explained {
	return explained{because: "it uses the network of its node (hostNetwork: true), which is never redirected", do: []string{
		nothing + ", if it needs that network: such a pod cannot be in a mesh, by design",
		"Else set hostNetwork: false in " + a.specOf() + ", and create the pod anew",
	}}
}

// specOf names where the pod's spec is changed.
func (a about) specOf() string {
	if w := remedy.WorkloadOf(a.pod); w.Kind != "" && w.Kind != "Node" {
		return "the pod template of " + w.String()
	}
	return "the pod's manifest"
}

func (a about) initContainer() explained {
	x := explained{because: a.Detail + ": it is the mesh's own, and captures the pod in the plugin's place", aside: true, do: []string{
		nothing + ", if the mesh is to write its rules itself",
	}}
	if a.Injection.PluginMode != "" {
		x.do = append(x.do, "To leave that to the plugin, tell the injector that there is one: "+a.Injection.PluginMode, remedy.Then("Then", a.pod))
	}
	return x
}

func (a about) proxyDisabled() explained {
	return explained{because: "its proxy is switched off: " + a.Detail, do: []string{"Take that variable away where it comes from", remedy.Then("Then", a.pod)}}
}

func (a about) proxyType() explained {
	return explained{because: a.Detail + ": clients address it directly", aside: true, do: []string{
		nothing + ", this is by design: a gateway takes no redirected traffic",
	}}
}

// noProxy and notInjected say what the injector was told, since it is that which has not left its mark.
func (a about) noProxy() explained { return a.uninjected("it has no proxy") }
func (a about) notInjected() explained {
	return a.uninjected("the mark of the mesh's injector is missing")
}

func (a about) uninjected(lacks string) explained {
	found := a.Injection.Asks(a.pod, a.namespace)
	x := explained{because: fmt.Sprintf("%s (%s)", lacks, a.Detail)}
	switch {
	case slices.Contains(a.Injection.Never, a.pod.Namespace):
		x.because += ": the injector never touches " + a.pod.Namespace
		x.do = []string{nothing + ", this is by design: pods of the cluster itself stay out of a mesh"}
	case found.Answer == mesh.No:
		x.because += ", and " + found.By
		x.do = []string{a.join(a.pod, found), remedy.Then("Then", a.pod)}
		if !found.Namespaced {
			x.do = x.do[:1]
		}
	case found.Answer == mesh.Yes && a.template:
		x.because += ": this is a template, and the injector adds the proxy to each pod that is made from it, since " + found.By
		x.do = []string{"Ask about one of its pods: " + a.product.Kubectl + " explain --namespace " + remedy.Word(a.pod.Namespace) + " " + remedy.WorkloadOf(a.pod).String()}
	case found.Answer == mesh.Yes:
		x.because += ", although " + found.By + ": either the pod is older than that, or the injector was not reached"
		x.do = []string{remedy.Restart(a.pod), "If the new pod is the same: " + a.lookAtInjector()}
		if mark := a.Injection.PluginMark; mark != "" && strings.Contains(a.Detail, mark) {
			x.do = []string{"Tell the injector that there is a CNI plugin, and to use transparent proxying: " + a.Injection.PluginMode, remedy.Then("Then", a.pod)}
		}
	default:
		x.do = a.joining(found, &x.because)
	}
	return x
}

// joining is the remedy for a pod for which nobody has asked the mesh.
func (a about) joining(found mesh.Asked, because *string) []string {
	var do []string
	if do := a.bySystem(); do != nil {
		return do
	}
	if a.namespace == nil && len(a.Injection.Namespace) > 0 {
		*because += "; whether its namespace asks for it is not known here"
		do = append(do, giveNamespace(a.product, a.pod, a.online))
	} else if len(a.Injection.Pod) > 0 {
		*because += ", and nothing asks " + a.Title + " for one"
	}
	how := a.join(a.pod, found)
	if how == "" {
		return append(do, "See that the mesh's injector chooses the pod, and that it runs", remedy.Then("Then", a.pod))
	}
	do = append(do, "To have it in the mesh: "+how)
	if len(a.Injection.Namespace) > 0 {
		do = append(do, remedy.Then("Then", a.pod))
	}
	return do
}

// join is the command that asks the mesh for the pod: at its namespace where the mesh looks at that, else at the pod.
func (a about) join(pod *corev1.Pod, found mesh.Asked) string {
	if found.Answer == mesh.No && !found.Namespaced {
		return remedy.Set(pod, string(found.Wish.Source)+"s", found.Wish.Key, &found.Wish.On[0])
	}
	if len(a.Injection.Namespace) == 0 {
		if len(a.Injection.Pod) == 0 {
			return ""
		}
		w := a.Injection.Pod[0]
		return remedy.Set(pod, string(w.Source)+"s", w.Key, &w.On[0])
	}
	w := a.Injection.Namespace[0]
	verb := map[redirect.Source]string{redirect.FromLabel: "label", redirect.FromAnnotation: "annotate"}[w.Source]
	return fmt.Sprintf("kubectl %s --overwrite namespace %s %s=%s", verb, remedy.Word(pod.Namespace), w.Key, w.On[0])
}

func (a about) lookAtInjector() string {
	if a.Injection.Health == "" {
		return "see that the mesh's injector chooses the pod, and that it runs"
	}
	return a.Injection.Health
}

func (a about) injectDisabled() explained {
	x := explained{because: "its " + a.Detail + ", although it has a proxy"}
	key := ""
	if a.dialect != nil {
		key = a.dialect.Policy.InjectKey
	}
	kind := remedy.Annotations
	if _, ok := a.pod.Labels[key]; ok {
		kind = remedy.Labels
	}
	x.do = []string{"If it is to be captured: " + remedy.Set(a.pod, kind, key, a.onWord())}
	return x
}

// onWord is the value of the mesh's InjectKey for on; nil: nothing but its absence.
func (a about) onWord() *string {
	on := "true"
	if a.dialect != nil && len(a.dialect.Policy.InjectOn) > 0 {
		on = a.dialect.Policy.InjectOn[0]
	} else if a.dialect != nil && len(a.dialect.Policy.InjectOff) > 0 {
		return nil
	}
	return &on
}

func (a about) hasSidecar() explained {
	return explained{because: a.Detail, aside: true, do: []string{nothing + ", if that proxy is meant to stay", "Else have whoever puts it there leave the pod out, and create the pod anew"}}
}

func (a about) notEnabled() explained {
	found := a.Injection.Asks(a.pod, a.namespace)
	if found.Answer == mesh.No {
		x := explained{because: found.By, do: []string{a.join(a.pod, found)}}
		if found.Namespaced {
			x.do = []string{"To have it in the mesh: " + x.do[0] + a.joins()}
		}
		return x
	}
	x := explained{because: a.Detail}
	if found.Answer == mesh.Yes || a.join(a.pod, found) == "" {
		x.do = []string{"The selectors of the dialect " + a.name + " decide: ask whoever runs the mesh which labels they want, or change those of the pod or of its namespace"}
		if advice := a.Advice[a.Reason]; advice.Do != "" {
			x.do = []string{advice.Do}
		}
		return x
	}
	x.because = "nothing about it says that it is to be in the mesh"
	if len(a.Injection.Namespace) > 0 {
		x.because = "neither it nor its namespace has the label " + a.Injection.Namespace[0].Key + "=" + a.Injection.Namespace[0].On[0]
	}
	if do := a.bySystem(); do != nil {
		x.do = do
		return x
	}
	x.do = append(x.do, "To have it in the mesh: "+a.join(a.pod, found)+a.joins())
	return x
}

// joins says of a mesh whose proxy is on the node that nobody has to restart anything.
func (a about) joins() string {
	if a.dialect != nil && a.dialect.NodeProxy == nil {
		return "; pods that run have to be created anew"
	}
	return " (pods that run join without a restart)"
}

// byItsOwn is the advice about a reason whose words are each mesh's own.
func (a about) byItsOwn() explained {
	return explained{because: a.Detail, do: []string{nothing + ", if that is meant", "Else ask whoever runs the mesh " + a.name}}
}

func (a about) namespaceExcludedByLabel() explained {
	return explained{because: a.Detail, do: []string{
		nothing + ", if that is meant",
		fmt.Sprintf("Else take such a label off the namespace (kubectl edit namespace %s), or change exclude_namespace_selector (excludeNamespaceSelector in the chart's values)", remedy.Word(a.pod.Namespace)),
		remedy.Then("Then", a.pod),
	}}
}
