package engine_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/dialect/builtin"
	"github.com/meshcni/meshcni/internal/playground"
	"github.com/meshcni/meshcni/internal/playground/engine"
	"github.com/meshcni/meshcni/status"
)

func ask[T any](t *testing.T, r engine.Request) (answer T) {
	t.Helper()
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(engine.Answer(text), &answer))
	return answer
}

func example(title string) engine.Subject {
	all := playground.Examples()
	i := slices.IndexFunc(all, func(e playground.Example) bool { return e.Title == title })
	return engine.Subject(all[i].State)
}

// TestLook: what the page shows agrees with itself, for every example: each cell of the matrix is what a trace of it says,
// and each rule that the trace names is in the picture.
func TestLook(t *testing.T) {
	for _, e := range playground.Examples() {
		s := engine.Subject(e.State)
		v := ask[engine.View](t, engine.Request{Op: "look", Subject: s})
		require.NotEmpty(t, v.Explanation.Verdict.Sentence, e.Title)
		rules := map[string]bool{}
		for _, chart := range v.Charts {
			for _, chain := range chart.Chains {
				for _, row := range chain.Rows {
					assert.NotEmpty(t, row.Does, "%s: %s", e.Title, row.ID)
					rules[chart.Family+row.ID] = true
				}
			}
		}
		for _, cell := range v.Matrix {
			w := ask[engine.Way](t, engine.Request{Op: "trace", Subject: s, Connection: &cell.Ask})
			assert.Equal(t, cell.Class, w.Class, "%s: %s to %s", e.Title, cell.Who, cell.What)
			assert.Equal(t, cell.Said, w.Said)
			for _, p := range w.Conversation.Packets {
				for _, id := range p.Path {
					assert.True(t, rules[cell.Family+id], "%s: %s is not in the picture", e.Title, id)
				}
			}
		}
		captured := slices.ContainsFunc(v.Matrix, func(c engine.Cell) bool { return c.Class == engine.Mesh })
		assert.Equal(t, v.Explanation.Verdict.State == status.StateCaptured, captured, e.Title)
	}
}

// TestAsksEveryMesh: who does not know the mesh asks all that there are.
func TestAsksEveryMesh(t *testing.T) {
	var c struct{ Dialect []string }
	require.NoError(t, json.Unmarshal(example("A pod that no mesh knows of").Config, &c))
	assert.ElementsMatch(t, builtin.Names(), c.Dialect)
}

// selecting is a pod beside ambient.enablement_selectors as somebody has typed them.
func selecting(text string) engine.Subject {
	s := example("Istio ambient")
	quoted, _ := json.Marshal(text)
	s.Config = json.RawMessage(`{"dialect": "ambient", "ambient": {"enablement_selectors": ` + string(quoted) + `}}`)
	return s
}

// TestSelectors: as text they are what they are as a list.
func TestSelectors(t *testing.T) {
	for text, list := range map[string]string{"- podSelector: {matchLabels: {app: cart}}": `[{"podSelector": {"matchLabels": {"app": "cart"}}}]`, "[]": "[]"} {
		typed, listed := selecting(text), selecting("")
		listed.Config = json.RawMessage(`{"dialect": "ambient", "ambient": {"enablement_selectors": ` + list + `}}`)
		a, b := ask[engine.View](t, engine.Request{Op: "look", Subject: typed}), ask[engine.View](t, engine.Request{Op: "look", Subject: listed})
		assert.Equal(t, b, a, text)
		assert.Equal(t, text != "[]", a.Explanation.Decision.Selected, text)
	}
}

func TestFailures(t *testing.T) {
	good, wrong := example("Istio sidecar"), example("Settings that are wrong")
	bad := good
	bad.Config = json.RawMessage(`{"dialect": "x", "uncaptured_family": "maybe", "kubernetes": {"exclude_namespace_selector": "("}}`)
	for name, tt := range map[string]struct {
		engine.Request
		in, text string
	}{
		"no question":    {engine.Request{Op: "x", Subject: good}, "", "unknown question"},
		"config":         {engine.Request{Op: "look", Subject: bad}, "config", "exclude_namespace_selector"},
		"selectors":      {engine.Request{Op: "look", Subject: selecting("- podSelector: [")}, "config", "ambient.enablement_selectors: "},
		"selectors, too": {engine.Request{Op: "look", Subject: selecting("- podSelectors: {}")}, "config", "enablement_selectors: [0].podSelectors: unknown key"},
		"config, too":    {engine.Request{Op: "look", Subject: bad}, "config", "uncaptured_family"},
		"pod":            {engine.Request{Op: "look", Subject: engine.Subject{Pod: "- 1"}}, "pod", "cannot unmarshal"},
		"namespace":      {engine.Request{Op: "look", Subject: engine.Subject{Pod: "kind: Pod", Namespace: "kind: Pod"}}, "namespace", `it is a "Pod"`},
		"no connection":  {engine.Request{Op: "trace", Subject: good}, "connection", "no connection"},
		"no sender":      {engine.Request{Op: "trace", Subject: good, Connection: &engine.Connection{Direction: "out", Who: "root", Proto: "tcp", Dst: "10.96.5.5", Port: 80}}, "connection", `who: "root" is not app or proxy`},
		"all of connection": {
			engine.Request{Op: "trace", Subject: good, Connection: &engine.Connection{Direction: "up", Proto: "sctp", Src: "fe80::1%eth0", Dst: "x"}}, "connection",
			"protocol: protocol \"sctp\" is not tcp, udp or a number from 1 to 255\ndestination: \"x\" is not an address\n" +
				"source: \"fe80::1%eth0\" is not an address\nport: want 1 to 65535\ndirection: \"up\" is not out or in",
		},
		"a refused pod's": {engine.Request{Op: "trace", Subject: wrong, Connection: &engine.Connection{}}, "pod", "does not start"},
		"nothing beside":  {engine.Request{Op: "compare", Subject: good}, "other", "nothing to compare"},
		"refused beside":  {engine.Request{Op: "compare", Subject: good, Other: &wrong}, "other", "refused"},
		"bad beside":      {engine.Request{Op: "compare", Subject: good, Other: &engine.Subject{Pod: "- 1"}}, "other", "pod: "},
		"nftables' rules": {engine.Request{Op: "compare", Subject: good, Saved: "table inet x {\n}\n"}, "saved", "of which only the live ones are compared"},
		"no rules":        {engine.Request{Op: "compare", Subject: good, Saved: "hello"}, "saved", "hello"},
	} {
		f := ask[engine.Failure](t, tt.Request)
		assert.Equal(t, tt.in, f.Error.In, name)
		assert.Contains(t, f.Error.Text, tt.text, name)
	}
	assert.Contains(t, string(engine.Answer([]byte("{"))), "read the request")
}

// TestProxyPorts: what comes to one of the proxy's ports is in the mesh if the proxy has it for that protocol. By another, the
// application's socket gets it.
func TestProxyPorts(t *testing.T) {
	s := example("Istio sidecar")
	for _, tt := range []struct {
		proto string
		port  uint16
		want  engine.Class
	}{
		{"tcp", 15008, engine.Mesh}, {"udp", 15008, engine.Direct}, {"udp", 15001, engine.Direct}, {"udp", 15006, engine.Direct},
		{"tcp", 8080, engine.Mesh}, {"udp", 8080, engine.Direct},
	} {
		c := engine.Connection{Direction: "in", Proto: tt.proto, Dst: "10.244.1.5", Port: tt.port}
		w := ask[engine.Way](t, engine.Request{Op: "trace", Subject: s, Connection: &c})
		assert.Equal(t, tt.want, w.Class, "%s %d: %s", tt.proto, tt.port, w.Said)
	}
}

func TestCompare(t *testing.T) {
	plain, excluded := example("Istio sidecar"), example("traffic.sidecar.istio.io/excludeInboundPorts")
	same := ask[engine.Compared](t, engine.Request{Op: "compare", Subject: plain, Other: &plain})
	assert.True(t, same.Same)
	assert.Greater(t, same.Packets, 100)
	got := ask[engine.Compared](t, engine.Request{Op: "compare", Subject: excluded, Other: &plain})
	require.Len(t, got.Groups, 1)
	g := got.Groups[0]
	assert.Equal(t, []string{"missing", "redirect 15006", "pass"}, []string{g.Kind, g.Other, g.This})
	assert.Equal(t, got.Count, g.Count)
	assert.Contains(t, g.Examples[0], ":9090")
	foreign := ask[engine.Compared](t, engine.Request{Op: "compare", Subject: plain, Saved: "*nat\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -m string --string x --algo bm -j DROP\nCOMMIT\n"})
	assert.Len(t, foreign.Foreign, 1)
}
