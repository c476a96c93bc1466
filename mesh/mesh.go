// Package mesh holds the facts of a mesh that its rules do not need: its name for people, its injector and its init
// container. [Facts] are data. Commands that explain, check, test and migrate go by them; the plugin decides about pods without them, and
// links none.
//
// The facts of known meshes are beside their dialects, in packages such as internal/facts/istiofacts. A mesh of your own has two packages
// too: its dialect, and its facts.
package mesh

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/trace"
	"github.com/meshcni/meshcni/status"
)

// Facts are those of one mesh. All but Name may be empty; what goes by them then knows less.
type Facts struct {
	// Name is the dialect's.
	Name string
	// Title is its name for people.
	Title string
	// Injection puts the mesh's proxies into pods.
	Injection Injection
	// TestPod makes a pod one of the mesh without its injector.
	TestPod TestPod
	// Init is the init container that writes a pod's rules where there is no CNI plugin; nil: there is none, or it is not known.
	Init *Init
	// PluginTypes are the types of the other CNI plugins that redirect its pods. Empty: none is known.
	PluginTypes []string
	// Advice is on reasons for which the mesh leaves a pod alone, in its own words.
	Advice map[status.Code]Advice
	// Deliberate says in words why our rules treat a packet of a pod otherwise on purpose than the mesh's own do; empty: they do not.
	Deliberate func(redirect.Redirect, trace.Packet) string
}

// Advice explains a reason to people.
type Advice struct {
	// Because completes "This pod is not captured, because …", where %s is the decision's detail. Empty: the usual words do.
	Because string
	// Aside: others see to the pod's traffic, so it is only the plugin that leaves the pod alone.
	Aside bool
	// Meant completes "Nothing, if …"; empty: it is never meant. Do is what to do otherwise, where NAMESPACE is the pod's; unless the pod has
	// an Annotation, which is then to be taken away.
	Meant, Annotation, Do string
}

// TestPod holds the settings of a pod that tries the mesh's rules. A program of the test's takes the proxy's place: its container has the
// user that the dialect makes of the pod. The zero value does for a mesh whose pods are known by the proxy's container.
type TestPod struct {
	// Container is the name of the proxy's. Empty: the first of the dialect's ProxyContainers.
	Container string
	// Labels and Annotations are the pod's, and Env the proxy's. They capture both families of addresses.
	Labels, Annotations map[string]string
	Env                 []corev1.EnvVar
}

// List has the facts of several meshes.
type List []Facts

// Of returns the facts of a mesh. Of one without facts they are made of its dialect's Policy, which nil is not known.
func (l List) Of(name string, d *dialect.Dialect) Facts {
	if i := slices.IndexFunc(l, func(f Facts) bool { return f.Name == name }); i >= 0 {
		return l[i].by(d)
	}
	return Facts{Name: name}.by(d)
}

// Title returns the name of a mesh for people.
func (l List) Title(name string) string { return l.Of(name, nil).Title }
