package rights

import (
	"github.com/meshcni/meshcni/internal/node/api"
	"github.com/meshcni/meshcni/nodeagent/agentapi"
)

// list gathers rights. Of those that are needed for several things it keeps the first.
type list struct {
	account, why string
	all          []agentapi.Right
}

// in is rights in one namespace, and named those to what has one name there.
func in(namespace string, all ...api.Right) []api.Right { return named(namespace, "", all...) }

func named(namespace, name string, all ...api.Right) (bound []api.Right) {
	for _, r := range all {
		r.Namespace, r.Name = namespace, name
		bound = append(bound, r)
	}
	return bound
}

func (l *list) add(all ...api.Right) {
next:
	for _, right := range all {
		for _, r := range l.all {
			if r.Account == l.account && r.Attributes == right { // none has a selector yet
				continue next
			}
		}
		l.all = append(l.all, agentapi.Right{Account: l.account, Attributes: right, For: l.why})
	}
}

// onNode returns the rights, those to list and watch pods for the pods of a node: the agents ask for no others.
func (l *list) onNode(node string) []agentapi.Right {
	for i := range l.all {
		if a := &l.all[i].Attributes; a.Resource == "pods" && (a.Verb == "list" || a.Verb == "watch") && a.Namespace == "" {
			a.FieldSelector = api.OnNode(node)
		}
	}
	return l.all
}
