// Package explain says what the meshes of a node make of one pod: whether it is captured, why, and what to do; where each setting comes
// from, and the rules; and what becomes of typical packets, of a connection, and of saved rules beside ours. The command lines and the
// playground print what [Pod] returns, so they say the same. It does no I/O.
package explain

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/selection"
	"github.com/meshcni/meshcni/status"
)

// Input is a pod and what is known of it.
type Input struct {
	// Subject is decided on; its Pod is required. [Addrs] are the addresses in the pod's status.
	Subject dialect.Subject
	// Identity is that of the product whose commands the remedies name.
	Identity meshcni.Identity
	// Facts describe the meshes beside their dialects. Of one without, its Policy says how pods get into it.
	Facts mesh.List
	// Template: the pod is what a workload's template says, before any injector has seen it.
	Template bool
	// Online: who reads the explanation can ask the pod's cluster, so remedies name it. Default: there are files only.
	Online bool
	// Warnings are those of how the input was found. The Explanation has them first.
	Warnings []string
	// Configuration is the origin of the meshes and their options.
	Configuration Configuration
}

// templateOnly is the warning of an [Input.Template].
const templateOnly = "this is a workload's template: what a mesh's injector adds to each pod is not in it"

// Pod explains the fate of a pod, as the plugin with these meshes decides, and whether it is of a known one that is not configured. A refused
// pod is an Explanation; see [Explanation.Err]. An error means that no decision was reached.
func Pod(meshes dialect.Set, in Input) (Explanation, error) {
	if in.Subject.Pod == nil {
		return Explanation{}, selection.ErrNoPod
	}
	plan, err := meshes.Plan(in.Subject)
	if err != nil && plan.Decision.Reason == "" {
		return Explanation{}, err
	}
	x := Explanation{
		Pod: PodName{in.Subject.Pod.Namespace, in.Subject.Pod.Name}, Dialect: cmp.Or(plan.Dialect, meshes.String()), Answers: plan.Answers, Configuration: in.Configuration, Decision: plan.Decision,
		Bypasses: []string{}, BypassCodes: append([]dialect.BypassCode{}, plan.BypassCodes()...), Warnings: append([]string{}, in.Warnings...),
		Plan: plan, err: err, Subject: in.Subject, meshes: meshes, facts: in.Facts, online: in.Online, template: in.Template, identity: in.Identity.WithDefaults(),
	}
	if in.Template {
		x.Warnings = append(x.Warnings, templateOnly)
	}
	x.Warnings = append(append(x.Warnings, plan.Decision.Warnings.Texts()...), plan.Warnings.Texts()...)
	for _, b := range plan.Bypasses {
		x.Bypasses = append(x.Bypasses, b.String())
	}
	d := meshes.Lookup(cmp.Or(plan.Dialect, meshes.Names()[0]))
	if proxy := d.Policy.Proxy(in.Subject.Pod); proxy != nil {
		x.proxy = proxy.Name
	}
	switch {
	case err != nil:
		x.Refused = reasonsOf(err)
	case plan.Decision.Selected:
		x.Redirect, x.Rules = &x.Plan.Redirect, &x.Plan.Ruleset
		x.Settings = settings(plan.Redirect, plan.Origins)
		x.Packets = x.typical()
	}
	x.Verdict = x.verdict()
	return x, nil
}

// Explanation tells the fate of a pod. Its JSON has neither the Subject nor the Plan.
type Explanation struct {
	Pod PodName `json:"pod"`
	// Verdict says all of it to somebody who knows none of our terms.
	Verdict Verdict `json:"verdict"`
	// Dialect is the mesh that has the pod; if none has, all that were asked, separated by commas.
	Dialect string `json:"dialect"`
	// Answers are the decisions of several meshes, in order.
	Answers []dialect.Answer `json:"answers,omitempty"`
	// Configuration is the origin of the dialect and the other settings of the plugin.
	Configuration Configuration      `json:"configuration"`
	Decision      selection.Decision `json:"decision"`
	// Refused lists the pod's invalid settings.
	Refused []string `json:"refused,omitempty"`
	// Bypasses describes how traffic of the pod can bypass the mesh. BypassCodes
	// are the codes for them in the plugin's record.
	Bypasses    []string             `json:"bypasses"`
	BypassCodes []dialect.BypassCode `json:"bypassCodes"`
	// Warnings are those of the decision, the plan and the input, without bypasses.
	Warnings []string           `json:"warnings"`
	Redirect *redirect.Redirect `json:"redirect,omitempty"`
	Settings []Setting          `json:"settings,omitempty"`
	Packets  []Fate             `json:"packets,omitempty"`
	Rules    *ruleset.Ruleset   `json:"rules,omitempty"`

	// Subject and Plan are what all of it is made from.
	Subject dialect.Subject `json:"-"`
	Plan    dialect.Plan    `json:"-"`

	err              error // of a refused pod
	meshes           dialect.Set
	facts            mesh.List
	identity         meshcni.Identity
	online, template bool
	proxy            string // the name of its proxy container
}

// Err is the error with which the plugin refuses the pod; nil: it does not. It is that of [dialect.Set.Plan].
func (x Explanation) Err() error { return x.err }

// Status returns the pod's state by its settings, as an agent's answers have it; nothing of the node is in it. The UID is the API server's.
func (x Explanation) Status() status.Pod {
	return status.Pod{
		ID: status.ID{Namespace: x.Pod.Namespace, Name: x.Pod.Name, UID: string(x.Subject.Pod.UID)}, Dialect: x.Verdict.Mesh,
		State: x.Verdict.State, Reason: x.Verdict.Code, Detail: x.Verdict.Sentence,
	}
}

// PodName names a pod.
type PodName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns NAMESPACE/NAME.
func (n PodName) String() string { return n.Namespace + "/" + n.Name }

// Configuration names the installed configuration that counts.
type Configuration struct {
	// File is the network configuration with the plugin's entry. Empty: none counts, and None says why.
	File string `json:"file,omitempty"`
	None string `json:"none,omitempty"`
	// Loaded is the file that the runtime loads, if that is another.
	Loaded string `json:"loaded,omitempty"`
	// Flags are those that were typed, and so count instead of the file's settings.
	Flags []string `json:"flags,omitempty"`

	// Expected: this is a node, or somebody named a file, so commands that print for people say which configuration counts.
	Expected bool `json:"-"`
}

// NoConfiguration is that of who asks for none.
var NoConfiguration = Configuration{None: "--config none"}

// String is the configuration in one line.
func (c Configuration) String() string {
	if c.File == "" {
		return "configuration: none (" + c.None + "), so flags and defaults"
	}
	s := "configuration: " + c.File
	if c.Loaded != "" {
		s += ", although the runtime loads " + c.Loaded
	}
	if len(c.Flags) > 0 {
		s += ", but for " + strings.Join(c.Flags, ", ")
	}
	return s
}

// Setting is a field of the Redirect and its origin.
type Setting struct {
	Field string `json:"field"`
	// Value is the value in effect. From holds what the pod says.
	Value json.RawMessage `json:"value,omitempty"`
	From  redirect.Origin `json:"from"`
}

// reasonsOf returns the parts of a joined error, without the text that wraps them.
func reasonsOf(err error) []string {
	var all []string
	for _, part := range parts(err) {
		all = append(all, part.Error())
	}
	return all
}

func parts(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			var all []error
			for _, part := range joined.Unwrap() {
				all = append(all, parts(part)...)
			}
			return all
		}
	}
	return []error{err}
}

// settings finds the value of each field by its path in JSON.
func settings(r redirect.Redirect, origins []redirect.Origin) []Setting {
	b, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	var out []Setting
	for _, o := range origins {
		if o.Field == "" {
			continue // validated, but sets no field
		}
		out = append(out, Setting{Field: o.Field, Value: lookupJSON(b, o.Field), From: o})
	}
	return out
}

func lookupJSON(b json.RawMessage, path string) json.RawMessage {
	head, rest, more := strings.Cut(path, ".")
	var fields map[string]json.RawMessage
	if json.Unmarshal(b, &fields) != nil {
		return nil
	}
	if more {
		return lookupJSON(fields[head], rest)
	}
	return fields[head]
}
