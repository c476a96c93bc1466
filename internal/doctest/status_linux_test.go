package doctest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/status"
)

// rowsOf are the rows of each kind of code.
func rowsOf() map[status.Kind][]status.Row {
	rows := map[status.Kind][]status.Row{}
	for _, r := range status.Table() {
		rows[r.Kind] = append(rows[r.Kind], r)
	}
	return rows
}

// TestStatusCodes: the pages have each code of package status, with what programs say of it. To write them anew:
//
//	go test ./internal/doctest -run StatusCodes -update
func TestStatusCodes(t *testing.T) {
	tables := map[string]string{}
	for kind, rows := range rowsOf() {
		if kind != status.KindFinding {
			tables["codes of "+string(kind)] = statusTable(rows)
		}
	}
	generated(t, troubleshooting, tables)
	generated(t, "docs/check.md", map[string]string{"findings": statusSections(rowsOf()[status.KindFinding])})
}

// statusTable has a row for each code, in a table for each combination of states. What many rows would say is said once.
func statusTable(rows []status.Row) string {
	var b strings.Builder
	usual := usualRemedy(rows)
	if usual != "" {
		fmt.Fprintf(&b, "\\*: %s.\n\n", usual)
	}
	var order []string
	byStates := map[string][]status.Row{}
	for _, r := range rows {
		var states []string
		for _, s := range r.States {
			states = append(states, "`"+string(s)+"`")
		}
		key := strings.Join(states, ", ")
		if byStates[key] == nil {
			order = append(order, key)
		}
		byStates[key] = append(byStates[key], r)
	}
	line := func(cells ...string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	for _, states := range order {
		rows := byStates[states]
		switch {
		case states != "":
			fmt.Fprintf(&b, "%s:\n\n", states)
		case len(order) > 1:
			b.WriteString("Of what the agent answers and finds, beside these:\n\n")
		}
		head := []string{"code", "what it means"}
		helped := slices.ContainsFunc(rows, func(r status.Row) bool { return len(r.Do) > 0 })
		if helped {
			head = append(head, "what to do")
		}
		line(head...)
		b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
		for _, r := range rows {
			cells := []string{"`" + string(r.Code) + "`", cell(r.Sentence)}
			if helped {
				if i := slices.Index(r.Do, status.Remedy(usual)); i >= 0 {
					r.Do[i] = `\*`
				}
				cells = append(cells, cell(strings.TrimSuffix(r.Remedy(), ".")))
			}
			line(cells...)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// usualRemedy is what helps with most codes, if anything helps with more than four.
func usualRemedy(rows []status.Row) (usual string) {
	count := map[status.Remedy]int{}
	for _, r := range rows {
		for _, d := range r.Do {
			if count[d]++; count[d] > max(4, count[status.Remedy(usual)]) {
				usual = string(d)
			}
		}
	}
	return usual
}

// statusSections has a section for each code.
func statusSections(rows []status.Row) string {
	var b strings.Builder
	for _, r := range rows {
		first, size := utf8.DecodeRuneInString(r.Sentence)
		fmt.Fprintf(&b, "### %s\n\n%c%s. %s\n\n", r.Code, unicode.ToUpper(first), r.Sentence[size:], r.Remedy())
	}
	return b.String()
}

// TestStatusIsWhole: package status has each code that is declared elsewhere.
func TestStatusIsWhole(t *testing.T) {
	for kind, declared := range map[status.Kind][]string{
		status.KindDecision: constants(t, "selection", "Reason"),
		status.KindNotice:   constants(t, "installer", "NoticeCode"),
		status.KindCause:    constants(t, "installer", "Cause"),
		status.KindBypass:   constants(t, "dialect", "BypassCode"),
	} {
		var codes []string
		for _, c := range status.Codes(kind) {
			codes = append(codes, string(c))
		}
		assert.ElementsMatch(t, declared, codes, kind)
	}
	for _, c := range constants(t, "installer", "Code") { // to which the agent adds some, as its own test has it
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
