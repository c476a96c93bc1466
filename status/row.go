package status

import (
	"slices"
	"strings"
	"sync"

	"github.com/meshcni/meshcni"
)

// Kind is the question that a code answers. A code means one thing within a kind; "no-proxy" is one of two kinds.
type Kind string

// The kinds of what is said of a pod.
const (
	KindDecision     Kind = "decision"     // why a pod is in the mesh or not
	KindPod          Kind = "pod"          // why a pod's redirection is in its state
	KindNow          Kind = "now"          // what is wrong with a pod now
	KindCheck        Kind = "check"        // what the mesh's check in a pod says of it
	KindOutcome      Kind = "outcome"      // what an attempt to repair a pod came to
	KindAttempt      Kind = "attempt"      // why it came to that
	KindVerification Kind = "verification" // what comparing a running pod's rules came to
)

// Code says why, stably: codes are never renamed or reused. [Codes] lists those of this module; a dialect may add its own.
type Code string

// Remedy is one thing to do, as a sentence or a command.
type Remedy string

// Remedies that a program which knows the pod replaces by the command for it.
const (
	Restart Remedy = "Restart it, by kubectl rollout restart of its owner"
	BeSure  Remedy = "To be sure, restart it"
)

// Row holds the words for people about a code. It names meshcni's own programs; see [Row.For].
type Row struct {
	Kind Kind `json:"kind"`
	Code Code `json:"code"`
	// States are those in which a pod is with this code, the usual one first; empty: it is no pod's reason.
	States []State `json:"states,omitempty"`
	// Sentence is the meaning, as a clause about the pod: "it started before the plugin was on its node".
	Sentence string `json:"sentence"`
	// Do lists the remedies, in order; empty: nothing is to be done.
	Do []Remedy `json:"do,omitempty"`
	// Attention: somebody has to look at it.
	Attention bool `json:"attention"`
	// Event is the reason of the Kubernetes event that tells of it; empty: none does.
	Event string `json:"event,omitempty"`
	// Page is the section of the documentation that says more, such as "troubleshooting.md#my-pod-does-not-start".
	Page string `json:"page"`
}

// pages are those of rows that name none.
var pages = map[Kind]string{
	KindDecision: "troubleshooting.md#reasons-of-the-decision",
	KindPod:      "troubleshooting.md#what-the-agent-knows-of-each-pod",
	KindCheck:    "troubleshooting.md#repair", KindOutcome: "troubleshooting.md#repair", KindAttempt: "troubleshooting.md#repair", KindVerification: "troubleshooting.md#repair",
	KindNow: "kubectl.md#what-about-my-pod",
}

// table has a row for each code of each kind. It is made when first asked for: each program starts with it, and few look.
var table = sync.OnceValue(func() []Row {
	return slices.Concat(decisions(), podTable(), nodeTable(), findingTable(), settingTable(), alertTable(),
		rowsOf(KindNow, present()), rowsOf(KindCheck, checks()), rowsOf(KindOutcome, outcomes()), rowsOf(KindAttempt, attempts()), rowsOf(KindVerification, verifications()))
})

func rowsOf(k Kind, rows []Row) []Row {
	for i := range rows {
		rows[i].Kind = k
	}
	return rows
}

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

// For returns the row as a product tells it, with the names of its programs in the place of meshcni's.
func (r Row) For(product meshcni.Identity) Row {
	r = r.complete()
	r.Sentence = product.Text(r.Sentence)
	for i, do := range r.Do {
		r.Do[i] = Remedy(product.Text(string(do)))
	}
	return r
}

// URL is the address of the page in a product's documentation.
func (r Row) URL(product meshcni.Identity) string { return product.WithDefaults().Docs + r.Page }

// Lookup returns the row of a code of the kind; false: this version has none.
func Lookup(k Kind, c Code) (Row, bool) {
	if i := slices.IndexFunc(table(), func(r Row) bool { return r.Kind == k && r.Code == c }); i >= 0 {
		return table()[i].complete(), true
	}
	return Row{}, false
}

// Rows returns the rows of a code, one for each kind that has it, or those of which an event tells whose reason it is; none: this version
// does not know it.
func Rows(c Code) (all []Row) {
	for _, r := range table() {
		if r = r.complete(); r.Code == c || r.Event == string(c) && c != "" {
			all = append(all, r)
		}
	}
	return all
}

// Table returns all rows, by kind.
func Table() []Row {
	all := make([]Row, 0, len(table()))
	for _, r := range table() {
		all = append(all, r.complete())
	}
	return all
}

// Codes lists the codes of a kind.
func Codes(k Kind) (all []Code) {
	for _, r := range table() {
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
	if r.Kind == KindReadiness || r.Kind == KindNotice {
		r.Event = camel(string(r.Code))
	}
	return r
}

// camel is a code as a reason of events.
func camel(code string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(code, "-") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
