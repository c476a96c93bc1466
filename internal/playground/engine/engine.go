// Package engine answers the playground's questions about a pod: what explain says of it, its rules and their picture, who
// reaches what, the way of one connection, and a comparison. It is compiled to WebAssembly, and does no I/O.
package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/diagnosis/compare"
	"github.com/meshcni/meshcni/internal/facts"
	"github.com/meshcni/meshcni/plugin/netconf"
	"github.com/meshcni/meshcni/redirect/apply"
)

// Subject is a pod and what the page knows about it.
type Subject struct {
	// Pod and Namespace are YAML or JSON. An empty Namespace is not known.
	Pod       string `json:"pod"`
	Namespace string `json:"namespace"`
	// Config is the plugin's entry in the network configuration. Keys that are not about one pod do nothing. Of
	// ambient.enablement_selectors the page may have the text that a person typed, in YAML.
	Config json.RawMessage `json:"config,omitempty"`
}

// Request is a question.
type Request struct {
	// Op is explain, look, trace or compare.
	Op string `json:"op"`
	Subject
	// Connection is for trace.
	Connection *Connection `json:"connection,omitempty"`
	// Other or Saved, what iptables-save printed, is for compare.
	Other *Subject `json:"other,omitempty"`
	Saved string   `json:"saved,omitempty"`
}

// Failure is an answer to a question that cannot be answered. In is the input that is wrong.
type Failure struct {
	Error struct {
		In   string `json:"in"`
		Text string `json:"text"`
	} `json:"error"`
}

type inputError struct {
	in string
	error
}

func (e inputError) Unwrap() error { return e.error }

// Answer answers a Request in JSON. The answer to explain is what `meshcni-redirect explain --config none -o json` prints.
func Answer(request []byte) []byte {
	var r Request
	if err := json.Unmarshal(request, &r); err != nil {
		return failure(fmt.Errorf("read the request: %w", err))
	}
	answer, err := r.answer()
	if err != nil {
		return failure(err)
	}
	return encode(answer, r.Op == "explain")
}

func (r Request) answer() (any, error) {
	if r.Op == "compare" && r.Other == nil && r.Saved == "" {
		return nil, inputError{"other", errors.New("nothing to compare with")}
	}
	q, err := r.Subject.ask()
	if err != nil {
		return nil, err
	}
	switch r.Op {
	case "explain":
		return q.Explanation, nil
	case "look":
		return q.look(), nil
	case "trace":
		if r.Connection == nil {
			return nil, inputError{"connection", errors.New("no connection is given")}
		}
		return q.trace(*r.Connection)
	case "compare":
		return q.compare(r)
	}
	return nil, fmt.Errorf("unknown question %q", r.Op)
}

// asked is a subject with what becomes of it.
type asked struct{ explain.Explanation }

func (s Subject) ask() (*asked, error) {
	meshes, err := configure(s.Config)
	if err != nil {
		return nil, inputError{"config", err}
	}
	m, err := explain.ParseManifest([]byte(s.Pod))
	if err != nil {
		return nil, inputError{"pod", err}
	}
	subject := dialect.Subject{Pod: m.Pod, Addrs: explain.Addrs(m.Pod)}
	if s.Namespace != "" {
		if subject.Namespace, err = explain.ParseNamespace([]byte(s.Namespace)); err != nil {
			return nil, inputError{"namespace", err}
		}
	}
	x, err := explain.Pod(meshes, explain.Input{Subject: subject, Facts: facts.All(), Template: m.Template, Configuration: explain.NoConfiguration})
	if err != nil {
		return nil, inputError{"pod", err}
	}
	return &asked{x}, nil
}

// configure reads the plugin's entry, and finds the meshes that it names. The error names everything that is wrong.
func configure(text json.RawMessage) (dialect.Set, error) {
	if len(text) == 0 {
		text = json.RawMessage("{}")
	}
	text, err := selectors(text)
	if err != nil {
		return dialect.Set{}, err
	}
	config, _, err := netconf.Parse(text, meshcni.Identity{})
	errs := []error{err}
	meshes, err := dialect.Configure(builtin.All(), config)
	return meshes, errors.Join(append(errs, err)...)
}

// selectors replaces the text of ambient.enablement_selectors, if it is one, by the list that the plugin's entry has.
func selectors(entry json.RawMessage) (json.RawMessage, error) {
	const section, key = "ambient", "enablement_selectors"
	var keys, ambient map[string]json.RawMessage
	var text string
	if json.Unmarshal(entry, &keys) != nil || json.Unmarshal(keys[section], &ambient) != nil || json.Unmarshal(ambient[key], &text) != nil {
		return entry, nil // what is wrong with it, the parser of the whole says
	}
	list, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s.%s: %w", section, key, err)
	}
	ambient[key] = list
	if keys[section], err = json.Marshal(ambient); err != nil {
		return nil, err
	}
	return json.Marshal(keys)
}

// View is the answer to look.
type View struct {
	Explanation explain.Explanation `json:"explanation"`
	IPTables    string              `json:"iptables"`
	NFT         string              `json:"nft"`
	Charts      []Chart             `json:"charts"`
	Matrix      []Cell              `json:"matrix"`
}

func (a *asked) look() View {
	v := View{Explanation: a.Explanation, Charts: []Chart{}, Matrix: []Cell{}}
	if a.Explanation.Refused != nil {
		return v
	}
	v.Matrix = a.matrix()
	if !a.Decision.Selected {
		return v
	}
	v.IPTables, v.NFT, v.Charts = explain.RulesText(a.Plan.Ruleset), apply.NFT(a.Plan.Ruleset), charts(a.Plan.Ruleset)
	return v
}

func (a *asked) compare(r Request) (any, error) {
	if r.Saved != "" {
		live, err := compare.Parse(r.Saved)
		if err != nil {
			return nil, inputError{"saved", err}
		}
		x, err := a.CompareLive(context.Background(), live)
		if err != nil {
			return nil, inputError{"saved", err}
		}
		return describe(x), nil
	}
	other, err := r.Other.ask()
	if in := (inputError{}); errors.As(err, &in) {
		return nil, inputError{"other", fmt.Errorf("%s: %w", in.in, in.error)}
	}
	if err != nil {
		return nil, err
	}
	for _, q := range []struct {
		name string
		*asked
	}{{"pod", a}, {"other", other}} {
		if q.Explanation.Refused != nil {
			return nil, inputError{q.name, errors.New("a pod that is refused has no rules to compare")}
		}
	}
	x, err := a.Compare(context.Background(), other.Plan.Ruleset)
	if err != nil {
		return nil, err
	}
	return describe(x), nil
}

func failure(err error) []byte {
	var f Failure
	f.Error.Text = err.Error()
	if in := (inputError{}); errors.As(err, &in) {
		f.Error.In = in.in
	}
	return encode(f, false)
}

// encode writes JSON, indented as meshcni-redirect does or in one line.
func encode(v any, indent bool) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	if indent {
		e.SetIndent("", "  ")
	}
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return []byte(`{"error": {"in": "", "text": "the answer cannot be written"}}`)
	}
	return b.Bytes()
}
