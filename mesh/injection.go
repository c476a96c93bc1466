package mesh

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
)

// Injection describes how pods get into the mesh, and the webhook that puts its proxy into them.
type Injection struct {
	// Pod and Namespace are where people say whether a pod is to be in the mesh; of each, the first that is there counts. People are told
	// to write the first of Namespace, else the first of Pod.
	Pod, Namespace []Wish
	// PodWins: the pod's wish hides its namespace's. Otherwise a no of either is a no, since the webhook gets no pod of such a namespace.
	PodWins bool
	// Webhook ends the names of the injector's webhooks; empty: it has none, or they are not known.
	Webhook string
	// Unasked is the injector's answer about a pod that its webhook gets, and for which nobody has a wish.
	Unasked Answer
	// Health says by which command to look at the injector.
	Health string
	// PluginMode is the setting by which the injector leaves the rules to a CNI plugin.
	PluginMode string
	// PluginMark is an annotation that the injector leaves only then; empty: there is none.
	PluginMark string
	// Never are namespaces that the injector leaves alone.
	Never []string
}

// Wish is a label or annotation that says whether pods are to be in a mesh. Without On, any value but those in Off says yes.
type Wish struct {
	// Source is [redirect.FromLabel] or [redirect.FromAnnotation].
	Source  redirect.Source
	Key     string
	On, Off []string
}

// Label is a wish by label.
func Label(key string, on, off []string) Wish { return Wish{redirect.FromLabel, key, on, off} }

// Annotation is a wish by annotation.
func Annotation(key string, on, off []string) Wish {
	return Wish{redirect.FromAnnotation, key, on, off}
}

// Answer is yes, no, or not known.
type Answer string

// The answers.
const (
	Unknown Answer = ""
	Yes     Answer = "yes"
	No      Answer = "no"
)

// Asked is the wish that counts.
type Asked struct {
	// Answer is Unknown if nobody has a wish, or if its value means nothing to the mesh.
	Answer Answer
	// By names the one that wishes, such as "its namespace has the label istio-injection=disabled"; empty: nobody does.
	By string
	// Wish was found, and Namespaced marks the namespace's.
	Wish       Wish
	Namespaced bool
}

// Asks returns the wish about a pod. Without the namespace those on it are not known.
func (i Injection) Asks(pod *corev1.Pod, namespace *corev1.Namespace) Asked {
	onPod, onNamespace := find(i.Pod, &pod.ObjectMeta), Asked{}
	if namespace != nil {
		onNamespace = find(i.Namespace, &namespace.ObjectMeta)
	}
	onNamespace.Namespaced = true
	if onPod.By != "" {
		onPod.By = "the pod has the " + onPod.By
	}
	if onNamespace.By != "" {
		onNamespace.By = "its namespace has the " + onNamespace.By
	}
	switch {
	case onPod.Answer == No, i.PodWins && onPod.By != "":
		return onPod
	case onNamespace.Answer == No, onPod.Answer != Yes && onNamespace.By != "":
		return onNamespace
	}
	return onPod
}

// Injects returns the injector's answer about a pod that its webhook gets, which has looked at the namespace's labels already unless the
// pod's wish can overrule them.
func (i Injection) Injects(pod *corev1.Pod, namespace *corev1.Namespace) Answer {
	if !i.PodWins {
		namespace = nil
	}
	if asked := i.Asks(pod, namespace); asked.By != "" {
		return asked.Answer
	}
	return i.Unasked
}

// maxValue bounds what is repeated of a label, in bytes. Kubernetes allows 63.
const maxValue = 100

// find returns the first wish that the object has.
func find(wishes []Wish, o *metav1.ObjectMeta) Asked {
	for _, w := range wishes {
		values := o.Labels
		if w.Source == redirect.FromAnnotation {
			values = o.Annotations
		}
		value := values[w.Key]
		if value == "" {
			continue
		}
		a := Asked{Wish: w, By: fmt.Sprintf("%s %s=%s", w.Source, w.Key, truncate.Text(value, maxValue))}
		switch {
		case slices.Contains(w.Off, value):
			a.Answer = No
		case len(w.On) == 0, slices.Contains(w.On, value):
			a.Answer = Yes
		}
		return a
	}
	return Asked{}
}

// by completes the facts by what the dialect's Policy says: of a mesh of whose injector nothing is known, or where selectors decide.
func (f Facts) by(d *dialect.Dialect) Facts {
	f.Title = cmp.Or(f.Title, f.Name)
	if d == nil || len(f.Injection.Pod)+len(f.Injection.Namespace) > 0 && d.Policy.Selectors == nil {
		return f
	}
	p, i := d.Policy, &f.Injection
	i.PodWins, i.Pod, i.Namespace = true, nil, nil
	var off []Wish
	for _, s := range p.Selectors {
		pod, namespace := single(s.Pod), single(s.Namespace)
		switch {
		case pod != nil && len(s.Namespace.MatchLabels)+len(s.Namespace.MatchExpressions) == 0:
			i.Pod = append(i.Pod, *pod)
		case namespace != nil && len(s.Pod.MatchLabels) == 0:
			i.Namespace = append(i.Namespace, *namespace)
		}
		for _, e := range s.Pod.MatchExpressions {
			if e.Operator == metav1.LabelSelectorOpNotIn {
				off = append(off, Label(e.Key, nil, e.Values))
			}
		}
	}
	for _, wishes := range [][]Wish{i.Pod, i.Namespace} {
		for _, o := range off {
			if at := slices.IndexFunc(wishes, func(w Wish) bool { return w.Key == o.Key }); at >= 0 {
				wishes[at].Off = slices.Concat(wishes[at].Off, o.Off)
			}
		}
	}
	if p.InjectKey != "" && (p.Selectors == nil || p.InjectSelects) {
		on, no := p.InjectOn, p.InjectOff
		if len(on)+len(no) == 0 {
			on, no = []string{"true"}, []string{"false"}
		}
		if len(on) > 0 {
			i.Pod = append(i.Pod, Annotation(p.InjectKey, on, no), Label(p.InjectKey, on, no))
		}
	}
	return f
}

// single returns the one label that a selector asks for; nil: it asks for none, or for more.
func single(s metav1.LabelSelector) *Wish {
	if len(s.MatchExpressions) > 0 || len(s.MatchLabels) != 1 {
		return nil
	}
	for key, value := range s.MatchLabels {
		w := Label(key, []string{value}, nil)
		return &w
	}
	return nil
}
