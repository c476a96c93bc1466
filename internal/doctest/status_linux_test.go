package doctest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/node/nodeevents"
	"github.com/meshcni/meshcni/status"
)

// places are the pages on which the codes of each kind stand, under <!-- generated: codes of KIND -->.
var places = map[status.Kind]string{
	status.KindFinding: "docs/check.md", status.KindNow: "docs/kubectl.md", status.KindTaint: "docs/taint.md",
}

// TestStatusCodes: the pages have each code of package status, with what programs say of it. To write them anew:
//
//	go test ./internal/doctest -run StatusCodes -update
func TestStatusCodes(t *testing.T) {
	rows := map[status.Kind][]status.Row{}
	for _, r := range status.Table() {
		rows[r.Kind] = append(rows[r.Kind], r)
	}
	parts := map[string]map[string]string{}
	for kind, rows := range rows {
		page := cmp.Or(places[kind], troubleshooting)
		if parts[page] == nil {
			parts[page] = map[string]string{}
		}
		text := codeList(rows)
		switch kind {
		case status.KindFinding, status.KindAlert: // pages and runbooks lead to each
			text = codeSections(rows)
		}
		parts[page]["codes of "+string(kind)] = text
	}
	for page, part := range parts {
		generated(t, page, part)
	}
}

// codeList has a line for each code, under each combination of states. A remedy of many codes is written once, above.
func codeList(rows []status.Row) string {
	var b strings.Builder
	count, events := map[status.Remedy]int{}, map[string]bool{}
	for _, r := range rows {
		events[r.Event] = true
		for _, d := range r.Do {
			count[d]++
		}
	}
	signs, mark := map[status.Remedy]string{}, 'a'
	for _, r := range rows {
		for _, d := range r.Do {
			if count[d] > 1 && len(strings.Fields(string(d))) > 4 && signs[d] == "" {
				signs[d] = "**" + string(mark) + "**"
				mark++
				fmt.Fprintf(&b, "%s: %s.\n\n", signs[d], d)
			}
		}
	}
	var order []string
	byStates := map[string][]status.Row{}
	for _, r := range rows {
		var states []string
		if r.Kind == status.KindPod { // the states of a decision go without saying
			for _, s := range r.States {
				states = append(states, "`"+string(s)+"`")
			}
		}
		key := strings.Join(states, ", ")
		if byStates[key] == nil {
			order = append(order, key)
		}
		byStates[key] = append(byStates[key], r)
	}
	for _, states := range order {
		rows := byStates[states]
		shared := status.Remedy("") // what helps with all of them
		if len(rows) > 2 && len(rows[0].Do) > 0 && !slices.ContainsFunc(rows, func(r status.Row) bool { return len(r.Do) == 0 || r.Do[0] != rows[0].Do[0] }) {
			shared = rows[0].Do[0]
		}
		switch {
		case states != "" && shared != "":
			fmt.Fprintf(&b, "%s (%s):\n\n", states, cmp.Or(signs[shared], string(shared)))
		case states != "":
			fmt.Fprintf(&b, "%s:\n\n", states)
		case len(order) > 1:
			b.WriteString("What the agent answers beside these:\n\n")
			shared = ""
		default:
			shared = ""
		}
		for _, r := range rows {
			fmt.Fprintf(&b, "- `%s`", r.Code)
			if r.Event != "" && len(events) > 1 && r.Kind != status.KindReadiness && r.Kind != status.KindNotice { // where it is not the code itself
				fmt.Fprintf(&b, " (`%s`)", r.Event)
			}
			fmt.Fprintf(&b, ": %s.", r.Sentence)
			for _, d := range r.Do {
				if d != shared {
					b.WriteString(" " + cmp.Or(signs[d], string(d)+"."))
				}
			}
			b.WriteString("\n")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// codeSections has a section for each code.
func codeSections(rows []status.Row) string {
	var b strings.Builder
	for _, r := range rows {
		first, size := utf8.DecodeRuneInString(r.Sentence)
		fmt.Fprintf(&b, "### %s\n\n%c%s. %s\n\n", r.Code, unicode.ToUpper(first), r.Sentence[size:], r.Remedy())
	}
	return b.String()
}

type alertRule struct {
	Alert       string
	Annotations map[string]string
}

// alerts are the alert rules.
func alerts(t *testing.T) (all []alertRule) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []alertRule }
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "deploy/monitoring/meshcni.rules.yaml")), &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// TestAlerts: each alert has its row, and its runbook is the row's page.
func TestAlerts(t *testing.T) {
	var names []status.Code
	for _, a := range alerts(t) {
		names = append(names, status.Code(a.Alert))
		row, _ := status.Lookup(status.KindAlert, status.Code(a.Alert))
		assert.Equal(t, row.URL(meshcni.Identity{}), a.Annotations["runbook_url"], a.Alert)
	}
	assert.ElementsMatch(t, status.Codes(status.KindAlert), names)
}

// TestNodeEvents: the reason of a node's event is the one by which its code's row is found.
func TestNodeEvents(t *testing.T) {
	for _, r := range status.Table() {
		if r.Kind == status.KindReadiness || r.Kind == status.KindNotice {
			assert.Equal(t, nodeevents.Reason(string(r.Code)), r.Event)
			assert.Contains(t, status.Rows(status.Code(r.Event)), r)
		}
	}
}

// TestEventsOfPods: each reason of an event that our programs write is found in the table.
func TestEventsOfPods(t *testing.T) {
	reason := regexp.MustCompile(`"((?:Mesh|AgentTaint)[A-Z][A-Za-z]+)"`)
	found := 0
	for path, text := range sources(t, "cmd", "internal/nodecontrol", "repair", "nodeagent", "installer") {
		for _, m := range reason.FindAllStringSubmatch(text, -1) {
			found++
			assert.NotEmpty(t, status.Rows(status.Code(m[1])), "%s: event %s", path, m[1])
		}
	}
	assert.Greater(t, found, 7)
}

// TestStatusIsWhole: package status has each code that is declared elsewhere.
func TestStatusIsWhole(t *testing.T) {
	for kind, declared := range map[status.Kind][]string{
		status.KindNotice:  constants(t, "internal/node/news", "status.Code"),
		status.KindCause:   constants(t, "installer", "cause"),
		status.KindBypass:  constants(t, "dialect", "BypassCode"),
		status.KindWarning: append(constants(t, "warning", "Code"), string(dialect.WarningContested)),
	} {
		var codes []string
		for _, c := range status.Codes(kind) {
			codes = append(codes, string(c))
		}
		assert.ElementsMatch(t, declared, codes, kind)
	}
	for _, c := range constants(t, "installer", "status.Code") { // to which the agent adds some, as its own test has it
		assert.Contains(t, status.Codes(status.KindReadiness), status.Code(c))
	}
}

// TestStatusPages: the section that a code's row names is there.
func TestStatusPages(t *testing.T) {
	require.NotEmpty(t, status.Table())
	for _, r := range status.Table() {
		page, section, ok := strings.Cut(r.Page, "#")
		if assert.True(t, ok, "%s: %s names no section", r.Code, r.Page) {
			assert.True(t, anchors(t, "docs/"+page)[section], "%s: docs/%s has no such section", r.Code, r.Page)
		}
	}
}
