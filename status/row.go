package status

import (
	"slices"
	"strings"
)

// Kind is the question that a code answers. A code means one thing within a kind; "no-proxy" is one of two kinds.
type Kind string

// The kinds.
const (
	KindDecision Kind = "decision" // why a pod is in the mesh or not
	KindPod      Kind = "pod"      // why a pod's redirection is in its state
)

// Code says why, stably: codes are never renamed or reused. [Codes] lists those of this module; a dialect may add its own.
type Code string

// Remedy is one thing to do, as a sentence or a command.
type Remedy string

// Remedies that a program which knows the pod replaces by the command for it.
const (
	Restart Remedy = "Start the pod anew, by its owner: kubectl rollout restart of the Deployment, say"
	BeSure  Remedy = "To be sure, start the pod anew"
)

// Row is what people are told of a code.
type Row struct {
	Kind Kind `json:"kind"`
	Code Code `json:"code"`
	// States are those in which a pod is with this code, the usual one first; empty: it is no pod's reason.
	States []State `json:"states,omitempty"`
	// Sentence is the meaning, as a clause about the pod: "it started before the plugin was on its node".
	Sentence string `json:"sentence"`
	// Do is what helps, in order; empty: nothing is to be done.
	Do []Remedy `json:"do,omitempty"`
	// Attention: somebody has to look at it.
	Attention bool `json:"attention"`
	// Page is the section of the documentation that says more, such as "troubleshooting.md#my-pod-does-not-start".
	Page string `json:"page"`
}

// pages are those of rows that name none.
var pages = map[Kind]string{
	KindDecision: "troubleshooting.md#reasons-of-the-decision",
	KindPod:      "troubleshooting.md#what-the-agent-knows-of-each-pod",
}

// table has a row for each code of each kind.
var table = slices.Concat(decisionTable, podTable, nodeTable, findingTable)

// Remedy returns what helps as one text, of whole sentences; empty: nothing is to be done.
func (r Row) Remedy() string {
	if len(r.Do) == 0 {
		return ""
	}
	all := make([]string, 0, len(r.Do))
	for _, d := range r.Do {
		all = append(all, string(d))
	}
	return strings.Join(all, ". ") + "."
}

// URL is the address of the page.
func (r Row) URL() string { return "https://github.com/meshcni/meshcni/blob/main/docs/" + r.Page }

// Lookup returns the row of a code of the kind; false: this version has none.
func Lookup(k Kind, c Code) (Row, bool) {
	if i := slices.IndexFunc(table, func(r Row) bool { return r.Kind == k && r.Code == c }); i >= 0 {
		return table[i].complete(), true
	}
	return Row{}, false
}

// Rows returns the rows of a code, one for each kind that has it; none: this version does not know it.
func Rows(c Code) (all []Row) {
	for _, r := range table {
		if r.Code == c {
			all = append(all, r.complete())
		}
	}
	return all
}

// Table returns all rows, by kind.
func Table() []Row {
	all := make([]Row, 0, len(table))
	for _, r := range table {
		all = append(all, r.complete())
	}
	return all
}

// Codes lists the codes of a kind.
func Codes(k Kind) (all []Code) {
	for _, r := range table {
		if r.Kind == k {
			all = append(all, r.Code)
		}
	}
	return all
}

// complete returns a copy that owns its lists.
func (r Row) complete() Row {
	r.States, r.Do = slices.Clone(r.States), slices.Clone(r.Do)
	if r.Page == "" {
		r.Page = pages[r.Kind]
	}
	return r
}
