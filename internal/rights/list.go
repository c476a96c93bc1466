package rights

import (
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// list gathers rights. Of those that are needed for several things it keeps the first.
type list struct {
	account, why string
	all          []agentapi.Right
}

// object is the object of a request.
type object authorizationv1.ResourceAttributes

// of returns all objects of a kind; a resource such as pods/status has a subresource.
func of(group, resource string) object {
	resource, sub, _ := strings.Cut(resource, "/")
	return object{Group: group, Resource: resource, Subresource: sub}
}

func (o object) in(namespace string) object {
	o.Namespace = namespace
	return o
}

func (o object) named(name string) object {
	o.Name = name
	return o
}

func (l *list) add(o object, verbs ...string) {
	for _, verb := range verbs {
		o.Verb = verb
		l.append(authorizationv1.ResourceAttributes(o))
	}
}

func (l *list) append(a authorizationv1.ResourceAttributes) {
	for _, r := range l.all {
		if r.Account == l.account && r.Attributes == a { // none has a selector yet
			return
		}
	}
	l.all = append(l.all, agentapi.Right{Account: l.account, Attributes: a, For: l.why})
}

// onNode returns the rights, those to list and watch pods for the pods of a node: the agents ask for no others.
func (l *list) onNode(node string) []agentapi.Right {
	for i := range l.all {
		if a := &l.all[i].Attributes; a.Resource == "pods" && (a.Verb == "list" || a.Verb == "watch") && a.Namespace == "" {
			a.FieldSelector = &authorizationv1.FieldSelectorAttributes{Requirements: []metav1.FieldSelectorRequirement{
				{Key: "spec.nodeName", Operator: metav1.FieldSelectorOpIn, Values: []string{node}},
			}}
		}
	}
	return l.all
}

// Text returns, for example, "patch pods/status".
func Text(a authorizationv1.ResourceAttributes) string {
	s := a.Verb + " " + a.Resource
	for _, part := range [][2]string{{"/", a.Subresource}, {".", a.Group}, {" ", a.Name}, {" in namespace ", a.Namespace}} {
		if part[1] != "" {
			s += part[0] + part[1]
		}
	}
	return s
}
